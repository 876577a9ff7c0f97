"""A daemon with three more services per agent: one stands in for a scheduler, and ticks ten times a second.

    python -m tests.support.ticking up --home HOME --port 0

Every tick, and every begin and end of acting, is a line in `ticks` of the workspace: `tick SLOT GENERATION`,
`begin GENERATION`, `end GENERATION`. A slot that nobody ticks, or that two do, is a job that was lost or ran twice.
The services `drivers` and `plugins` only write down what happens to them, in the files `drivers.said` and
`plugins.said`: `start GENERATION`, `reload NAME`, `remove NAME`, `stop GENERATION`.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import qworkspace.assembly
from qworkspace.base.tasks import Tasks
from qworkspace.cli.main import main
from qworkspace.equipment import equip
from qworkspace.workspace.registry import WorkspaceRegistry
from qworkspace.workspace.services import ServiceDescriptor, ServiceManager
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.watchers import DRIVERS, PLUGINS
from qworkspace.workspace.workspace import Workspace

SECTIONS = ("heartbeat", "cron", "channels", "proactive", "running.memory")
SLOT = 0.1


class Ticker:
    """Ticks in every slot from its beginning to its end; the next one goes on with the next slot."""

    next_slot: dict[str, int] = {}  # what a scheduler keeps on disk

    def __init__(self, workspace: Workspace) -> None:
        self._agent = workspace.agent_id
        self._generation = workspace.generation
        self._path: Path = workspace.directory / "ticks"
        self._file = -1
        self._tasks = Tasks("ticker")
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        await asyncio.sleep(0.02)  # warming up takes a while

    def activate(self) -> None:
        self._write(f"begin {self._generation}")
        self.next_slot.setdefault(self._agent, int(time.monotonic() / SLOT) + 1)
        self._running = self._tasks.start(self._tick(), name=str(self._generation))

    def deactivate(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._write(f"end {self._generation}")

    async def stop(self) -> None:
        await self._tasks.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def _tick(self) -> None:
        while True:
            slot = self.next_slot[self._agent]
            await asyncio.sleep(max(0.0, slot * SLOT - time.monotonic()))
            self._write(f"tick {slot} {self._generation}")
            self.next_slot[self._agent] = slot + 1

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


class Recording:
    """Writes down its start and end, and which drivers it was told of."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._generation = workspace.generation
        self._path = workspace.directory / f"{name}.said"
        self._started = False

    async def start(self) -> None:
        self._started = True
        self._write(f"start {self._generation}")

    def activate(self) -> None:
        """Does nothing by itself."""

    def deactivate(self) -> None:
        """Does nothing by itself."""

    async def stop(self) -> None:
        if self._started:
            self._started = False
            self._write(f"stop {self._generation}")

    async def reload_driver(self, name: str) -> None:
        self._write(f"reload {name}")

    async def remove_driver(self, name: str) -> None:
        self._write(f"remove {name}")

    def _write(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def declare(workspace: Workspace) -> ServiceDescriptor:
    def make(_: ServiceManager) -> Ticker:
        return Ticker(workspace)

    return ServiceDescriptor("ticker", make, 40, sections=SECTIONS)


def drivers(workspace: Workspace) -> ServiceDescriptor:
    def make(_: ServiceManager) -> Recording:
        return Recording(workspace, DRIVERS)

    return ServiceDescriptor(DRIVERS, make, 30, sections=("drivers",))


def plugins(workspace: Workspace) -> ServiceDescriptor:
    def make(_: ServiceManager) -> Recording:
        return Recording(workspace, PLUGINS)

    return ServiceDescriptor(PLUGINS, make, 30)


def with_ticker(shared: SharedServices) -> WorkspaceRegistry:
    registry = equip(shared)
    registry.services.add("ticker", declare, owner="test")
    registry.services.add(DRIVERS, drivers, owner="test")
    registry.services.add(PLUGINS, plugins, owner="test")
    return registry


if __name__ == "__main__":
    vars(qworkspace.assembly)["equip"] = with_ticker
    main()
