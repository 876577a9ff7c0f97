"""A home with agents whose services are recorders: for everything about their coming and going."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from qworkspace.base.tasks import Threads
from qworkspace.base.waiting import ends_within
from qworkspace.config.models import AgentConfig
from qworkspace.config.store import ConfigStore
from qworkspace.memory.parts import DaemonMemory
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.registry import WorkspaceRegistry
from qworkspace.workspace.services import ServiceDescriptor, ServiceLimits
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.workspace import CHATS, Current, Workspace
from tests.support.services import Bench, Recorder

T = TypeVar("T")


class CountedThreads(Threads):
    """Real threads that tell whether they are at work: simulated time waits for them."""

    def __init__(self, workers: int = 1) -> None:
        super().__init__(workers)
        self.at_work = 0

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        self.at_work += 1
        future = super().submit(function)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self.at_work -= 1


class InlineThreads(Threads):
    """Runs blocking work at once, so that simulated time stays in step."""

    def __init__(self) -> None: ...

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        result = function(*args, **kwargs)
        await asyncio.sleep(0)
        return result

    def close(self) -> None: ...


class Chats(Recorder):
    """Stands in for the runner of turns: a turn is some seconds during which it holds the acting instance."""

    def __init__(self, bench: Bench, name: str, current: Current, wrong: Sequence[str] = ()) -> None:
        super().__init__(name, bench.journal, wrong=wrong, clock=bench.clock)
        self.active = 0
        self.queued = 0
        self.closed = False
        self._current = current
        self._turns: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return self.active > 0

    def turn(self, seconds: float) -> asyncio.Task[None]:
        """Begin a turn of that length."""
        self.active += 1
        task = asyncio.create_task(self._turn(seconds))
        self._turns.add(task)
        return task

    async def drain(self, timeout: float) -> None:
        self.closed = True
        if self._turns and timeout > 0:
            assert self._clock is not None
            await ends_within(asyncio.gather(*self._turns, return_exceptions=True), timeout, self._clock)
        for task in list(self._turns):
            task.cancel()
        if self._turns:
            await asyncio.wait(self._turns)

    async def stop(self) -> None:
        await self.drain(0)
        await super().stop()

    async def _turn(self, seconds: float) -> None:
        try:
            with self._current.workspace.hold():
                await self._clock_sleep(seconds)
        finally:
            self.active -= 1
            self._turns.discard(cast(asyncio.Task[None], asyncio.current_task()))

    async def _clock_sleep(self, seconds: float) -> None:
        assert self._clock is not None
        await self._clock.sleep(seconds)


class Agency(Bench):
    """A home, its agents and their manager. Each agent has the services `main` (a recorder) and `chats`.

    `clashes` names the agents of which two instances acted at once.
    """

    def __init__(
        self,
        home: Path,
        agents: Sequence[str] = ("anna",),
        *,
        eager: Sequence[str] = (),
        disabled: Sequence[str] = (),
        lifecycle: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.home = home
        self.wrong: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}
        self.stop_seconds: dict[str, float] = {}
        self.starting: set[str] = set()
        self.most_starting = 0
        self.mains: list[Recorder] = []
        self.clashes: list[str] = []
        self.storing = CountedThreads()
        self.write(agents, eager=eager, disabled=disabled, lifecycle=lifecycle)
        self.config = ConfigStore(home, environ={})
        self.shared = SharedServices(
            clock=self.clock, threads=InlineThreads(), bus=self.bus, problems=self.problems, config=self.config,
            models=cast(Any, None), approvals=cast(Any, None), inbox=cast(Any, None),
            memory=DaemonMemory(InlineThreads(), self.clock, home),
        )  # fmt: skip
        self.registry = WorkspaceRegistry(self.shared, cast(Any, None), limits=ServiceLimits())
        self.registry.services.add("main", self._main, owner="test")
        self.registry.services.add(CHATS, self._chats, owner="test")
        self.manager = MultiAgentManager(self.shared, self.registry)

    def write(
        self,
        agents: Sequence[str],
        *,
        eager: Sequence[str] = (),
        disabled: Sequence[str] = (),
        lifecycle: dict[str, Any] | None = None,
    ) -> None:
        """config.json with these agents, and an agent.json for each."""
        profiles = {
            name: {
                "workspace_dir": f"workspaces/{name}",
                "enabled": name not in disabled,
                "start": "eager" if name in eager else "lazy",
            }
            for name in agents
        }
        whole = {"agents": {"active_agent": "none", "profiles": profiles}, "lifecycle": lifecycle or {}}
        write_json(self.home / "config.json", whole)
        for name in agents:
            self.write_agent(name, {"id": name})

    def write_agent(self, name: str, raw: Any) -> None:
        write_json(self.home / "workspaces" / name / "agent.json", raw)

    def instance(self, generation: int, current: Current) -> Workspace:
        """The next instance of `current`, made and not started."""
        old = current.workspace
        return self.registry.create(
            old.agent_id, old.directory, AgentConfig(id=old.agent_id), generation=generation, current=current
        )

    def chats(self, agent_id: str) -> Chats:
        workspace = self.manager.find(agent_id)
        assert workspace is not None
        return cast(Chats, workspace.services.get(CHATS))

    def events(self, *types: str) -> list[dict[str, Any]]:
        """The data of the bus' events of these types, in order."""
        return [{"type": e.type, **e.data} for e in self.bus.log.since(0) if e.type in types]

    def _main(self, workspace: Workspace) -> ServiceDescriptor:
        name = workspace.agent_id

        def make(_: object) -> Recorder:
            return _Counted(self, name)

        return ServiceDescriptor("main", make, 10, sections=("heartbeat",))

    def _chats(self, workspace: Workspace) -> ServiceDescriptor:
        def make(_: object) -> Recorder:
            return Chats(self, f"{workspace.agent_id}/chats", workspace.current)

        return ServiceDescriptor(CHATS, make, 20)

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        self.starting.add(name)
        self.most_starting = max(self.most_starting, len(self.starting))
        try:
            yield
        finally:
            self.starting.discard(name)


