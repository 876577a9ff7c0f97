"""A turn while it lives: what it said so far, who may follow it, how it ended."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.base.events import Event, EventLog
from qworkspace.sessions.models import Turn, TurnRequest, TurnState

FLUSH_SECONDS = 0.02
EVENTS_HELD = 20_000
LATEST_FIRST = 900_000_000


class StopReason(StrEnum):
    """Why a turn is being cancelled."""

    USER = "stopped"
    NEWER_MESSAGE = "interrupted by a newer message"
    SHUTDOWN = "the daemon is stopping"
    LIMIT = "it ran too long on an instance that was replaced"


class LiveTurn:
    """One turn's event log and state. Text that comes faster than 50 pieces a second is sent in larger pieces."""

    def __init__(self, turn: Turn, request: TurnRequest, clock: Clock, *, resumed: bool = False) -> None:
        self.turn = turn
        self.request = request
        self.resumed = resumed
        first = first_of_resumed(turn, clock.now()) if resumed else 1
        self.log = EventLog(clock, size=EVENTS_HELD, first=first)
        self.done: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self.text = ""
        self.stop_reason: StopReason | None = None
        self.stopped_another = False
        self.begun_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.model = ""
        self.asked = False
        self.task: asyncio.Task[None] | None = None
        self._clock = clock
        self._unsent: list[str] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self._sent_at = float("-inf")
        self._step_at = 0

    @property
    def id(self) -> str:
        return self.turn.id

    @property
    def session_id(self) -> str:
        return self.turn.session_id

    def emit(self, type: str, data: dict[str, Any]) -> Event:
        """Add an event after the text that came before it."""
        self._flush()
        return self.log.append(type, data)

    def say(self, text: str) -> None:
        """Add visible text; it reaches followers at once, or within 20 ms of the last piece."""
        if not text:
            return
        now = self._clock.monotonic()
        if self.first_token_at is None:
            self.first_token_at = now
        if self._step_at and self._step_at == len(self.text):
            text = "\n\n" + text
        self.text += text
        self._unsent.append(text)
        if now - self._sent_at >= FLUSH_SECONDS:
            self._flush()
        elif self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    @property
    def step_text(self) -> str:
        """What was said since the last complete step, and is stored nowhere yet."""
        return self.text[self._step_at :].removeprefix("\n\n") if self._step_at else self.text

    def end_step(self) -> None:
        """All that was said so far is stored; what comes next begins a new paragraph."""
        self._step_at = len(self.text)

    def finish(self, turn: Turn, last: str, data: dict[str, Any]) -> None:
        """Send the last event and end the log. Once; later calls change nothing."""
        if self.log.closed:
            return
        self.turn = turn
        self.emit(last, data)
        self.log.close()
        self.ended_at = self._clock.monotonic()
        if not self.done.done():
            self.done.set_result(turn)

    def runs_in(self, task: asyncio.Task[None]) -> None:
        """The turn's task has taken its first step; a stop that came before it takes effect now."""
        self.task = task
        if self.stop_reason is not None:
            task.cancel(self.stop_reason)

    def cancel(self, reason: StopReason) -> None:
        """End the running task, once; its turn is then stored as cancelled, or as interrupted at a shutdown.

        A task that has not taken its first step could not end its turn any more: it is told at that step.
        """
        if self.stop_reason is not None:
            return
        self.stop_reason = reason
        if self.task is not None:
            self.task.cancel(reason)

    def _flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._unsent:
            text = "".join(self._unsent)
            self._unsent.clear()
            self._sent_at = self._clock.monotonic()
            self.log.append("text.delta", {"text": text})


def first_of_resumed(turn: Turn, now: datetime) -> int:
    """Where a resumed turn counts its events from: later than the ones it had before, which may be known somewhere.

    These came at less than a thousand a second since the turn was made.
    """
    return min(EVENTS_HELD + max(0, (now - turn.created_at) // timedelta(milliseconds=1)), LATEST_FIRST)


def ended_live(turn: Turn, request: TurnRequest, clock: Clock) -> LiveTurn:
    """A turn that ended before, as a log of its one last event: for those who come too late."""
    live = LiveTurn(turn, request, clock)
    live.text = turn.text
    live.finish(turn, *last_event(turn))
    return live


def last_event(turn: Turn) -> tuple[str, dict[str, Any]]:
    """The event that closes the stream of an ended turn, from its journal."""
    usage = turn.usage.model_dump()
    if turn.state is TurnState.COMPLETED:
        return "turn.completed", {"text": turn.text, "usage": usage}
    if turn.state is TurnState.CANCELLED:
        return "turn.cancelled", {"text": turn.text, "usage": usage}
    error = turn.error or {"code": "interrupted", "message": "the turn was interrupted; resume it to go on"}
    data = {"code": error.get("code", "failed"), "message": error.get("message", ""), "text": turn.text}
    return "turn.failed", {**data, "retryable": bool(error.get("retryable", turn.state is TurnState.INTERRUPTED))}
