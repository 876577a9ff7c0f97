"""Turns per session: one at a time in each, queued, interrupted, stopped, left and re-joined, drained."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.base.ids import AgentId
from qworkspace.base.tasks import Tasks
from qworkspace.chat.closing import Closer, Ending, error_facts
from qworkspace.chat.live import LiveTurn, StopReason, ended_live
from qworkspace.errors import Busy, Conflict, TooLarge, Unavailable
from qworkspace.sessions.models import StoredMessage, Turn, TurnRequest, TurnState
from qworkspace.sessions.store import SessionStore

logger = logging.getLogger(__name__)
MESSAGE_CHARS = 1_000_000
"""More than any model's window; what is longer would only hold up everybody else."""
ENDED_HELD = 16
ENDED_SECONDS = 120.0

Execute = Callable[[LiveTurn], Awaitable[None]]


@dataclass(slots=True)
class Lane:
    """One session's turns: the running one and those that wait."""

    running: LiveTurn | None = None
    waiting: deque[LiveTurn] = field(default_factory=deque)
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    entering: int = 0

    @property
    def idle(self) -> bool:
        return self.running is None and not self.waiting and not self.entering


class TurnRunner:
    """Runs the turns of one agent. What `submit` returns is journaled; a service of the workspace."""

    def __init__(
        self,
        sessions: SessionStore,
        execute: Execute,
        closer: Closer,
        *,
        agent_id: AgentId,
        clock: Clock,
        interrupts: Callable[[TurnRequest], bool],
        queue_limit: Callable[[], int],
    ) -> None:
        self._sessions = sessions
        self._execute = execute
        self._closer = closer
        self._agent_id = agent_id
        self._clock = clock
        self._interrupts = interrupts
        self._queue_limit = queue_limit
        self._lanes: dict[str, Lane] = {}
        self._ended: OrderedDict[str, LiveTurn] = OrderedDict()
        self._tasks = Tasks("turns")
        self._closing = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def closer(self) -> Closer:
        """What ends its turns, for who executes them."""
        return self._closer

    @property
    def active(self) -> int:
        """Turns that run now."""
        return sum(lane.running is not None for lane in self._lanes.values())

    @property
    def queued(self) -> int:
        """Turns that wait behind another of their session."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def busy(self) -> bool:
        """Whether anything holds the workspace: running, waiting or just arriving turns."""
        return bool(self._lanes)

    async def start(self) -> None:
        """Nothing to warm up."""

    def activate(self) -> None:
        """Turns may come."""

    def deactivate(self) -> None:
        """Running turns go on; who submits here still holds this instance and is served."""

    async def stop(self) -> None:
        """End what still runs as interrupted. Idempotent."""
        await self.drain(0)
        await self._tasks.close("the workspace stops")
        await self._closer.stop()

    async def submit(self, request: TurnRequest) -> LiveTurn:
        """Journal the request and run it when its session is free; `Busy` when the caller will not wait."""
        if self._closing:
            raise Unavailable("the daemon is stopping; send the message again after its restart")
        if (size := len(request.message.text)) > MESSAGE_CHARS:
            limit = f"a message has {MESSAGE_CHARS:,} characters at most and this one has {size:,}"
            raise TooLarge(f"{limit}; upload it as a file and say where it is", limit=MESSAGE_CHARS)
        lane = self._lanes.setdefault(request.session_id, Lane())
        lane.entering += 1
        try:
            async with lane.door:
                return await self._enter(lane, request)
        finally:
            lane.entering -= 1
            self._pump(request.session_id, lane)

    async def resume(self, turn_id: str) -> LiveTurn:
        """Carry on an interrupted turn from its last complete step, after what its session runs now."""
        if self._closing:
            raise Unavailable("the daemon is stopping; resume the turn after its restart")
        turn = await self._sessions.reopen(turn_id)
        request = request_of(turn, self._agent_id, await self._sessions.turn_messages(turn_id))
        lane = self._lanes.setdefault(turn.session_id, Lane())
        live = LiveTurn(turn, request, self._clock, resumed=True)
        self._line_up(lane, live)
        self._pump(turn.session_id, lane)
        return live

    async def cancel(self, session_id: str, *, by: LiveTurn | None = None) -> bool:
        """Cancel the session's running turn and drop the waiting ones; returns when they have ended.

        `by` is the turn that asks: it is not cancelled itself. False when nothing was there to end.
        """
        lane = self._lanes.get(session_id)
        if lane is None:
            return False
        ending = await self._end_all(lane, StopReason.USER, spare=by)
        if ending:
            await asyncio.wait([live.done for live in ending])
        return bool(ending)

    def beside(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Let something run that nobody waits for. It ends with this runner at the latest."""
        if self._closing:
            work.close()
        else:
            self._tasks.start(work, name=name)

    def live(self, session_id: str) -> LiveTurn | None:
        """The session's running turn, else the next waiting one."""
        lane = self._lanes.get(session_id)
        if lane is None:
            return None
        return lane.running or (lane.waiting[0] if lane.waiting else None)

    def find(self, turn_id: str) -> LiveTurn | None:
        """The turn while it lives, and for two minutes after."""
        for lane in self._lanes.values():
            for live in (lane.running, *lane.waiting):
                if live is not None and live.id == turn_id:
                    return live
        return self._ended.get(turn_id)

    async def drain(self, timeout: float) -> None:
        """Take no new turns; give the running ones `timeout` seconds, then store them as interrupted."""
        self._closing = True
        for lane in self._lanes.values():
            while lane.waiting:
                self._leave_for_later(lane.waiting.popleft())
        if timeout > 0 and self.active:
            patience = asyncio.ensure_future(self._clock.sleep(timeout))
            quiet = asyncio.ensure_future(self._quiet.wait())
            await asyncio.wait({patience, quiet}, return_when=asyncio.FIRST_COMPLETED)
            for helper in (patience, quiet):
                helper.cancel()
            await asyncio.gather(patience, quiet, return_exceptions=True)
        running = [lane.running for lane in self._lanes.values() if lane.running is not None]
        for live in running:
            live.cancel(StopReason.SHUTDOWN)
        if running:
            await asyncio.wait([live.done for live in running])

    async def _enter(self, lane: Lane, request: TurnRequest) -> LiveTurn:
        known = await self._sessions.known(request)
        if known is not None:
            return self._again(known, request)
        ends = request.if_busy == "interrupt" or self._interrupts(request)
        self._expect_room(lane, request, ends=ends)
        turn, _ = await self._sessions.accept(request)
        live = LiveTurn(turn, request, self._clock)
        if ends and not self._closing:
            live.stopped_another = bool(await self._end_all(lane, StopReason.NEWER_MESSAGE, successor=live))
        else:
            self._line_up(lane, live)
        return live

    def _expect_room(self, lane: Lane, request: TurnRequest, *, ends: bool) -> None:
        occupied = lane.running is not None or bool(lane.waiting)
        if occupied and request.if_busy == "reject":
            raise Busy(f"a turn is running in session {request.session_id!r}; wait, stop it, or send if_busy: queue")
        if not ends and len(lane.waiting) >= self._queue_limit():
            waiting = f"{len(lane.waiting)} messages wait in session {request.session_id!r} already"
            raise Busy(f"{waiting}; wait for an answer, or stop them", code="queue_full")

    def _again(self, turn: Turn, request: TurnRequest) -> LiveTurn:
        """The turn of a message that was sent before."""
        live = self.find(turn.id)
        if live is not None:
            return live
        if not turn.state.ended:
            raise Conflict(f"turn {turn.id!r} is stored and does not run here; read it again later")
        return ended_live(turn, request, self._clock)

    def _line_up(self, lane: Lane, live: LiveTurn) -> None:
        """Let the turn wait behind the others of its session; until the next start when the daemon stops."""
        if self._closing:
            self._leave_for_later(live)
            return
        occupied = lane.running is not None or bool(lane.waiting)
        lane.waiting.append(live)
        if occupied:
            waits = "waiting for the running turn"
            live.emit("notice", {"code": "queued", "message": waits, "position": len(lane.waiting)})

    async def _end_all(
        self, lane: Lane, reason: StopReason, *, spare: LiveTurn | None = None, successor: LiveTurn | None = None
    ) -> list[LiveTurn]:
        """Begin to end what runs and drop what waits, except for `spare`; `successor` is then the only one to wait.

        What is returned ends soon, or has ended.
        """
        dropped = [live for live in lane.waiting if live is not spare]
        lane.waiting = deque(live for live in (*lane.waiting, successor) if live is not None and live not in dropped)
        ending = [*dropped]
        if lane.running is not None and lane.running is not spare:
            lane.running.cancel(reason)
            ending.append(lane.running)
        for live in dropped:
            live.stop_reason = reason
            await self._closer.close(live, Ending(TurnState.CANCELLED))
        return ending

    def _pump(self, session_id: str, lane: Lane) -> None:
        if lane.running is None and lane.waiting and not self._closing:
            live = lane.waiting.popleft()
            lane.running = live
            self._quiet.clear()
            self._tasks.start(self._run(session_id, lane, live), name=live.id)
        elif lane.idle and self._lanes.get(session_id) is lane:
            del self._lanes[session_id]
            if not self.active:
                self._quiet.set()

    async def _run(self, session_id: str, lane: Lane, live: LiveTurn) -> None:
        try:
            await self._carry_out(live)
        finally:
            self._remember(live)
            lane.running = None
            self._pump(session_id, lane)

    async def _carry_out(self, live: LiveTurn) -> None:
        """Execute the turn. Who follows it sees an end of it, even if it could not begin."""
        task = asyncio.current_task()
        assert task is not None
        live.runs_in(task)
        try:
            await self._execute(live)
        except Exception as error:
            logger.exception("turn %s could not be carried out", live.id)
            if not live.log.closed:
                await self._closer.close(live, Ending(TurnState.FAILED, text=live.text, error=error_facts(error)))

    def _remember(self, live: LiveTurn) -> None:
        self._ended[live.id] = live
        now = self._clock.monotonic()
        while self._ended:
            oldest = next(iter(self._ended.values()))
            fresh = oldest.ended_at is None or now - oldest.ended_at < ENDED_SECONDS
            if fresh and len(self._ended) <= ENDED_HELD:
                return
            del self._ended[oldest.id]

    def _leave_for_later(self, live: LiveTurn) -> None:
        """A waiting turn at a shutdown: stored already, marked interrupted at the next start."""
        message = "the daemon stopped before this message's turn; resume it to get the answer"
        live.finish(live.turn, "turn.failed", {"code": "interrupted", "message": message, "retryable": True})


def request_of(turn: Turn, agent_id: AgentId, messages: list[StoredMessage]) -> TurnRequest:
    """The request that a stored turn began with."""
    return TurnRequest(
        agent_id=agent_id,
        session_id=turn.session_id,
        message=messages[0].message,
        user_id=turn.user_id,
        team_id=turn.team_id,
        source=turn.source,
        metadata=turn.metadata,
    )
