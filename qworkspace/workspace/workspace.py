"""One agent's whole runtime: its configuration, its registries, its services, and who holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qworkspace.base.ids import AgentId
from qworkspace.base.scope import Scope, acting_as
from qworkspace.base.waiting import happens_within
from qworkspace.chat.live import LiveTurn, StopReason
from qworkspace.chat.runner import TurnRunner
from qworkspace.chat.turn import TurnMachine
from qworkspace.config.models import AgentConfig
from qworkspace.memory.contract import BaseMemoryManager, NoMemory
from qworkspace.plugins.extensions import Extensions
from qworkspace.sessions.store import SessionStore
from qworkspace.workspace.services import RunningService, ServiceDescriptor, ServiceLimits, ServiceManager
from qworkspace.workspace.shared import SharedServices

SESSIONS = "sessions"
CHATS = "chats"
MEMORY = "memory"
LOOK_AGAIN_SECONDS = 1.0

Declare = Callable[["Workspace"], ServiceDescriptor]
Assemble = Callable[["Workspace"], TurnMachine]
Install = Callable[["Workspace"], None]


class Current:
    """Which instance of one agent acts. Services that move from one instance to the next ask here, at each use."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    async def execute(self, live: LiveTurn) -> None:
        """Run the turn on the instance that acts now; it ends there, whatever replaces that instance meanwhile."""
        await self.workspace.execute(live)


class Workspace:
    """One instance of one agent. Making it does nothing; it lives from `start` to `stop`."""

    def __init__(
        self,
        agent_id: AgentId,
        directory: Path,
        config: AgentConfig,
        shared: SharedServices,
        *,
        services: Iterable[Declare],
        turns: Assemble,
        started: Iterable[Install] = (),
        generation: int = 1,
        current: Current | None = None,
        limits: ServiceLimits | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.directory = directory
        self.config = config
        self.shared = shared
        self.generation = generation
        self.extensions = Extensions()
        self.current = current if current is not None else Current(self)
        self.last_used = shared.clock.monotonic()
        self._holders = 0
        self._lives: set[LiveTurn] = set()
        self._released = asyncio.Event()
        self._assemble = turns
        self._when_started = tuple(started)
        self._turns: TurnMachine | None = None
        self.services = ServiceManager(
            [declare(self) for declare in services],
            clock=shared.clock,
            problems=shared.problems,
            owner=agent_id,
            generation=generation,
            limits=limits,
        )

    async def start(self, handed_over: Mapping[str, RunningService] | None = None) -> None:
        """Build and warm up all services, without an effect outside; all or nothing."""
        with acting_as(Scope(self.agent_id, self.directory)):
            await self.services.start(handed_over)
            try:
                for install in self._when_started:
                    install(self)
            except BaseException:
                await self.services.stop()
                raise

    def activate(self) -> None:
        """Begin to act by itself; see `ServiceManager.activate`."""
        with acting_as(Scope(self.agent_id, self.directory)):
            self.services.activate()

    def deactivate(self, keep: Collection[str] = ()) -> list[str]:
        """Stop acting by itself, at once; turns go on. The services that resisted."""
        return self.services.deactivate(keep)

    async def drain(self, seconds: float) -> None:
        """Take no new turns for good, and give the running ones `seconds`."""
        runner = self._runner()
        if runner is not None:
            await runner.drain(seconds)

    async def stop(self, keep: Collection[str] = ()) -> None:
        """End the services, except for `keep`; turns that still run are stored as interrupted. Idempotent."""
        await self.services.stop(keep)

    @property
    def sessions(self) -> SessionStore:
        """Its conversations."""
        store: SessionStore = self.services.get(SESSIONS)
        return store

    @property
    def runner(self) -> TurnRunner:
        """Its turns."""
        runner: TurnRunner = self.services.get(CHATS)
        return runner

    @property
    def memory(self) -> BaseMemoryManager:
        """What it remembers with; one that remembers nothing where there is none, or where it could not start."""
        found: BaseMemoryManager | None = self.services.find(MEMORY) if MEMORY in self.services else None
        return found if found is not None else NoMemory()

    @property
    def busy(self) -> bool:
        """Whether anything holds it: turns that run, wait or arrive, memory at work, or somebody who uses it."""
        return self._holders > 0 or (self.current.workspace is self and (self._turns_pending() or self.memory.busy))

    def touch(self) -> None:
        """It was asked for just now."""
        self.last_used = self.shared.clock.monotonic()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep this instance alive during the block."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self.touch()
            self._released.set()

    async def until_idle(self, seconds: float) -> bool:
        """Wait until nothing holds it, `seconds` at most; whether that is so."""
        clock = self.shared.clock
        end = clock.monotonic() + seconds
        while self.busy and (left := end - clock.monotonic()) > 0:
            self._released.clear()
            await happens_within(self._released, min(left, LOOK_AGAIN_SECONDS), clock)
        return not self.busy

    async def execute(self, live: LiveTurn) -> None:
        """Run one turn on this instance, which it holds until its end."""
        with self.hold():
            self._lives.add(live)
            try:
                await self.turns.execute(live)
            finally:
                self._lives.discard(live)

    @property
    def running_turns(self) -> int:
        """Turns that run on this instance, replaced or not."""
        return len(self._lives)

    async def end_turns(self) -> None:
        """Store the turns that still run on this instance as interrupted, and wait for that."""
        ending = list(self._lives)
        for live in ending:
            live.cancel(StopReason.LIMIT)
        if ending:
            await asyncio.wait([live.done for live in ending])

    @property
    def turns(self) -> TurnMachine:
        """What carries out turns, put together at the first one."""
        if self._turns is None:
            self._turns = self._assemble(self)
        return self._turns

    def adopt(self, config: AgentConfig) -> None:
        """Take over fields that no service holds; they count from the next turn on."""
        self.config = config
        self._turns = None

    def state(self) -> dict[str, Any]:
        """The services' states, for status: JSON values."""
        return {
            name: {"state": status.state.value} | ({"reason": status.reason} if status.reason else {})
            for name, status in self.services.states().items()
        }

    def turn_counts(self) -> tuple[int, int]:
        """How many turns run, and how many wait."""
        runner = self._runner()
        return (runner.active, runner.queued) if runner is not None else (0, 0)

    def _turns_pending(self) -> bool:
        runner = self._runner()
        return runner is not None and runner.busy

    def _runner(self) -> TurnRunner | None:
        runner: TurnRunner | None = self.services.find(CHATS) if CHATS in self.services else None
        return runner
