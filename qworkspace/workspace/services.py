"""The services of a workspace: their order, their four-step life cycle, and their move to the next instance."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.base.problems import Problems
from qworkspace.base.registry import Undo
from qworkspace.base.waiting import to_the_end
from qworkspace.config.plan import movable
from qworkspace.errors import Conflict, Duplicate, InvalidInput, NotFound, Unavailable
from qworkspace.workspace.running import (
    RunningService,
    Service,
    ServiceLimits,
    ServiceState,
    Trouble,
    describe,
)

__all__ = [
    "RunningService",
    "Service",
    "ServiceDescriptor",
    "ServiceLimits",
    "ServiceManager",
    "ServiceState",
    "ServiceStatus",
    "arrange",
    "movable",
]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceDescriptor:
    """How a service is made and what it stands on.

    Lower priorities start first; those of one priority that are `concurrent` start together. `sections` are the
    parts of the agent's configuration that it reads, as dotted names (`heartbeat`, `running.memory`). An `optional`
    one that cannot start is absent, with a visible reason. `make` is given the manager, to `get` or `find` others.
    """

    name: str
    make: Callable[[ServiceManager], Service]
    priority: int
    sections: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    optional: bool = False
    concurrent: bool = False


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service as status shows it; `reason` says why it failed."""

    state: ServiceState
    reason: str = ""


def arrange(descriptors: Iterable[ServiceDescriptor]) -> list[list[ServiceDescriptor]]:
    """Batches in the order of starting; the services of one batch start together. Wrong dependencies are refused."""
    known: dict[str, ServiceDescriptor] = {}
    for descriptor in descriptors:
        if descriptor.name in known:
            raise Duplicate(f"service {descriptor.name!r} is declared twice")
        known[descriptor.name] = descriptor
    for descriptor in known.values():
        _check_dependencies(descriptor, known)
    by_priority = sorted(known.values(), key=lambda descriptor: descriptor.priority)
    groups = itertools.groupby(by_priority, key=lambda descriptor: descriptor.priority)
    return [batch for _, group in groups for batch in _batches(list(group))]


def _check_dependencies(descriptor: ServiceDescriptor, known: Mapping[str, ServiceDescriptor]) -> None:
    for name in descriptor.depends_on:
        needed = known.get(name)
        if needed is None:
            raise _misdeclared(f"service {descriptor.name!r} depends on {name!r}, which is not declared")
        if needed.priority > descriptor.priority:
            raise _misdeclared(
                f"service {descriptor.name!r} (priority {descriptor.priority}) depends on {name!r},"
                f" which starts later (priority {needed.priority})"
            )


def _batches(group: list[ServiceDescriptor]) -> list[list[ServiceDescriptor]]:
    batches: list[list[ServiceDescriptor]] = []
    while group:
        waiting = {descriptor.name for descriptor in group}
        free = [descriptor for descriptor in group if not waiting.intersection(descriptor.depends_on)]
        if not free:
            raise _misdeclared(f"services depend on each other in a circle: {', '.join(sorted(waiting))}")
        batch = [descriptor for descriptor in free if descriptor.concurrent] if free[0].concurrent else free[:1]
        batches.append(batch)
        group = [descriptor for descriptor in group if descriptor not in batch]
    return batches


