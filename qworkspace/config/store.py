"""The configuration store: the one place that reads and writes the configuration of a home and its agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qworkspace.base.files import make_directory, read_text, write_atomic
from qworkspace.base.ids import agent_id as valid_agent_id
from qworkspace.config.documents import ConfigDocuments
from qworkspace.config.profiles import DEFAULT_PARENT
from qworkspace.config.reading import dump, parse
from qworkspace.config.templates import copy_missing, template
from qworkspace.errors import Conflict, Duplicate

DEFAULT_AGENT = "default"
_COPIED = ("*.md", "agent.json", "drivers/*.json", "skills/*/*")


class ConfigStore(ConfigDocuments):
    """Loads, checks and saves configuration; makes and removes agents."""

    def init_home(self, template_name: str = "default") -> bool:
        """config.json and the default agent, where they are missing; True when something was written."""
        texts = template(template_name)
        make_directory(self.home)
        if self.home_file.exists():
            return self._complete(texts)
        # The agent first: after a crash in between, config.json is missing and everything is done again.
        copy_missing(_named(texts, DEFAULT_AGENT), self.home / DEFAULT_PARENT / DEFAULT_AGENT)
        write_atomic(self.home_file, dump(first_config()))
        return True

    def create_agent(
        self, agent_id: str, template_name: str = "default", *, name: str | None = None, copy_of: str | None = None
    ) -> Path:
        """A new agent from a template, or as a copy of another one's persona and configuration; its directory.

        Files that its directory already has stay as they are: an agent that was removed comes back with them.
        """
        valid_agent_id(agent_id)
        if agent_id in self.load_home().agents.profiles:
            raise Duplicate(f"there is an agent {agent_id!r} already", id=agent_id)
        texts = template(template_name) if copy_of is None else _copy(self.agent_dir(copy_of))
        directory = self.home / DEFAULT_PARENT / agent_id
        self._check_directory(agent_id)
        copy_missing(_named(texts, agent_id, name), directory)
        self.patch_home({"agents": {"profiles": {agent_id: _profile(agent_id)}}})
        return directory

    def delete_agent(self, agent_id: str) -> None:
        """Take the agent out of config.json; its directory stays."""
        self.profile(agent_id)
        if self.load_home().agents.active_agent == agent_id:
            raise Conflict(f"{agent_id!r} is the active agent; make another one active first", id=agent_id)
        self.patch_home({"agents": {"profiles": {agent_id: None}}})

    def set_enabled(self, agent_id: str, enabled: bool) -> None:
        """Enable or disable the agent."""
        self.profile(agent_id)
        self.patch_home({"agents": {"profiles": {agent_id: {"enabled": enabled}}}})

    def _check_directory(self, agent_id: str) -> None:
        """Refuse a directory that another profile has, before anything is written into it."""
        raw, _ = self.raw_home()
        self._check_home(raw | {"agents": _with_profile(raw.get("agents", {}), agent_id)})

    def _complete(self, texts: dict[str, str]) -> bool:
        """A home that has its config.json gets back the active agent's files when they are gone."""
        agents = self.load_home().agents
        active = agents.active_agent
        if active not in agents.profiles or self.agent_file(active).exists():
            return False
        return bool(copy_missing(_named(texts, active), self.agent_dir(active)))


def first_config() -> dict[str, Any]:
    """The configuration of a new home: it answers offline until a provider is added."""
    return {
        "server": {"host": "127.0.0.1", "port": 8420, "allowed_hosts": [], "auth": "token"},
        "user_timezone": None,
        "providers": {"offline": {"type": "offline", "models": [{"name": "offline"}]}},
        "default_model": {"provider": "offline", "name": "offline"},
        "agents": {"active_agent": DEFAULT_AGENT, "profiles": {DEFAULT_AGENT: _profile(DEFAULT_AGENT)}},
    }


def _profile(agent_id: str) -> dict[str, Any]:
    return {"workspace_dir": f"{DEFAULT_PARENT}/{agent_id}", "enabled": True, "start": "lazy"}


def _with_profile(agents: dict[str, Any], agent_id: str) -> dict[str, Any]:
    return agents | {"profiles": agents.get("profiles", {}) | {agent_id: _profile(agent_id)}}


def _named(texts: dict[str, str], agent_id: str, name: str | None = None) -> dict[str, str]:
    """The files with agent.json carrying that id, and that name if one is given."""
    raw = parse(texts["agent.json"])
    named = {"id": agent_id} | {key: value for key, value in raw.items() if key != "id"}
    return texts | {"agent.json": dump(named | ({"name": name} if name else {}))}


def _copy(directory: Path) -> dict[str, str]:
    """An agent's files with its channels off: two agents must not answer on one account."""
    texts = _texts_of(directory)
    raw = parse(texts.get("agent.json", "{}"), file=directory / "agent.json")
    channels = raw.get("channels")
    if isinstance(channels, dict):
        off = {name: channel | {"enabled": False} for name, channel in channels.items() if isinstance(channel, dict)}
        raw = raw | {"channels": channels | off}
    return texts | {"agent.json": dump(raw)}


def _texts_of(directory: Path) -> dict[str, str]:
    """What makes an agent: persona, configuration, long-term memory; neither its notes nor its sessions."""
    found = {}
    for pattern in _COPIED:
        for file in sorted(directory.glob(pattern)):
            if file.is_file() and not file.is_symlink():
                found[file.relative_to(directory).as_posix()] = read_text(file)
    return found
