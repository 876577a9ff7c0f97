"""Reading and keeping sessions: lists, histories, settings, removal. Each function runs inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from qworkspace.base.ids import SessionId
from qworkspace.base.text import clean_text
from qworkspace.errors import Conflict, InvalidInput, NotFound
from qworkspace.sessions.digest import NOTHING_SAID, digest_of
from qworkspace.sessions.models import CallState, Message, Session, StoredMessage, Turn, TurnState
from qworkspace.sessions.repair import closed
from qworkspace.sessions.rows import (
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    TURN_COLUMNS,
    from_cursor,
    to_cursor,
    to_json,
    to_micros,
    to_session,
    to_stored,
    to_turn,
)

_OPEN = (TurnState.QUEUED, TurnState.RUNNING)
_MESSAGES = f"SELECT {MESSAGE_COLUMNS} FROM messages m JOIN turns t ON t.number = m.turn"


@dataclass(frozen=True, slots=True)
class History:
    """What a model is told of a session: a summary of the older part, then messages, repaired and answered.

    `stored` are the same messages before the repair, with their ids.
    """

    summary: str | None
    messages: list[Message]
    stored: list[StoredMessage]


def history(db: sqlite3.Connection, session_id: str, before_turn: str | None) -> History:
    """The messages of earlier turns (without `before_turn`: of those that have ended), since the last fresh start."""
    row = db.execute(
        "SELECT afresh, summary, summary_turn, summary_message FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None:
        return History(None, [], [])
    afresh, summary, summary_turn, summary_message = row
    which, bound = _earlier(db, session_id, before_turn)
    rows = db.execute(
        f"{_MESSAGES} WHERE t.session_id = ? AND t.number > ? AND t.in_context = 1 AND m.hidden = 0"
        f" AND (m.turn, m.number) > (?, ?) AND {which} ORDER BY m.turn, m.number",
        (session_id, afresh, summary_turn, summary_message, *bound),
    )
    stored = [to_stored(row) for row in rows]
    return History(summary, closed([item.message for item in stored]), stored)


def _earlier(db: sqlite3.Connection, session_id: str, before_turn: str | None) -> tuple[str, tuple[Any, ...]]:
    if before_turn is None:
        return "t.state NOT IN (?, ?)", _OPEN
    row = db.execute("SELECT number FROM turns WHERE id = ? AND session_id = ?", (before_turn, session_id)).fetchone()
    if row is None:
        raise NotFound("turn", before_turn)
    return "t.number < ?", (row[0],)


def turn_messages(db: sqlite3.Connection, turn_id: str) -> list[StoredMessage]:
    """The turn's messages in their order, the user's first."""
    rows = db.execute(f"{_MESSAGES} WHERE t.id = ? AND m.hidden = 0 ORDER BY m.number", (turn_id,))
    return [to_stored(row) for row in rows]


def call_states(db: sqlite3.Connection, turn_id: str) -> dict[str, CallState]:
    """How far each call of the turn came; of calls with one id the latest counts."""
    rows = db.execute(
        "SELECT call_id, state FROM calls WHERE turn = (SELECT number FROM turns WHERE id = ?) ORDER BY message",
        (turn_id,),
    )
    return {call_id: CallState(state) for call_id, state in rows}


def turns(db: sqlite3.Connection, session_id: str, limit: int, cursor: str | None) -> tuple[list[Turn], str | None]:
    """The session's turns, the newest first."""
    below = from_cursor(cursor, int)[0] if cursor else 2**62
    rows = db.execute(
        f"SELECT {TURN_COLUMNS}, number FROM turns WHERE session_id = ? AND number < ? ORDER BY number DESC LIMIT ?",
        (session_id, below, limit + 1),
    ).fetchall()
    return [to_turn(row[:-1]) for row in rows[:limit]], to_cursor(rows[limit - 1][-1]) if len(rows) > limit else None


def find_interrupted(db: sqlite3.Connection, session_id: str) -> Turn | None:
    """The newest interrupted turn of the session."""
    row = db.execute(
        f"SELECT {TURN_COLUMNS} FROM turns WHERE session_id = ? AND state = ? ORDER BY number DESC LIMIT 1",
        (session_id, TurnState.INTERRUPTED),
    ).fetchone()
    return to_turn(row) if row is not None else None


def messages(
    db: sqlite3.Connection, session_id: str, limit: int, cursor: str | None
) -> tuple[list[StoredMessage], str | None]:
    """The session's messages, the oldest first."""
    above = from_cursor(cursor, int)[0] if cursor else 0
    rows = db.execute(
        f"SELECT {MESSAGE_COLUMNS}, m.number FROM messages m JOIN turns t ON t.number = m.turn"
        " WHERE m.session_id = ? AND m.hidden = 0 AND m.number > ? ORDER BY m.number LIMIT ?",
        (session_id, above, limit + 1),
    ).fetchall()
    return [to_stored(row[:-1]) for row in rows[:limit]], to_cursor(rows[limit - 1][-1]) if len(rows) > limit else None


