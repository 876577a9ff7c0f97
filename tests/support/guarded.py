"""A home in which every closed place holds a text of its own that nobody may get to see, and a look at what changed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemon import write_home, write_json

KEY = "sk-canary-of-the-provider-key-4711"
PLACES = {
    ".daemon/canary.txt": "canary-of-the-daemon-directory",
    "workspaces/other/files/private.txt": "canary-of-the-other-agent",
    "workspaces/other/SOUL.md": "canary-of-the-other-persona",
    "workspaces/default/.state/canary.txt": "canary-of-the-own-state",
    "../outside/private.txt": "canary-outside-of-the-home",
}
CONTROLS = {
    "workspaces/default/jobs.json": '{"version": 1, "jobs": []}\n',
    "workspaces/default/drivers/tool.json": '{"command": "true"}\n',
    "workspaces/default/plugins/mine/plugin.json": '{"id": "mine"}\n',
    "workspaces/default/skills/tea/SKILL.md": "# Tea\nBoil water.\n",
    "workspaces/default/files/notes.txt": "the agent's own notes\n",
}
# what the running daemon itself writes; everything else of the home stays as it is
_MOVING = ("sessions.db", "memory.db", "index.db", "vault.lock", "home.db", "qworkspace.log", "lock", "test.")


@dataclass(frozen=True, slots=True)
class GuardedHome:
    """Made by `guarded_home`. `path` is the home, `workspace` that of the agent `default`."""

    path: Path
    canaries: tuple[str, ...]
    before: Mapping[str, str]

    @property
    def workspace(self) -> Path:
        return self.path / "workspaces" / "default"

    @property
    def outside(self) -> Path:
        """A directory beside the home."""
        return self.path.parent / "outside"

    def told(self, text: str) -> list[str]:
        """The secrets that `text` holds."""
        return [canary for canary in self.canaries if canary in text]

    def changes(self, *, expected: tuple[str, ...] = ()) -> list[str]:
        """Paths whose content is another one than at the beginning, without those that begin with an expected one."""
        now = _contents(self.path) | _contents(self.outside)
        different = {name for name in {*now, *self.before} if now.get(name) != self.before.get(name)}
        return sorted(name for name in different if not name.startswith(expected or ("\0",)))

    def link(self) -> None:
        """Leave links in the agent's own directories, soft and hard, to what it must not get at."""
        links = {
            "files/up": "../../..",
            "files/to-secrets": "../../../secrets.json",
            "files/to-config": str(self.path / "config.json"),
            "files/to-environ": "/proc/self/environ",
            "files/to-neighbour": "../../other/files",
            "files/to-outside": str(self.outside),
            "files/to-state": "../.state",
            "files/through": ".",
            "files/chain": "up",
            "files/to-agent": "../agent.json",
            "files/to-plugins": "../plugins",
            "files/dangling": "../plugins/evil.json",
            "memory/to-secrets.md": "../../../secrets.json",
            "digest/jobs.md": "../jobs.json",
            "SOUL.md": "agent.json",
        }
        hard = {
            "files/hard-secrets": self.path / "secrets.json",
            "files/hard-state": self.workspace / ".state/canary.txt",
            "files/hard-neighbour": self.path / "workspaces/other/files/private.txt",
            "files/hard-agent": self.workspace / "agent.json",
        }
        for name, target in links.items():
            place = self.workspace / name
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(target)
        for name, original in hard.items():
            (self.workspace / name).hardlink_to(original)


def guarded_home(
    home: Path, *, models: str | None, agent: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
) -> GuardedHome:
    """Agents `default` and `other` with a secret in every closed place; the provider's key comes from secrets.json.

    `agent` goes into the agent.json of `default`; `plain` has no settings, and `hasty` waits a second for answers.
    """
    write_home(home, models=models, agents=("default", "other", "plain", "hasty"), config=config, memory=True)
    write_json(home / "workspaces/default/agent.json", {"id": "default", "name": "Default", **(agent or {})})
    write_json(home / "workspaces/hasty/agent.json", {"id": "hasty", "running": {"approval_timeout": 1}})
    _name_the_key(home / "config.json")
    for name, text in (PLACES | CONTROLS).items():
        place = home / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    write_json(home / "secrets.json", {"access_token": "canary-of-the-access-token-0815", "PROVIDER_KEY": KEY})
    (home / "secrets.json").chmod(0o600)
    canaries = (*PLACES.values(), KEY, "canary-of-the-access-token-0815")
    return GuardedHome(home, canaries, _contents(home) | _contents(home.parent / "outside"))


def _name_the_key(path: Path) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    for provider in config.get("providers", {}).values():
        provider["api_key"] = "${PROVIDER_KEY}"
    write_json(path, config)


def _contents(root: Path) -> dict[str, str]:
    return {os.path.relpath(path, root.parent): _content(path) for path in _below(root)}


def _below(root: Path) -> Iterator[Path]:
    for directory, directories, names in os.walk(root):
        here = Path(directory)
        links = [name for name in directories if (here / name).is_symlink()]
        yield from (here / name for name in (*names, *links) if not name.startswith(_MOVING))


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def swapping(place: Path, targets: list[Path]) -> Iterator[None]:
    """`place` is a directory, then a link, then a directory again, as fast as it goes."""
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in targets:
                place.mkdir(exist_ok=True)
                (place / "private.txt").write_text("harmless", encoding="utf-8")
                time.sleep(0.001)
                shutil.rmtree(place, ignore_errors=True)
                link = place.with_name("link")
                link.symlink_to(target)
                try:
                    link.rename(place)
                except OSError:  # a tool made the directory anew meanwhile
                    link.unlink()
                time.sleep(0.001)
                if place.is_symlink():
                    place.unlink()

    with ThreadPoolExecutor(1) as pool:
        swapper = pool.submit(swap)
        try:
            yield
        finally:
            done.set()
        swapper.result()
