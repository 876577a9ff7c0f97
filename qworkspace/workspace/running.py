"""One service, the task that owns it from start to stop, and the tasks that it keeps running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from qworkspace.base.clock import Clock
from qworkspace.base.problems import Problems
from qworkspace.base.registry import Undo
from qworkspace.base.waiting import ends_within, happens_within
from qworkspace.errors import Unavailable

logger = logging.getLogger(__name__)


class ServiceState(StrEnum):
    """Where a service is in its life. `RunningService` is the one writer."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    ACTIVE = "active"
    INACTIVE = "inactive"
    STOPPED = "stopped"
    FAILED = "failed"


class Service(Protocol):
    """A part of a workspace. All four are called by its owner only, `start` and `stop` in one and the same task."""

    async def start(self) -> None:
        """Build and warm up, without an effect outside. May raise; `stop` is called then too."""

    def activate(self) -> None:
        """Begin to act; waits for nothing. May be called again after `deactivate`."""

    def deactivate(self) -> None:
        """Stop acting, at once; running turns are still served. Also called after an `activate` that raised."""

    async def stop(self) -> None:
        """Free everything. Idempotent, and right after a half-done start too."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Seconds that a service may take, and the pace at which a task that dies is run again."""

    start: float = 60.0
    stop: float = 10.0
    give_up: float = 2.0
    first_retry: float = 1.0
    longest_retry: float = 60.0
    healthy: float = 60.0


class Trouble:
    """What is wrong with one service at the moment, by part."""

    __slots__ = ("_agent_id", "_key", "_open", "_problems")

    def __init__(self, problems: Problems, key: str, agent_id: str) -> None:
        self._problems = problems
        self._key = key
        self._agent_id = agent_id
        self._open: dict[str, Undo] = {}

    def report(self, part: str, message: str) -> None:
        self._open[part] = self._problems.report(f"{self._key}:{part}", message, agent_id=self._agent_id)

    def clear(self, part: str) -> None:
        undo = self._open.pop(part, None)
        if undo is not None:
            undo()

    def clear_all(self) -> None:
        for part in list(self._open):
            self.clear(part)

    def __contains__(self, part: str) -> bool:
        return part in self._open