def sessions(
    db: sqlite3.Connection, limit: int, cursor: str | None, query: str | None, user_id: str | None
) -> tuple[list[Session], str | None]:
    """The sessions, the newest first; `query` is text of the title or of a message, in any case of A-Z."""
    where, bound = ["1"], []
    if cursor:
        where.append("(s.updated_at, s.id) < (?, ?)")
        bound += from_cursor(cursor, int, str)
    if user_id is not None:
        where.append("s.user_id = ?")
        bound.append(clean_text(user_id))
    if query:
        where.append(
            "(s.title LIKE ? ESCAPE '\\' OR EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id"
            " AND m.hidden = 0 AND m.role != 'tool' AND m.parts LIKE ? ESCAPE '\\'))"
        )
        bound += [_like(query), _like(to_json(query)[1:-1])]
    rows = db.execute(
        f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE {' AND '.join(where)}"
        " ORDER BY s.updated_at DESC, s.id DESC LIMIT ?",
        (*bound, limit + 1),
    ).fetchall()
    found = [to_session(row) for row in rows[:limit]]
    following = to_cursor(to_micros(found[-1].updated_at), found[-1].id) if len(rows) > limit else None
    return found, following


def _like(text: str) -> str:
    escaped = clean_text(text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def get_session(db: sqlite3.Connection, session_id: str) -> Session:
    row = db.execute(f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.id = ?", (session_id,)).fetchone()
    if row is None:
        raise NotFound("session", session_id)
    return to_session(row)


def rename(db: sqlite3.Connection, session_id: str, title: str) -> None:
    """The title that a person gave stays."""
    words = " ".join(clean_text(title).split())
    if not words or len(words) > 200:
        raise InvalidInput("a title has 1 to 200 characters")
    _update(db, session_id, "title = ?, titled = 1", words)


def suggest_title(db: sqlite3.Connection, session_id: str, title: str) -> None:
    """A title in place of the first words; one that a person gave is left alone."""
    db.execute("UPDATE sessions SET title = ? WHERE id = ? AND titled = 0", (clean_text(title), session_id))


def pin(db: sqlite3.Connection, session_id: str, pinned: bool) -> None:
    _update(db, session_id, "pinned = ?", int(pinned))


def start_afresh(db: sqlite3.Connection, session_id: str) -> None:
    """Turns after the running one (without one: after the last one) see nothing of what was said so far."""
    _update(
        db,
        session_id,
        "summary = NULL, summary_turn = 0, summary_message = 0, afresh = coalesce("
        "(SELECT max(number) FROM turns WHERE session_id = sessions.id AND state = 'running'),"
        "(SELECT max(number) FROM turns WHERE session_id = sessions.id), 0)",
    )


def set_summary(db: sqlite3.Connection, session_id: str, summary: str, upto_message_id: str) -> None:
    """`summary` stands for everything up to that message, which is the last one it covers."""
    row = db.execute(
        "SELECT turn, number FROM messages WHERE id = ? AND session_id = ?", (upto_message_id, session_id)
    ).fetchone()
    if row is None:
        raise NotFound("message", upto_message_id)
    _update(db, session_id, "summary = ?, summary_turn = ?, summary_message = ?", clean_text(summary), *row)


def _update(db: sqlite3.Connection, session_id: str, assignments: str, *values: Any) -> None:
    changed = db.execute(f"UPDATE sessions SET {assignments} WHERE id = ?", (*values, session_id)).rowcount
    if not changed:
        raise NotFound("session", session_id)


def setting(db: sqlite3.Connection, session_id: str, key: str) -> str | None:
    row = db.execute("SELECT value FROM settings WHERE session_id = ? AND key = ?", (session_id, key)).fetchone()
    return row[0] if row is not None else None


def set_setting(db: sqlite3.Connection, session_id: str, key: str, value: str | None) -> None:
    get_session(db, session_id)
    if value is None:
        db.execute("DELETE FROM settings WHERE session_id = ? AND key = ?", (session_id, key))
        return
    db.execute(
        "INSERT INTO settings (session_id, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT (session_id, key) DO UPDATE SET value = excluded.value",
        (session_id, key, clean_text(value)),
    )


def find_by_prefix(db: sqlite3.Connection, user_id: str, texts: Sequence[tuple[str, str]]) -> SessionId | None:
    """The session of that user in which exactly these texts were said; of several the newest."""
    digest = digest_of(texts)
    if digest == NOTHING_SAID:
        return None
    row = db.execute(
        "SELECT id FROM sessions WHERE digest = ? AND user_id = ? ORDER BY updated_at DESC LIMIT 1",
        (digest, clean_text(user_id)),
    ).fetchone()
    return SessionId(row[0]) if row is not None else None


def delete(db: sqlite3.Connection, session_id: str) -> None:
    """Remove the session with everything in it; `Conflict` while one of its turns waits or runs."""
    get_session(db, session_id)
    if db.execute("SELECT 1 FROM turns WHERE session_id = ? AND state IN (?, ?)", (session_id, *_OPEN)).fetchone():
        raise Conflict(f"a turn of session {session_id!r} is running; stop it first")
    db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


def delete_older(db: sqlite3.Connection, days: int, now: datetime) -> int:
    """Remove the sessions that nobody used for `days` days, but no pinned one and none with an open turn."""
    limit = to_micros(now - timedelta(days=days))
    return db.execute(
        "DELETE FROM sessions WHERE updated_at < ? AND pinned = 0 AND NOT EXISTS"
        " (SELECT 1 FROM turns t WHERE t.session_id = sessions.id AND t.state IN (?, ?))",
        (limit, *_OPEN),
    ).rowcount