def _misdeclared(message: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_services")


class ServiceManager:
    """The services of one instance of one agent. Its start is all or nothing, and it never starts twice."""

    def __init__(
        self,
        descriptors: Sequence[ServiceDescriptor],
        *,
        clock: Clock,
        problems: Problems,
        owner: str,
        generation: int = 1,
        limits: ServiceLimits | None = None,
    ) -> None:
        self.owner = owner
        self.descriptors = tuple(descriptors)
        self._batches = arrange(descriptors)
        self._clock = clock
        self._problems = problems
        self._key = f"service:{owner}.{generation}"
        self._limits = limits or ServiceLimits()
        self._declared = {descriptor.name: descriptor for descriptor in self.descriptors}
        self._running: dict[str, RunningService] = {}
        self._held: list[str] = []
        self._absent: dict[str, str] = {}
        self._trouble = Trouble(problems, self._key, owner)
        self._began = False

    async def start(self, handed_over: Mapping[str, RunningService] | None = None) -> None:
        """Start all but the handed-over services, which move here as they are. A failure undoes everything."""
        if self._began:
            raise Conflict(f"the services of {self.owner!r} were started before")
        self._began = True
        given = handed_over or {}
        try:
            for batch in self._batches:
                await self._start_batch(batch, given)
        except BaseException:
            await self.stop()
            raise

    def activate(self) -> None:
        """Let all of them act, in order; those that act already go on. A failure ends what this call began.

        An optional service that fails is reported and stays quiet; the others go on.
        """
        activated: list[RunningService] = []
        for running in self._in_order():
            if running.state is ServiceState.ACTIVE:
                continue
            try:
                running.activate()
            except Exception as error:
                if self._declared[running.name].optional:
                    self._miss(running.name, error)
                    continue
                for earlier in reversed(activated):
                    earlier.deactivate()
                raise
            activated.append(running)

    def deactivate(self, keep: Collection[str] = ()) -> list[str]:
        """End at once what they do by themselves, in reverse, except for `keep`; the names of those that resisted."""
        leaving = [running for running in reversed(self._in_order()) if running.name not in keep]
        return [running.name for running in leaving if not running.deactivate()]

    async def stop(self, keep: Collection[str] = ()) -> None:
        """Stop all in reverse, except for `keep` and those that another manager holds too. Idempotent.

        It goes on to the end when the caller is cancelled meanwhile.
        """
        await to_the_end(self._stop(keep), name=f"{self.owner}/stop")

    def get(self, name: str) -> Any:
        """The started service of that name. `Unavailable` with the reason when it is absent or not started."""
        service = self.find(name)
        if service is None:
            reason = self._absent.get(name, "it is not started")
            raise Unavailable(f"{name} of agent {self.owner!r} is not available: {reason}", service=name)
        return service

    def find(self, name: str) -> Any | None:
        """The started service of that name, or None when it is absent. An undeclared name is an error."""
        if name not in self._declared:
            raise NotFound("service", name)
        running = self._running.get(name)
        return running.service if running is not None and name not in self._absent else None

    def running(self, names: Collection[str]) -> dict[str, RunningService]:
        """Those of the named services that run: what the next instance may be handed."""
        ended = (ServiceState.FAILED, ServiceState.STOPPED)
        return {n: r for n, r in self._running.items() if n in names and n not in self._absent and r.state not in ended}

    def supervise(self, name: str, run: Callable[[], Awaitable[None]], *, task: str = "run") -> Undo:
        """Keep `run` running for the service `name`; see `RunningService.supervise`."""
        return self._running[name].supervise(task, run)

    def supervisor(self, name: str) -> Callable[[str, Callable[[], Awaitable[None]]], Undo]:
        """`supervise(task, run)` of the service `name`, for the service to keep: it moves with it."""
        return self._running[name].supervise

    def __contains__(self, name: object) -> bool:
        """Whether a service of that name is declared."""
        return name in self._declared

    def states(self) -> dict[str, ServiceStatus]:
        """Every declared service with its state, and why it failed."""
        return {descriptor.name: self._status(descriptor.name) for descriptor in self.descriptors}

    async def _start_batch(self, batch: list[ServiceDescriptor], given: Mapping[str, RunningService]) -> None:
        fresh: list[ServiceDescriptor] = []
        for descriptor in batch:
            moved = given.get(descriptor.name)
            if moved is None:
                fresh.append(descriptor)
            else:
                self._hold(moved)
        if len(fresh) == 1:
            await self._start_one(fresh[0])
        elif fresh:
            await asyncio.gather(*(self._start_one(descriptor) for descriptor in fresh))

    async def _start_one(self, descriptor: ServiceDescriptor) -> None:
        name = descriptor.name
        running = RunningService(
            name,
            lambda: descriptor.make(self),
            agent_id=self.owner,
            clock=self._clock,
            trouble=Trouble(self._problems, f"{self._key}:{name}", self.owner),
            limits=self._limits,
        )
        self._hold(running)
        try:
            await running.start()
        except Exception as error:
            if not descriptor.optional:
                error.add_note(f"while starting service {name!r} of agent {self.owner!r}")
                raise
            logger.exception("%s: optional service failed to start", running.label)
            self._miss(name, error)

    def _hold(self, running: RunningService) -> None:
        running.users += 1
        self._running[running.name] = running
        self._held.append(running.name)

    def _miss(self, name: str, error: BaseException) -> None:
        self._absent[name] = describe(error)
        self._trouble.report(name, f"{name} of agent {self.owner!r} is off: {describe(error)}")

    async def _stop(self, keep: Collection[str]) -> None:
        self._began = True
        for batch in reversed(self._batches):
            leaving = [self._running[d.name] for d in reversed(batch) if d.name in self._held]
            for running in leaving:
                self._held.remove(running.name)
                running.users -= 1
            ending = [running for running in leaving if running.users == 0 and running.name not in keep]
            await asyncio.gather(*(running.stop() for running in ending))
        self._trouble.clear_all()

    def _in_order(self) -> list[RunningService]:
        """Those that are held here and present, in the order of starting."""
        names = [descriptor.name for batch in self._batches for descriptor in batch]
        return [self._running[name] for name in names if name in self._held and name not in self._absent]

    def _status(self, name: str) -> ServiceStatus:
        if name in self._absent:
            return ServiceStatus(ServiceState.FAILED, self._absent[name])
        running = self._running.get(name)
        if running is None:
            return ServiceStatus(ServiceState.NEW)
        failed = running.state is ServiceState.FAILED and running.error is not None
        return ServiceStatus(running.state, describe(running.error) if failed and running.error else "")
