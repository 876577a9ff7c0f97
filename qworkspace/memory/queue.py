"""The durable, serial queue of extractions: one worker, in order, never in the way of a reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database, T, Work
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Tasks
from qworkspace.errors import ModelError, Unavailable
from qworkspace.memory import queue_rows as rows
from qworkspace.memory.asking import is_no_model, is_outage
from qworkspace.memory.contract import SummarizeReason
from qworkspace.memory.extract import REMEMBERED, Extractor
from qworkspace.memory.outcomes import Outcome
from qworkspace.memory.queue_pauses import Pauses
from qworkspace.memory.queue_rows import Task, Trouble
from qworkspace.memory.queue_waiters import Waiters
from qworkspace.memory.unqueued import Unqueued
from qworkspace.sessions.models import Source
from qworkspace.sessions.store import SessionStore

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
PATIENCE = timedelta(hours=1)
"""How long a provider or disk may be down before that counts as failures of the task."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How the queue is. `waits_for` is empty while nothing holds it up, else a reason in words."""

    waiting: int = 0
    running: bool = False
    aside: int = 0
    waits_for: str = ""


class SummarizeQueue:
    """Extractions of one agent, in `memory.db` (component `queue`).

    Whoever works holds `actor`, so that a replaced queue and its successor never work at a time.
    """

    def __init__(
        self,
        database: Database,
        extractor: Extractor,
        sessions: SessionStore,
        *,
        interval: Callable[[], int],
        clock: Clock,
        problems: Problems,
        agent_id: str,
        actor: asyncio.Lock | None = None,
    ) -> None:
        self._database = database
        self._extractor = extractor
        self._interval = interval
        self._clock = clock
        self._problems = problems
        self._agent_id = agent_id
        self._actor = actor or asyncio.Lock()
        self._tasks = Tasks(f"memory/{agent_id}/queue")
        self._pauses = Pauses(clock)
        self._waiters = Waiters()
        self._unqueued = Unqueued(database, extractor, sessions, clock=clock)
        self._active = False
        self._again = False
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._timer_at = 0.0
        self._current = ""
        self._waiting = 0
        self._aside: set[str] = set()

    # life

    def activate(self) -> None:
        """Catch up on what was said and never queued, then work."""
        self._active = True
        self._unqueued.caught_up = False
        self._kick()

    def deactivate(self) -> None:
        """Stop at once; what is queued stays queued."""
        self._active = False
        for task in (self._worker, self._timer):
            if task is not None:
                task.cancel()
        for key in [*map(self._key, self._aside), self._provider_key, self._own_key]:
            self._problems.clear(key)
        self._waiters.fail(Unavailable("the agent's memory has stopped; what was asked for stays queued"))

    async def close(self) -> None:
        """End the worker. Idempotent."""
        self.deactivate()
        await self._tasks.close()

    def wake(self) -> None:
        """Something that was waited for may be there, for example a model: try at once."""
        self._pauses.end()
        self._kick()

    # wishes

    async def add(self, session_id: str, *, reason: SummarizeReason, upto_turn: str = "") -> str:
        """Queue what is new in the session, up to that turn (inclusive); the task's id. Durable when it returns."""
        now = self._clock.now()
        task_id = await self._write(lambda db: rows.add(db, session_id, reason, upto_turn, now))
        self._kick()
        return task_id

    async def turn_ended(self, session_id: str, turn_id: str, source: Source) -> None:
        """A turn has its answer: queue at every `interval`-th user turn, else when the session has been idle."""
        interval = self._interval()
        if interval <= 0 or source not in REMEMBERED:
            return
        if self._unqueued.count(session_id) >= interval:
            await self.add(session_id, reason="interval", upto_turn=turn_id)
            self._unqueued.forget(session_id)
        else:
            self._arm()

    async def summarize(self, session_id: str) -> int:
        """Extract what is new in the session now; the facts kept. Raises what the first failure was."""
        if not self._active:
            raise Unavailable("the agent's memory does not work at the moment; start the agent")
        with self._waiters.waiting(session_id) as kept:
            await self.add(session_id, reason="asked")
            self.wake()
            return await kept

    async def retry(self, task_id: str) -> None:
        """Take a task that was set aside up again; `NotFound` for any other."""
        await self._write(lambda db: rows.retry(db, task_id))
        await self._show_aside()
        self.wake()

    async def tasks(self, *, limit: int = 50) -> list[Task]:
        """The tasks, those that are not done first."""
        return await self._database.read(lambda db: rows.tasks(db, limit))

    async def idle(self) -> None:
        """Return when no task can be worked on now."""
        while self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    @property
    def busy(self) -> bool:
        """Whether a task is being worked on."""
        return bool(self._current)

    def status(self) -> QueueStatus:
        waits_for = self._pauses.reason if self._waiting else ""
        return QueueStatus(self._waiting, self.busy, len(self._aside), waits_for)

    # the worker: there is one while there is something to do

    def _kick(self) -> None:
        if not self._active:
            return
        self._again = True
        if self._worker is None or self._worker.done() or self._worker.cancelling():
            self._worker = self._tasks.start(self._run(self._worker), name="worker")

    async def _run(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        try:
            while self._again:
                self._again = False
                await self._look()
        except Exception as error:
            logger.exception("the summarize queue of %r failed", self._agent_id)
            self._pauses.pause(f"{error}")
            self._problems.report(
                self._own_key, f"new memories of {self._agent_id!r} wait: {error}", agent_id=self._agent_id
            )
        self._arm()

    async def _look(self) -> None:
        interval = self._interval()
        if not self._unqueued.caught_up:
            await self._show_aside()
            await self._unqueued.catch_up(interval)
        await self._unqueued.queue_idle()
        self._waiting = await self._database.read(rows.count_waiting)
        while not self._pauses.paused:
            held = self._pauses.held()
            task = await self._database.read(lambda db, held=held: rows.ready(db, held))  # type: ignore[misc]
            if task is None:
                break
            await self._work(task)
        self._problems.clear(self._own_key)

    async def _work(self, task: Task) -> None:
        self._current = task.id
        try:
            async with self._actor:
                kept = await self._steps(task)
        except Exception as error:
            await self._failed(task, error)
        else:
            if kept is not None:
                await self._succeeded(task, kept)
        finally:
            self._current = ""

    async def _steps(self, task: Task) -> int | None:
        """Extract, store, write, done: each step can be the last before a crash. None when the task has to wait."""
        if task.state == "queued":
            after = await self._database.read(lambda db: rows.mark(db, task.session_id))
            found = await self._extractor.extract(task.session_id, after=after, upto=task.upto_turn)
            if found.waits:
                self._pauses.hold_open(task)
                return None
            text, facts, now = found.outcome.dump(), len(found.outcome.lines), self._clock.now()
            await self._write(
                lambda db: rows.extracted(db, task, text, facts=facts, mark=found.mark, more=found.more, now=now)
            )
        outcome = Outcome.load(await self._database.read(lambda db: rows.outcome(db, task.id)))
        await self._extractor.write(task.id, task.session_id, outcome)
        await self._write(lambda db: rows.finish(db, task.id, self._clock.now()))
        return len(outcome.lines)

    async def _succeeded(self, task: Task, facts: int) -> None:
        self._pauses.succeeded(task.id)
        self._problems.clear(self._provider_key)
        if self._aside:
            await self._write(rows.retry_provider)
            await self._show_aside()
        left = await self._database.read(lambda db: rows.has_waiting(db, task.session_id))
        self._waiters.done(task.session_id, facts, last=not left)

    async def _failed(self, task: Task, error: Exception) -> None:
        if is_no_model(error):
            self._pauses.pause("a model: none is connected")
            self._waiters.fail(error)
            return
        logger.warning("extraction %s of session %r failed: %s", task.id, task.session_id, error, exc_info=True)
        now, outage = self._clock.now(), is_outage(error) and not self._pauses.to_blame(task.id)
        counts = not outage or now - (task.trouble_since or now) >= PATIENCE
        trouble = Trouble(f"{error}" or type(error).__name__, now, counts, outage)
        state = await self._write(lambda db: rows.fail(db, task.id, trouble, most=MOST_FAILURES))
        if outage:
            self._report_outage(error, pause=not self._pauses.met_outage(task.id, others=self._waiting > 1))
            self._waiters.fail(error)
        else:
            self._pauses.hold_back(task.id)
            self._waiters.fail(error, task.session_id)
        if state == "aside":
            self._pauses.forget(task.id)
            await self._show_aside()

    def _report_outage(self, error: Exception, *, pause: bool) -> None:
        if pause:
            self._pauses.pause(f"{error}", error.retry_after if isinstance(error, ModelError) else None)
        message = f"new memories of {self._agent_id!r} wait and are tried again by themselves: {error}"
        self._problems.report(self._provider_key, message, severity="warning", agent_id=self._agent_id)

    async def _show_aside(self) -> None:
        """Every session with a task that was set aside is a problem, and no other."""
        aside = {task.session_id: task for task in await self._database.read(rows.set_aside)}
        for gone in self._aside - aside.keys():
            self._problems.clear(self._key(gone))
        self._aside = set(aside)
        for session_id, task in aside.items():
            self._problems.report(self._key(session_id), _set_aside(self._agent_id, task), agent_id=self._agent_id)

    # when to look again

    def _arm(self) -> None:
        """One timer, for the next moment at which there may be something to do."""
        moment = self._next_moment()
        running = self._timer is not None and not self._timer.done()
        if moment is None or not self._active or (running and self._timer_at <= moment):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._tasks.start(self._ring(moment), name="timer")

    def _next_moment(self) -> float | None:
        idle = self._unqueued.next_idle()
        wanted = self._waiting or idle is not None or not self._unqueued.caught_up
        if self._pauses.paused:
            return self._pauses.next() if wanted else None
        moments = [idle, self._pauses.next() if self._waiting else None]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _ring(self, moment: float) -> None:
        await self._clock.sleep(moment - self._clock.monotonic())
        self._timer_at = 0.0
        self._timer = None
        self._kick()

    async def _write(self, work: Work[T]) -> T:
        """The work's result; counts what waits in the same breath."""
        result, self._waiting = await self._database.write(lambda db: (work(db), rows.count_waiting(db)))
        return result

    @property
    def _provider_key(self) -> str:
        return f"memory/{self._agent_id}/model"

    @property
    def _own_key(self) -> str:
        return f"memory/{self._agent_id}/extraction"

    def _key(self, session_id: str) -> str:
        return f"memory/{self._agent_id}/aside/{session_id}"


def _set_aside(agent_id: str, task: Task) -> str:
    return (
        f"what was said in session {task.session_id!r} was not taken into memory: {MOST_FAILURES} tries have failed,"
        f" the last with: {task.error}; nothing is lost, try again with"
        f" `qworkspace memory retry {task.id} --agent {agent_id}`"
    )
