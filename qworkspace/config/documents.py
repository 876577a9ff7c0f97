"""Reading, checking and writing config.json and agent.json: cached by content, safe against bad edits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from qworkspace.base.files import write_atomic
from qworkspace.base.ids import agent_id as valid_agent_id
from qworkspace.config.agent import AgentConfig
from qworkspace.config.aliases import Path as KeyPath
from qworkspace.config.aliases import translate
from qworkspace.config.explain import UnknownKey, dotted
from qworkspace.config.filecache import FileVersions, version_of
from qworkspace.config.home import HomeConfig, ProfileRef
from qworkspace.config.patching import merge_patch
from qworkspace.config.profiles import Misplaced, directories
from qworkspace.config.reading import Reading, Source, check, clean_value, dump, parse
from qworkspace.config.references import keep_hidden, masked_path
from qworkspace.config.secrets import Secrets
from qworkspace.config.values import Section
from qworkspace.errors import InvalidConfig, NotFound, VersionMismatch

S = TypeVar("S", bound=Section)
Raw = dict[str, Any]


@dataclass(slots=True)
class _Cached(Generic[S]):
    """What a file says in that version, with those secrets: a configuration, or why it is none."""

    key: tuple[str, int]
    config: S | None
    error: InvalidConfig | None
    last_good: S | None


class ConfigDocuments:
    """The files of a home. Loads are cached by content; a bad file leaves the last good value available."""

    def __init__(self, home: Path, *, environ: Mapping[str, str]) -> None:
        self.home = home.expanduser().absolute()
        self.home_file = self.home / "config.json"
        self.environ = environ
        self._secrets = Secrets(self.home / "secrets.json", environ=environ)
        self._files = FileVersions()
        self._lock = threading.RLock()
        self._home: _Cached[HomeConfig] | None = None
        self._agents: dict[str, _Cached[AgentConfig]] = {}
        self._places: dict[str, str] = {}
        self._unknown: dict[Path, tuple[str, list[UnknownKey]]] = {}

    def secrets(self) -> Secrets:
        """API keys and the access token."""
        return self._secrets

    # -- reading

    def load_home(self) -> HomeConfig:
        """config.json as it is now; `InvalidConfig` when it cannot be used (see `last_good_home`)."""
        with self._lock:
            self._home = self._load(self.home_file, self._home, self._read_home)
            return _value(self._home)

    def last_good_home(self) -> HomeConfig | None:
        """The newest configuration that was valid since the process began, or None."""
        return self._home.last_good if self._home is not None else None

    def load_agent(self, agent_id: str, *, disabled: bool = False) -> AgentConfig:
        """The agent's configuration as it is now. Unknown ids are `NotFound`, and disabled ones unless asked for."""
        with self._lock:
            profile = self.profile(agent_id)
            if not profile.enabled and not disabled:
                raise NotFound("agent", agent_id, "it is disabled")
            cached = self._load(
                self.agent_file(agent_id), self._agents.get(agent_id), lambda text: self._read_agent(agent_id, text)
            )
            self._agents[agent_id] = cached
            return _value(cached)

    def last_good_agent(self, agent_id: str) -> AgentConfig | None:
        """The newest configuration of the agent that was valid since the process began, or None."""
        cached = self._agents.get(agent_id)
        return cached.last_good if cached is not None else None

    def agent_ids(self, *, disabled: bool = False) -> list[str]:
        """The enabled agents (or all), from config.json alone."""
        profiles = self.usable_home().agents.profiles
        return [name for name, profile in profiles.items() if profile.enabled or disabled]

    def profile(self, agent_id: str) -> ProfileRef:
        """The agent's entry in config.json, enabled or not; `NotFound` when there is none."""
        valid_agent_id(agent_id)
        profiles = self.usable_home().agents.profiles
        if agent_id not in profiles:
            raise NotFound("agent", agent_id)
        return profiles[agent_id]

    def agent_dir(self, agent_id: str) -> Path:
        """The agent's directory, absolute; it may be missing."""
        with self._lock:
            self.profile(agent_id)
            return Path(self._places[agent_id])

    def agent_file(self, agent_id: str) -> Path:
        """The agent's agent.json; it may be missing."""
        return self.agent_dir(agent_id) / "agent.json"

    def version(self, path: Path) -> str:
        """The present version of a configuration file, without parsing it."""
        with self._lock:
            return self._files.version(path)

    def raw_home(self) -> tuple[Raw, str]:
        """config.json as written, `${NAME}` included, and its version."""
        return self._raw(self.home_file)

    def raw_agent(self, agent_id: str) -> tuple[Raw, str]:
        """agent.json as written, `${NAME}` included, and its version."""
        return self._raw(self.agent_file(agent_id))

    def unknown_keys(self, agent_id: str | None = None) -> list[UnknownKey]:
        """Keys that no setting has, in config.json (None) or in one agent's file; an unusable file has none."""
        with self._lock:
            file = self.home_file if agent_id is None else self.agent_file(agent_id)
            try:
                version = self._files.version(file)
                if self._unknown.get(file, ("", []))[0] != version:
                    self._unknown[file] = (version, self._find_unknown(agent_id, self._files.read(file).text))
            except InvalidConfig:
                return []
            return self._unknown[file][1]

    # -- checking without writing

    def check_agent(self, agent_id: str, raw: Raw) -> AgentConfig:
        """What `raw` would be as the agent's configuration; `InvalidConfig` with paths but no lines."""
        valid_agent_id(agent_id)
        return self._checked_agent(agent_id, Source(raw))[0]

    def propose_agent(self, agent_id: str, text: str, *, patch: bool = False, name: str = "") -> Reading[AgentConfig]:
        """What `text` would make of the agent's configuration: a whole agent.json, or a merge patch of the present one.

        Masks stand for the secrets that are there. Errors name the lines of a whole text; `name` is what it is called.
        """
        self.profile(agent_id)
        file = Path(name or "agent.json")
        raw = parse(text, file=file)
        with self._lock:
            current = self._present(agent_id, needed=patch)
            if not patch:  # with its masks first: mistakes have their places in the text
                self._checked_agent(agent_id, Source(raw, file, text))
            kept = self._unmasked(merge_patch(current, raw) if patch else raw, current)
            return Reading(*self._checked_agent(agent_id, Source(kept, file)), file, dump(kept) if patch else text)

    # -- writing

    def save_home(self, raw: Raw, expected: str | None = None) -> str:
        """Replace config.json; the new version. `expected` is the version that was read (None: whatever is there)."""
        return self._save(self.home_file, raw, expected, self._check_home)

    def save_agent(self, agent_id: str, raw: Raw, expected_version: str | None = None) -> str:
        """Replace agent.json; the new version. Refused when it does not validate or `expected_version` is stale."""

        def valid(kept: Raw) -> None:
            self._checked_agent(agent_id, Source(kept))

        return self._save(self.agent_file(agent_id), raw, expected_version, valid)

    def patch_home(self, patch: Raw, expected: str | None = None) -> str:
        """Merge into config.json (RFC 7396); the new version."""
        with self._lock:
            return self.save_home(merge_patch(self.raw_home()[0], patch), expected)

    def patch_agent(self, agent_id: str, patch: Raw, expected_version: str | None = None) -> str:
        """Merge into agent.json (RFC 7396); the new version."""
        with self._lock:
            return self.save_agent(agent_id, merge_patch(self.raw_agent(agent_id)[0], patch), expected_version)

    def forget(self, agent_id: str | None = None) -> None:
        """Read the file again at the next load, even if its stat is the same."""
        with self._lock:
            self._files.forget(self.home_file if agent_id is None else self.agent_file(agent_id))

    # -- inside

    def usable_home(self) -> HomeConfig:
        """The present configuration, or the last good one while the file is broken."""
        try:
            return self.load_home()
        except InvalidConfig:
            good = self.last_good_home()
            if good is None:
                raise
            return good

    def _load(self, file: Path, cached: _Cached[S] | None, read: Callable[[str], S]) -> _Cached[S]:
        last_good = cached.last_good if cached is not None else None
        key = ("", self._secrets.refresh())
        try:
            known = self._files.known(file)
            content = self._files.read(file) if known is None else None
            key = (known or (content.version if content else ""), key[1])
            if cached is not None and cached.key == key:
                return cached
            config = read((content or self._files.read(file)).text)
        except InvalidConfig as error:
            return _Cached(key, None, error, last_good)
        return _Cached(key, config, None, config)

    def _find_unknown(self, agent_id: str | None, text: str) -> list[UnknownKey]:
        if agent_id is None:
            return self._home_reading(text).unknown_keys()
        return self._agent_reading(agent_id, text).unknown_keys()

    def _read_home(self, text: str) -> HomeConfig:
        reading = self._home_reading(text)
        self._places = self._directories(reading.config, Source({}, self.home_file, text))
        return reading.config

    def _home_reading(self, text: str) -> Reading[HomeConfig]:
        source = Source(parse(text, file=self.home_file), self.home_file, text)
        config, translation = check(HomeConfig, source, self._secrets.get, optional=_in_providers)
        return Reading(config, translation, self.home_file, text)

    def _directories(self, config: HomeConfig, source: Source) -> dict[str, str]:
        try:
            return directories(self.home, config.agents.profiles)
        except Misplaced as error:
            raise source.error(error.path, error.reason) from None

    def _read_agent(self, agent_id: str, text: str) -> AgentConfig:
        return self._agent_reading(agent_id, text).config

    def _agent_reading(self, agent_id: str, text: str) -> Reading[AgentConfig]:
        file = self.agent_file(agent_id)
        config, translation = self._checked_agent(agent_id, Source(parse(text, file=file), file, text))
        return Reading(config, translation, file, text)

    def _checked_agent(self, agent_id: str, source: Source) -> tuple[AgentConfig, Any]:
        named = source.raw.get("id", agent_id)
        if named != agent_id:
            raise source.error(("id",), f"it is {named!r}, but the profile in config.json is {agent_id!r}")
        filled = Source({"id": agent_id, **source.raw}, source.file, source.text)
        return check(AgentConfig, filled, self._secrets.get, translate=translate)

    def _check_home(self, raw: Raw) -> None:
        source = Source(raw)
        config, _ = check(HomeConfig, source, self._secrets.get, optional=_in_providers)
        self._directories(config, source)

    def _unmasked(self, raw: Raw, current: Raw) -> Raw:
        """`raw` as it may be stored: what its masks and resolved references stand for comes from `current`."""
        kept: Raw = clean_value(keep_hidden(raw, current, self._secrets.get))
        masked = masked_path(kept)
        if masked is not None:
            raise InvalidConfig("a mask is no value; give the secret itself or ${NAME}", path=dotted(masked))
        return kept

    def _present(self, agent_id: str, *, needed: bool) -> Raw:
        """agent.json as written; nothing when it is broken, unless it is needed."""
        try:
            return self.raw_agent(agent_id)[0]
        except InvalidConfig:
            if needed:
                raise
            return {}

    def _raw(self, file: Path) -> tuple[Raw, str]:
        with self._lock:
            content = self._files.read(file)
            return parse(content.text, file=file), content.version

    def _save(self, file: Path, raw: Raw, expected: str | None, validate: Callable[[Raw], None]) -> str:
        with self._lock:
            current, version = self._raw(file)
            if expected is not None and expected != version:
                raise VersionMismatch(f"{file} has changed since it was read", current=version)
            kept = self._unmasked(raw, current)
            validate(kept)
            text = dump(kept)
            if version_of(text) != version:
                write_atomic(file, text)
                self._files.forget(file)
            return version_of(text)


def _value(cached: _Cached[S]) -> S:
    if cached.config is None:
        raise (cached.error or InvalidConfig("not loaded")).with_traceback(None)
    return cached.config


def _in_providers(path: KeyPath) -> bool:
    """A provider whose key is missing says so when it is used; the rest of the daemon runs."""
    return path[:1] == ("providers",)
