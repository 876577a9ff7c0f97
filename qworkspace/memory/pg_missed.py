"""Turns that never came to the outbox: the process was killed after they were stored, and before that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, tzinfo

from qworkspace.memory.extract import REMEMBERED
from qworkspace.memory.outbox import TurnRecord
from qworkspace.sessions.models import Session, Turn, TurnState
from qworkspace.sessions.store import SessionStore

PAGE = 50


async def missed(sessions: SessionStore, since: datetime, zone: tzinfo, agent_id: str) -> AsyncIterator[TurnRecord]:
    """What people said and were answered since then."""
    cursor: str | None = None
    while True:
        page, cursor = await sessions.sessions(limit=PAGE, cursor=cursor)
        for session in page:
            if session.updated_at < since:
                return
            async for turn in _turns(sessions, session, since):
                yield await _record(sessions, turn, zone, agent_id)
        if cursor is None:
            return


async def _turns(sessions: SessionStore, session: Session, since: datetime) -> AsyncIterator[Turn]:
    cursor: str | None = None
    while True:
        page, cursor = await sessions.turns(session.id, PAGE, cursor)
        for turn in page:
            if turn.created_at < since:
                return
            if turn.state is TurnState.COMPLETED and turn.source in REMEMBERED:
                yield turn
        if cursor is None:
            return


async def _record(sessions: SessionStore, turn: Turn, zone: tzinfo, agent_id: str) -> TurnRecord:
    messages = await sessions.turn_messages(turn.id)
    at = turn.ended_at or turn.created_at
    return TurnRecord(
        turn_id=turn.id,
        session_id=turn.session_id,
        user_id=turn.user_id,
        agent_id=agent_id,
        at=at.astimezone(UTC),
        day=at.astimezone(zone).date(),
        message=next((item.message.text for item in messages if item.message.role == "user"), ""),
        reply=turn.text,
    )