class RunningService:
    """A service with its owner task. It moves from one manager to the next as it is, task and all."""

    __slots__ = (
        "_acting",
        "_begun",
        "_clock",
        "_lasting",
        "_leave",
        "_limits",
        "_make",
        "_owner",
        "_while_active",
        "error",
        "label",
        "name",
        "service",
        "state",
        "trouble",
        "users",
    )

    def __init__(
        self,
        name: str,
        make: Callable[[], Service],
        *,
        agent_id: str,
        clock: Clock,
        trouble: Trouble,
        limits: ServiceLimits,
    ) -> None:
        self.name = name
        self.label = f"{agent_id}/{name}"
        self.state = ServiceState.NEW
        self.service: Service | None = None
        self.error: BaseException | None = None
        self.trouble = trouble
        self.users = 0  # managers that hold it; it ends with the last of them
        self._make = make
        self._clock = clock
        self._limits = limits
        self._acting = False
        self._owner: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._leave = asyncio.Event()
        self._lasting: set[asyncio.Task[None]] = set()
        self._while_active: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Make and start the service in its owner task; raises what it raises, or `Unavailable` when it hangs."""
        self.state = ServiceState.STARTING
        self._owner = asyncio.get_running_loop().create_task(self._own(), name=f"{self.label}/owner")
        if not await happens_within(self._begun, self._limits.start, self._clock):
            late = f"service {self.name!r} did not start within {self._limits.start:g} s"
            await self.stop()
            self.error = Unavailable(late, code="start_timeout", service=self.name)
            self.state = ServiceState.FAILED
        if self.state is ServiceState.FAILED and self.error is not None:
            raise self.error
        if self.state is not ServiceState.READY:
            raise Unavailable(f"service {self.name!r} was stopped while it started", service=self.name)

    def activate(self) -> None:
        """Let the service act. One that raises is made quiet again and failed."""
        if self.state is ServiceState.ACTIVE:
            return
        service = self._started()
        self._acting = True
        try:
            service.activate()
        except Exception as error:
            logger.exception("%s: activate failed", self.label)
            self._quieten(service)
            self.error, self.state = error, ServiceState.FAILED
            raise
        self.state = ServiceState.ACTIVE

    def deactivate(self) -> bool:
        """End what it does by itself. False when it resisted: that is shown as a problem."""
        if self.state is not ServiceState.ACTIVE or self.service is None:
            return True
        quiet = self._quieten(self.service)
        self.state = ServiceState.INACTIVE if quiet else ServiceState.FAILED
        return quiet

    async def stop(self) -> None:
        """End the service in its owner task; one that hangs is cancelled, then given up and shown. Idempotent."""
        if self._owner is None:
            return
        self._leave.set()
        if self.state is ServiceState.STARTING:
            self._owner.cancel()
        self.deactivate()
        if await ends_within(self._owner, self._limits.stop, self._clock):
            return
        logger.error("%s: did not stop within %g s and is cancelled", self.label, self._limits.stop)
        self._owner.cancel()
        if not await ends_within(self._owner, self._limits.give_up, self._clock):
            self.trouble.report("stop", f"{self.label}: does not end, not even cancelled; a restart frees it")

    def supervise(self, name: str, run: Callable[[], Awaitable[None]]) -> Undo:
        """Keep `run` running: one that raises is shown and run again after 1, 2, 4 … 60 s; one that returns is done.

        What is begun by `activate` or later ends with `deactivate`, the rest with `stop`; the undo ends it before.
        """
        work = self._keep_running(name, run)
        task = asyncio.get_running_loop().create_task(work, name=f"{self.label}/{name}")
        group = self._while_active if self._acting else self._lasting
        group.add(task)
        task.add_done_callback(group.discard)

        def undo() -> None:
            task.cancel()

        return undo

    def _started(self) -> Service:
        if self.service is None or self._owner is None or self._owner.done() or not self._begun.is_set():
            raise Unavailable(f"service {self.name!r} is {self.state}", service=self.name)
        return self.service

    async def _own(self) -> None:
        try:
            if await self._begin():
                self._begun.set()
                await self._leave.wait()
        finally:
            await self._free()

    async def _begin(self) -> bool:
        try:
            self.service = self._make()
            await self.service.start()
        except Exception as error:
            self.error, self.state = error, ServiceState.FAILED
            return False
        self.state = ServiceState.READY
        return True

    async def _free(self) -> None:
        """Stop the service; whoever waits for its start or end is let go in any case."""
        failed_to_start = self.state is ServiceState.FAILED and not self._begun.is_set()
        try:
            await self._end_tasks()
            if self.service is not None:
                await self.service.stop()
            self.state = ServiceState.FAILED if failed_to_start else ServiceState.STOPPED
        except BaseException as error:
            logger.exception("%s: stop failed", self.label)
            self.state = ServiceState.FAILED
            self.error = self.error or error
            if not isinstance(error, Exception):
                raise
        finally:
            self.trouble.clear_all()
            self._begun.set()

    async def _end_tasks(self) -> None:
        tasks = self._lasting | self._while_active
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _quieten(self, service: Service) -> bool:
        self._acting = False
        for task in self._while_active:
            task.cancel()
        try:
            service.deactivate()
        except Exception as error:
            logger.exception("%s: deactivate failed", self.label)
            self.trouble.report("deactivate", f"{self.label}: could not be made quiet: {describe(error)}")
            self.error = error
            return False
        return True

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        delay = self._limits.first_retry
        while True:
            began = self._clock.monotonic()
            try:
                await self._run_once(name, run)
                return
            except (Exception, asyncio.CancelledError) as error:
                if _is_being_cancelled():
                    raise
                logger.exception("%s: %s failed", self.label, name)
                self.trouble.report(name, f"{self.label}: {name} failed and is run again: {describe(error)}")
            if self._clock.monotonic() - began >= self._limits.healthy:
                delay = self._limits.first_retry
            await self._clock.sleep(delay)
            delay = min(delay * 2, self._limits.longest_retry)

    async def _run_once(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        if name not in self.trouble:
            await run()
            return
        healing = asyncio.get_running_loop().create_task(self._heal(name), name=f"{self.label}/{name}/heal")
        try:
            await run()
            self.trouble.clear(name)
        finally:
            healing.cancel()

    async def _heal(self, name: str) -> None:
        await self._clock.sleep(self._limits.healthy)
        self.trouble.clear(name)


def describe(error: BaseException) -> str:
    """`error` in one line for people: its message, with its class when that is not one of ours."""
    text = str(error).strip() or "no reason given"
    return str(getattr(error, "message", "")) or f"{type(error).__name__}: {text}"


def _is_being_cancelled() -> bool:
    """Whether the running task itself is asked to end, rather than something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
