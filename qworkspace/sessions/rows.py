"""Rows of `sessions.db` as values, and back."""

from __future__ import annotations

import base64
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qworkspace.base.ids import SessionId
from qworkspace.base.text import clean_value
from qworkspace.errors import InvalidInput
from qworkspace.sessions.models import Message, Part, Session, StoredMessage, TextPart, Turn, TurnState, Usage

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])
UNREADABLE = "(this message was damaged on the disk and cannot be read)"

TURN_COLUMNS = (
    "id, session_id, state, source, user_id, team_id, created_at, started_at, ended_at,"
    " text, usage, error, metadata, context"
)
MESSAGE_COLUMNS = "m.id, t.id, m.session_id, m.role, m.parts, m.status, m.created_at"
SESSION_COLUMNS = (
    "s.id, s.title, s.user_id, s.source, s.created_at, s.updated_at, s.pinned,"
    " (SELECT count(*) FROM messages m WHERE m.session_id = s.id AND m.hidden = 0),"
    " (SELECT t.state FROM turns t WHERE t.session_id = s.id ORDER BY t.number DESC LIMIT 1)"
)


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def to_json(value: Any) -> str:
    return json.dumps(clean_value(value), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str | None, default: Any) -> Any:
    """The value; `default` when there is none or it is damaged."""
    if text is None:
        return default
    try:
        return json.loads(text)
    except ValueError:
        logger.error("a stored value is damaged: %.80r", text)
        return default


def dump_parts(message: Message) -> str:
    return _PARTS.dump_json(message.parts, exclude_none=True).decode()


def to_message(role: str, parts: str) -> Message:
    """The stored message; one that the disk has damaged says so."""
    try:
        return Message.model_validate_json(f'{{"role":"{role}","parts":{parts}}}')
    except ValidationError:
        logger.error("a stored message is damaged: %.80r", parts)
        return Message(role="user" if role == "user" else "assistant", parts=(TextPart(text=UNREADABLE),))


def to_usage(text: str | None) -> Usage:
    try:
        return Usage.model_validate_json(text or "{}")
    except ValidationError:
        logger.error("a stored usage is damaged: %.80r", text)
        return Usage()


def to_turn(row: tuple[Any, ...]) -> Turn:
    """A row of TURN_COLUMNS."""
    id, session_id, state, source, user_id, team_id, created, started, ended, text, usage, error, metadata, context = (
        row
    )
    return Turn(
        id=id,
        session_id=SessionId(session_id),
        state=TurnState(state),
        source=source,
        user_id=user_id,
        team_id=team_id,
        created_at=from_micros(created),
        started_at=from_micros(started) if started is not None else None,
        ended_at=from_micros(ended) if ended is not None else None,
        text=text,
        usage=to_usage(usage),
        error=from_json(error, None),
        metadata=from_json(metadata, {}),
        context=from_json(context, []),
    )


def to_stored(row: tuple[Any, ...]) -> StoredMessage:
    """A row of MESSAGE_COLUMNS."""
    id, turn_id, session_id, role, parts, status, created = row
    return StoredMessage(id, turn_id, SessionId(session_id), to_message(role, parts), status, from_micros(created))


def to_session(row: tuple[Any, ...]) -> Session:
    """A row of SESSION_COLUMNS."""
    id, title, user_id, source, created, updated, pinned, count, state = row
    return Session(
        id=SessionId(id),
        title=title,
        user_id=user_id,
        source=source,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        pinned=bool(pinned),
        message_count=count,
        last_state=TurnState(state) if state is not None else None,
    )


def to_cursor(*position: int | str) -> str:
    """An opaque text that stands for a place in a list."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def from_cursor(cursor: str, *types: type) -> list[Any]:
    """The place that `to_cursor` was given; `InvalidInput` for anything else."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError:
        position = None
    fits = isinstance(position, list) and len(position) == len(types)
    if not fits or any(type(value) is not kind for value, kind in zip(position, types, strict=True)):
        raise InvalidInput("this cursor is not one that was given out for this list", code="invalid_cursor")
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in position):
        raise InvalidInput("this cursor is not one that was given out for this list", code="invalid_cursor")
    return position  # type: ignore[no-any-return]
