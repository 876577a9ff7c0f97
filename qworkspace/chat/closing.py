"""How a turn ends: stored first, then told; what the disk refuses is told at once and stored later."""

from __future__ import annotations

import logging
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.tasks import Tasks
from qworkspace.chat.live import LiveTurn, last_event
from qworkspace.errors import QworkspaceError, StorageError
from qworkspace.sessions.journal import TurnEnding as Ending
from qworkspace.sessions.models import Turn
from qworkspace.sessions.store import SessionStore

__all__ = ["Closer", "Ending", "error_facts"]
logger = logging.getLogger(__name__)
RETRY_SECONDS = 5.0


def error_facts(error: BaseException) -> dict[str, Any]:
    """`code`, `message`, `retryable` of a failure, without internals."""
    if isinstance(error, QworkspaceError):
        return {
            "code": error.code,
            "message": error.message,
            "retryable": bool(getattr(error, "retryable", isinstance(error, StorageError))),
        }
    return {"code": "internal_error", "message": "something went wrong here; the log says what", "retryable": True}


class Closer:
    """Ends turns, each once."""

    def __init__(self, sessions: SessionStore, bus: EventBus, clock: Clock, *, agent_id: str) -> None:
        self._sessions = sessions
        self._bus = bus
        self._clock = clock
        self._agent_id = agent_id
        self._tasks = Tasks("endings")

    async def close(self, live: LiveTurn, ending: Ending) -> None:
        """Store the ending, then send the last event and tell the daemon's bus."""
        try:
            turn = await self._store(live.id, ending)
        except StorageError as error:
            self._tasks.start(self._store_later(live.id, ending), name=live.id)
            live.finish(live.turn, "turn.failed", error_facts(error))
        except Exception as error:
            logger.error("the ending of turn %s could not be stored", live.id, exc_info=_unexpected(error))
            live.finish(live.turn, "turn.failed", error_facts(error))
        else:
            live.finish(turn, *last_event(turn))
        self._bus.publish(f"turn.{_word(live)}", agent_id=self._agent_id, **self._facts(live))

    async def stop(self) -> None:
        """Give up on what the disk never took: it is marked interrupted at the next start."""
        await self._tasks.close("the workspace stops")

    async def _store(self, turn_id: str, ending: Ending) -> Turn:
        return await self._sessions.finish(
            turn_id,
            ending.state,
            text=ending.text,
            usage=ending.usage,
            error=ending.error,
            partial=ending.partial,
            reply=ending.reply,
            in_context=ending.in_context,
        )

    async def _store_later(self, turn_id: str, ending: Ending) -> None:
        while True:
            await self._clock.sleep(RETRY_SECONDS)
            try:
                await self._store(turn_id, ending)
            except StorageError:
                continue
            logger.info("turn %s is stored now that the disk takes it", turn_id)
            return

    def _facts(self, live: LiveTurn) -> dict[str, Any]:
        turn, begun = live.turn, live.begun_at
        ended = live.ended_at if live.ended_at is not None else self._clock.monotonic()
        first = live.first_token_at
        return {
            "session_id": live.session_id,
            "turn_id": live.id,
            "source": live.request.source,
            "model": live.model,
            "usage": turn.usage.model_dump(),
            "duration_ms": round((ended - begun) * 1000) if begun is not None else 0,
            "first_token_ms": round((first - begun) * 1000) if begun is not None and first is not None else None,
        }


def _unexpected(error: Exception) -> Exception | None:
    """What deserves a traceback in the log."""
    return None if isinstance(error, QworkspaceError) else error


def _word(live: LiveTurn) -> str:
    """The last word of the last event: completed, failed or cancelled."""
    last = live.log.since(live.log.last - 1)
    return last[-1].type.removeprefix("turn.") if last else "failed"
