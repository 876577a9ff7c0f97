"""One agent's place in the table of agents: at most one instance of it acts, and it is started by one start."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum

from qworkspace.base.ids import AgentId
from qworkspace.base.tasks import Tasks
from qworkspace.errors import Conflict, Denied, NotFound, QworkspaceError, Unavailable
from qworkspace.workspace.running import describe
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

Open = Callable[[int], Awaitable[Workspace]]


class AgentState(StrEnum):
    """Where an agent is. `Seat` is the one writer; `DISABLED` stands for agents that have no seat."""

    DORMANT = "dormant"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"
    DISABLED = "disabled"


@dataclass(slots=True)
class Pending:
    """A start or an end that is under way, for all who wait for it."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    error: QworkspaceError | None = None


class Seat:
    """Starts, lends, replaces and ends the instance of one agent.

    Every decision is taken and written down without waiting in between, so no two of them can cross: that is the
    lock. Nothing slow happens under it.
    """

    def __init__(self, agent_id: AgentId, open: Open, shared: SharedServices, tasks: Tasks) -> None:
        self.agent_id = agent_id
        self.state = AgentState.DORMANT
        self.workspace: Workspace | None = None
        self.generation = 0
        self.error = ""
        self._open = open
        self._shared = shared
        self._tasks = tasks
        self._refusal: QworkspaceError | None = None
        self._starting: Pending | None = None
        self._ending: Pending | None = None

    async def get(self) -> Workspace:
        """The running instance, started if need be. Never one that is ending: its end is awaited first.

        A failed start is told to all who waited for it; the next `get` tries again.
        """
        while True:
            if self._refusal is not None:
                raise self._refusal
            if self._ending is not None:
                await self._ending.done.wait()
            elif self.workspace is not None:
                self.workspace.touch()
                return self.workspace
            else:
                starting = self._starting or self._begin_start()
                await starting.done.wait()
                if starting.error is not None:
                    raise starting.error.with_traceback(None)

    def swap(self, old: Workspace, new: Workspace, moved: Collection[str] = ()) -> None:
        """Let `new` act in place of `old`, in one step; ending `old` is the caller's.

        `moved` services act on untouched. When `new` cannot act, or `old` cannot be made quiet, `old` acts as before
        and the error is raised. `Conflict` when `old` is not the running instance any more.
        """
        if self.workspace is not old or self._ending is not None or old.current is not new.current:
            raise Conflict(f"this instance of agent {self.agent_id!r} is not the running one and cannot be replaced")
        resisted = old.deactivate(keep=moved)
        old.current.workspace = new
        try:
            if resisted:
                raise Conflict(f"agent {self.agent_id!r}: {', '.join(resisted)} could not be made quiet")
            new.activate()
        except Exception:
            old.current.workspace = old
            old.activate()
            raise
        self.workspace, self.generation = new, new.generation

    def readmit(self) -> None:
        """Let requests in again; an instance that only waited for its last turns acts again."""
        self._refusal = None
        if not self._break_off_draining() or self.workspace is None:
            return
        try:
            self.workspace.activate()
        except Exception:
            logger.exception("agent %s could not act again and is started anew", self.agent_id)
            self._begin_end("could not act again", 0.0)

    def reconsider(self) -> None:
        """The configuration has the agent, enabled: readmit, unless its old instance has to end for another reason."""
        if self.state is not AgentState.DRAINING or isinstance(self._refusal, Denied):
            self.readmit()

    def unload(self) -> Pending | None:
        """Begin to end the instance unless something holds it."""
        if self.workspace is None or self._ending is not None or self.workspace.busy:
            return None
        return self._begin_end("idle", 0.0)

    def withdraw(self, refusal: QworkspaceError, reason: str, patience: float) -> None:
        """Let nobody in from now on; what runs has `patience` seconds to finish, then the instance ends."""
        self._refusal = refusal
        if self._starting is not None:
            self._give_up_start(self._starting)
        elif self.workspace is not None and self._ending is None:
            self._begin_end(reason, patience)

    async def close(self, refusal: QworkspaceError, reason: str, patience: float) -> None:
        """Let nobody in, give running turns `patience` seconds, and return when the instance has ended."""
        self._refusal = refusal
        if self.workspace is not None:
            self.workspace.deactivate()
            await self.workspace.drain(patience)
        self._break_off_draining()
        while True:
            if self._ending is not None:
                await self._ending.done.wait()
            elif self._starting is not None:
                self._give_up_start(self._starting)
                await self._starting.done.wait()
            elif self.workspace is not None:
                self._begin_end(reason, 0.0)
            else:
                return

    def _break_off_draining(self) -> bool:
        """Wait no longer for the last turns: the instance is running again, or is ended by whoever calls this."""
        draining = self._ending
        if self.state is not AgentState.DRAINING or draining is None or draining.task is None:
            return False
        draining.task.cancel()
        self.state, self._ending = AgentState.RUNNING, None
        draining.done.set()
        return True

    def _begin_start(self) -> Pending:
        starting = self._starting = Pending()
        self.state = AgentState.STARTING
        # A context of its own: the workspace outlives the request that happened to start it.
        starting.task = contextvars.Context().run(
            self._tasks.start, self._start(starting), name=f"start {self.agent_id}"
        )
        starting.task.add_done_callback(lambda _: self._start_over(starting))
        return starting

    async def _start(self, starting: Pending) -> None:
        clock = self._shared.clock
        began = clock.monotonic()
        try:
            workspace = await self._open_acting()
            self._started(workspace, clock.monotonic() - began)
        except Exception as error:
            starting.error = self._failed(error)
        self._start_over(starting)

    def _start_over(self, starting: Pending) -> None:
        """Let those who wait go on; also when the start was cancelled, perhaps before its first step."""
        if self._starting is not starting:
            return
        self._starting = None
        if self.state is AgentState.STARTING:
            self.state = AgentState.DORMANT
            starting.error = self._refusal or Unavailable(f"the start of agent {self.agent_id!r} was given up")
        starting.done.set()

    async def _open_acting(self) -> Workspace:
        workspace = await self._open(self.generation + 1)
        await workspace.start()
        try:
            workspace.activate()
        except Exception:
            await workspace.stop()
            raise
        return workspace

    def _started(self, workspace: Workspace, seconds: float) -> None:
        self.workspace, self.generation = workspace, workspace.generation
        self.state, self.error = AgentState.RUNNING, ""
        self._shared.problems.clear(self._problem)
        self._tell("started", generation=self.generation, duration_ms=round(seconds * 1000))

    def _failed(self, error: Exception) -> QworkspaceError:
        told = _as_told(self.agent_id, error)
        if not isinstance(error, QworkspaceError):
            logger.error("agent %s could not start", self.agent_id, exc_info=error)
        self.state, self.error = AgentState.FAILED, told.message
        self._shared.problems.report(self._problem, told.message, agent_id=self.agent_id)
        self._tell("failed", code=told.code, message=told.message)
        return told

    def _give_up_start(self, starting: Pending) -> None:
        if starting.task is not None:
            starting.task.cancel()

    def _begin_end(self, reason: str, patience: float) -> Pending:
        if self.workspace is None:
            raise RuntimeError(f"agent {self.agent_id!r} has no instance to end")
        ending = self._ending = Pending()
        self.state = AgentState.DRAINING if patience > 0 else AgentState.STOPPING
        self.workspace.deactivate()
        ending.task = contextvars.Context().run(
            self._tasks.start, self._end(ending, self.workspace, reason, patience), name=f"end {self.agent_id}"
        )
        return ending

    async def _end(self, ending: Pending, workspace: Workspace, reason: str, patience: float) -> None:
        if patience > 0:
            await workspace.until_idle(patience)
        self.state = AgentState.STOPPING
        try:
            await workspace.stop()
        finally:  # a service that could not be stopped is shown; the agent can be started again
            self.workspace, self._ending = None, None
            self.state = AgentState.DORMANT
            ending.done.set()
            self._tell("stopped", reason=reason)

    def _tell(self, what: str, **facts: object) -> None:
        self._shared.bus.publish(f"workspace.{what}", agent_id=self.agent_id, **facts)

    @property
    def _problem(self) -> str:
        return f"agent:{self.agent_id}"


def _as_told(agent_id: str, error: Exception) -> QworkspaceError:
    """Why the agent did not start, as its callers are told: what they sent was not wrong."""
    if isinstance(error, Unavailable | NotFound | Denied):
        return error
    details = error.details if isinstance(error, QworkspaceError) else {}
    code = error.code if isinstance(error, QworkspaceError) else "agent_failed"
    told = Unavailable(f"agent {agent_id!r} cannot start: {describe(error)}", code=code, **details)
    told.__cause__ = error
    return told
