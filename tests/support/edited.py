"""A home whose files are edited, without a file system's events: a test says what is noticed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from qworkspace.config.models import HomeConfig
from qworkspace.workspace.history import Reload, ReloadHistory
from qworkspace.workspace.reload import Reloader
from qworkspace.workspace.services import ServiceDescriptor
from qworkspace.workspace.snapshot import Shape
from qworkspace.workspace.watch import Found, Watch
from qworkspace.workspace.watchers import DRIVERS, HOME, PLUGINS, AgentConfigWatcher, HomeConfigWatcher
from qworkspace.workspace.workspace import Workspace
from tests.support.agents import Agency, settled, stopped
from tests.support.services import Bench, Recorder


class Hands(Watch):
    """Stands in for the watch: a test says which names differ."""

    def __init__(self) -> None:
        self.followed: dict[str, tuple[Path, Found]] = {}
        self.slow: asyncio.Event | None = None

    async def follow(self, key: str, root: Path, shape: Shape, found: Found) -> None:
        if self.slow is not None:
            await self.slow.wait()
        self.followed[key] = (root, found)

    def leave(self, key: str) -> None:
        self.followed.pop(key, None)


class Kept(ReloadHistory):
    """A history in memory."""

    def __init__(self) -> None:
        self.reloads: list[Reload] = []

    async def add(self, reload: Reload) -> Reload:
        self.reloads.append(reload)
        return reload

    async def drained(self, reload: Reload, drain_ms: float) -> None:
        """Nothing is asked about it here."""


class Cards(Recorder):
    """A drivers' service that writes down what it is told; `hang` holds the named drivers up, `fail` fails them."""

    def __init__(self, bench: Bench, name: str) -> None:
        super().__init__(name, bench.journal, clock=bench.clock)
        self.told: list[str] = []
        self.hang: dict[str, asyncio.Event] = {}
        self.fail: dict[str, Exception] = {}

    async def reload_driver(self, name: str) -> None:
        self.told.append(f"reload {name}")
        if name in self.hang:
            await self.hang[name].wait()
        if name in self.fail:
            raise self.fail[name]

    async def remove_driver(self, name: str) -> None:
        self.told.append(f"remove {name}")


class EditedHome(Agency):
    """An agency whose files are edited. Its agents have `drivers` and `plugins` beside `main` and `chats`."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.cards: dict[str, Cards] = {}
        self.registry.services.add(DRIVERS, self._drivers, owner="test")
        self.registry.services.add(PLUGINS, self._plugins, owner="test")
        self.hands = Hands()
        self.history = Kept()
        self.reloader = Reloader(self.manager, self.registry, self.shared, self.history)
        self.agent_files = AgentConfigWatcher(self.hands, self.manager, self.reloader, self.shared)
        self.home_files = HomeConfigWatcher(self.hands, self.manager, self.reloader, self.shared)
        self.homes: list[HomeConfig] = []
        self.home_files.on_change = self.homes.append

    async def open(self, *running: str) -> None:
        await self.home_files.start()
        self.agent_files.start()
        for name in running:
            await self.manager.get(name)
        await settled(self, 1)
        self.history.reloads.clear()

    async def edit(self, name: str, content: Any, *, key: str = "anna") -> None:
        """Write a file of the agent (None removes it), which is noticed."""
        path = (self.home if key == HOME else self.home / "workspaces" / key) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        await self.noticed(key, name)

    async def noticed(self, key: str, *names: str) -> None:
        await self.hands.followed[key][1](set(names))
        await settled(self, 1)

    async def edit_home(self, **changes: Any) -> None:
        whole = json.loads((self.home / "config.json").read_text())
        await self.edit("config.json", whole | changes, key=HOME)

    async def edit_profiles(self, **profiles: dict[str, Any] | None) -> None:
        """Change entries of `agents.profiles`; None takes one out."""
        whole = json.loads((self.home / "config.json").read_text())
        agents = whole["agents"]
        merged = {**agents["profiles"], **profiles}
        kept = {name: profile for name, profile in merged.items() if profile is not None}
        await self.edit("config.json", whole | {"agents": agents | {"profiles": kept}}, key=HOME)

    async def close(self) -> None:
        await self.agent_files.stop()
        await stopped(self)
        await self.reloader.stop()

    def shown(self) -> list[str]:
        return [problem.key for problem in self.problems.of()]

    def outcomes(self) -> list[str]:
        return [reload.outcome.value for reload in self.history.reloads]

    def _drivers(self, workspace: Workspace) -> ServiceDescriptor:
        def make(_: object) -> Recorder:
            return self.cards.setdefault(workspace.agent_id, Cards(self, f"{workspace.agent_id}/drivers"))

        return ServiceDescriptor(DRIVERS, make, 30, sections=("drivers",))

    def _plugins(self, workspace: Workspace) -> ServiceDescriptor:
        def make(_: object) -> Recorder:
            return Recorder(f"{workspace.agent_id}/plugins", self.journal)

        return ServiceDescriptor(PLUGINS, make, 40)