class _Counted(Recorder):
    """A recorder that tells the agency while it starts."""

    def __init__(self, agency: Agency, name: str) -> None:
        super().__init__(
            name, agency.journal, wrong=agency.wrong.get(name, ()), clock=agency.clock,
            start_seconds=agency.seconds.get(name, 0.0), stop_seconds=agency.stop_seconds.get(name, 0.0),
        )  # fmt: skip
        self._agency = agency

    async def start(self) -> None:
        with self._agency.counting(self.name):
            await super().start()

    def activate(self) -> None:
        others = [other for other in self._agency.mains if other.name == self.name and other.acting]
        if others and others != [self]:
            self._agency.clashes.append(self.name)
        self._agency.mains.append(self)
        super().activate()


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def read_once(home: Path) -> None:
    """Read a configuration: the first time in a process takes 0.1 s, which the daemon spends in a thread."""
    write_json(home / "config.json", {"agents": {"profiles": {"first": {}}}})
    write_json(home / "workspaces" / "first" / "agent.json", {"id": "first"})
    ConfigStore(home, environ={}).load_agent("first")


async def settled(agency: Agency, seconds: float = 0.0) -> None:
    """Let what is under way go on to where it waits, move time on, and let that have its effect."""
    for step in (0.0, 0.0, seconds, 0.0, 0.0):
        await agency.clock.advance(step)
        while agency.storing.at_work:
            await asyncio.sleep(0.001)
            await agency.clock.advance(0)


async def passing(agency: Agency, seconds: int) -> None:
    """Let time pass a second at a time, so that what follows from one another happens at its time."""
    for _ in range(seconds):
        await settled(agency, 1)


async def stopped(agency: Agency) -> None:
    """Stop the manager, however long that takes."""
    stopping = asyncio.create_task(agency.manager.stop(0))
    while not stopping.done():
        await passing(agency, 5)
    await stopping
