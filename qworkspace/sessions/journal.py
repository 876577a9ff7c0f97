"""The turn journal: what one commit stores. Each function runs inside a transaction and trusts its arguments."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qworkspace.base.ids import new_id
from qworkspace.base.text import clean_text
from qworkspace.errors import Conflict, NotFound
from qworkspace.sessions.digest import NOTHING_SAID, extend
from qworkspace.sessions.models import (
    CallState,
    FilePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Turn,
    TurnRequest,
    TurnState,
    Usage,
)
from qworkspace.sessions.rows import (
    TURN_COLUMNS,
    dump_parts,
    to_json,
    to_message,
    to_micros,
    to_turn,
    to_usage,
)
from qworkspace.sessions.titles import title_of

INTERRUPTED = {
    "code": "interrupted",
    "message": "the daemon stopped during this turn; resume it to go on",
    "retryable": True,
}


@dataclass(frozen=True, slots=True)
class TurnEnding:
    """How a turn ended, what it said, and whether later turns see it. `usage` is the whole turn's."""

    state: TurnState
    text: str = ""
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    partial: Message | None = None
    reply: Message | None = None
    in_context: bool = True


@dataclass(frozen=True, slots=True)
class _BriefTurn:
    number: int
    session_id: str
    state: TurnState
    usage_before: str


def accept(db: sqlite3.Connection, request: TurnRequest, now: datetime) -> tuple[Turn, bool]:
    """Store the session, the queued turn and the user's message; the known turn and False for a known key."""
    known = turn_by_key(db, request)
    if known is not None:
        return known, False
    _touch_session(db, request, to_micros(now))
    turn_id = new_id("turn", now)
    cursor = db.execute(
        "INSERT INTO turns (id, session_id, state, source, user_id, team_id, idempotency_key, created_at, metadata)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            turn_id,
            request.session_id,
            TurnState.QUEUED,
            request.source,
            clean_text(request.user_id),
            clean_text(request.team_id),
            request.idempotency_key,
            to_micros(now),
            to_json(request.metadata),
        ),
    )
    _append(db, cursor.lastrowid or 0, request.session_id, request.message, "completed", now)
    return get_turn(db, turn_id), True


def begin(db: sqlite3.Connection, turn_id: str, now: datetime) -> None:
    """The queued turn runs."""
    changed = db.execute(
        "UPDATE turns SET state = ?, started_at = ? WHERE id = ? AND state = ?",
        (TurnState.RUNNING, to_micros(now), turn_id, TurnState.QUEUED),
    ).rowcount
    if not changed:
        raise Conflict(f"turn {turn_id!r} is {get_turn(db, turn_id).state}; only a queued turn can begin")


def save_response(db: sqlite3.Connection, turn_id: str, message: Message, usage: Usage, now: datetime) -> None:
    """Store a step's answer, its calls as pending, and the turn's usage so far; the draft of it is over."""
    turn = _open_turn(db, turn_id)
    if has_content(message):
        _append(db, turn.number, turn.session_id, message, "completed", now)
    total = to_usage(turn.usage_before).plus(usage)
    db.execute("UPDATE turns SET usage = ? WHERE number = ?", (total.model_dump_json(), turn.number))
    db.execute("DELETE FROM drafts WHERE turn = ?", (turn.number,))


def call_started(db: sqlite3.Connection, turn_id: str, call_id: str) -> None:
    """From now on nobody knows what the call has done, until its result is stored."""
    turn = _open_turn(db, turn_id)
    call, state = _newest_call(db, turn.number, turn_id, call_id)
    if state is CallState.PENDING:
        db.execute("UPDATE calls SET state = ? WHERE rowid = ?", (CallState.STARTED, call))


def save_result(db: sqlite3.Connection, turn_id: str, result: ToolResultPart, now: datetime) -> None:
    """Store a call's result, once."""
    turn = _open_turn(db, turn_id)
    call, state = _newest_call(db, turn.number, turn_id, result.id)
    if state is CallState.DONE:
        return
    db.execute("UPDATE calls SET state = ? WHERE rowid = ?", (CallState.DONE, call))
    _append(db, turn.number, turn.session_id, Message(role="tool", parts=(result,)), "completed", now)


def save_draft(db: sqlite3.Connection, turn_id: str, text: str) -> None:
    """What the running step has said so far, in place of what it had said before."""
    turn = _open_turn(db, turn_id)
    db.execute(
        "INSERT INTO drafts (turn, text) VALUES (?, ?) ON CONFLICT (turn) DO UPDATE SET text = excluded.text",
        (turn.number, clean_text(text)),
    )


def save_context(db: sqlite3.Connection, turn_id: str, notes: list[dict[str, Any]]) -> None:
    """What was put into the turn's context."""
    if not db.execute("UPDATE turns SET context = ? WHERE id = ?", (to_json(notes), turn_id)).rowcount:
        raise NotFound("turn", turn_id)


def finish(db: sqlite3.Connection, turn_id: str, ending: TurnEnding, now: datetime) -> Turn:
    """End the turn and store its last message. The first ending stands: a later one changes nothing."""
    turn = _brief(db, turn_id)
    if turn.state.ended:
        return get_turn(db, turn_id)
    if ending.reply is not None and has_content(ending.reply):
        _append(db, turn.number, turn.session_id, ending.reply, "completed", now)
    if ending.partial is not None and has_content(ending.partial):
        _append(db, turn.number, turn.session_id, ending.partial, ending.state.value, now)
    _store_ending(db, turn, ending, now)
    return get_turn(db, turn_id)


def reopen(db: sqlite3.Connection, turn_id: str) -> Turn:
    """The interrupted turn waits again; what its broken step had said is hidden, because it is said anew."""
    turn = get_turn(db, turn_id)
    if turn.state is not TurnState.INTERRUPTED:
        raise Conflict(f"turn {turn_id!r} is {turn.state}; only an interrupted one can be resumed", state=turn.state)
    db.execute(
        "UPDATE messages SET hidden = 1 WHERE status = ? AND turn = (SELECT number FROM turns WHERE id = ?)",
        (TurnState.INTERRUPTED, turn_id),
    )
    db.execute(
        "UPDATE turns SET state = ?, started_at = NULL, ended_at = NULL, error = NULL, text = '', usage_before = usage"
        " WHERE id = ?",
        (TurnState.QUEUED, turn_id),
    )
    return get_turn(db, turn_id)


def recover(db: sqlite3.Connection, now: datetime) -> list[Turn]:
    """Mark what an earlier process left open as interrupted and keep what it had said."""
    rows = db.execute(
        "SELECT t.id, d.text FROM turns t LEFT JOIN drafts d ON d.turn = t.number"
        " WHERE t.state IN ('queued', 'running') ORDER BY t.number"
    ).fetchall()
    return [_interrupt(db, turn_id, draft or "", now) for turn_id, draft in rows]


def get_turn(db: sqlite3.Connection, turn_id: str) -> Turn:
    row = db.execute(f"SELECT {TURN_COLUMNS} FROM turns WHERE id = ?", (turn_id,)).fetchone()
    if row is None:
        raise NotFound("turn", turn_id)
    return to_turn(row)


def turn_by_key(db: sqlite3.Connection, request: TurnRequest) -> Turn | None:
    """The turn of the session that was accepted with the request's key."""
    if request.idempotency_key is None:
        return None
    row = db.execute(
        f"SELECT {TURN_COLUMNS} FROM turns WHERE session_id = ? AND idempotency_key = ?",
        (request.session_id, request.idempotency_key),
    ).fetchone()
    return to_turn(row) if row is not None else None


def has_content(message: Message) -> bool:
    """Whether there is anything to store: visible text, a file, a call or a result."""
    return bool(message.text.strip()) or any(
        isinstance(part, FilePart | ToolCallPart | ToolResultPart) for part in message.parts
    )


def _interrupt(db: sqlite3.Connection, turn_id: str, draft: str, now: datetime) -> Turn:
    rows = db.execute(
        "SELECT role, parts FROM messages WHERE turn = (SELECT number FROM turns WHERE id = ?)"
        " AND role = 'assistant' AND hidden = 0 ORDER BY number",
        (turn_id,),
    )
    said = [text for text in (to_message(role, parts).text for role, parts in rows) if text.strip()]
    partial = Message(role="assistant", parts=(TextPart(text=draft),)) if draft.strip() else None
    text = "\n\n".join([*said, draft] if partial else said)
    return finish(db, turn_id, TurnEnding(TurnState.INTERRUPTED, text, error=INTERRUPTED, partial=partial), now)


def _store_ending(db: sqlite3.Connection, turn: _BriefTurn, ending: TurnEnding, now: datetime) -> None:
    said = ending.reply or ending.partial
    text = clean_text(ending.text or (said.text if said is not None else ""))
    moment = to_micros(now)
    db.execute(
        "UPDATE turns SET state = ?, ended_at = ?, text = ?, error = ?, in_context = ? WHERE number = ?",
        (
            ending.state,
            moment,
            text,
            to_json(ending.error) if ending.error is not None else None,
            ending.in_context,
            turn.number,
        ),
    )
    if ending.usage is not None:
        total = to_usage(turn.usage_before).plus(ending.usage)
        db.execute("UPDATE turns SET usage = ? WHERE number = ?", (total.model_dump_json(), turn.number))
    db.execute("DELETE FROM drafts WHERE turn = ?", (turn.number,))
    if ending.state is not TurnState.INTERRUPTED:  # an interrupted turn may yet be resumed and say it anew
        digest = _digest(db, turn.session_id)
        db.execute(
            "UPDATE sessions SET updated_at = max(updated_at, ?), digest = ? WHERE id = ?",
            (moment, extend(digest, "assistant", text), turn.session_id),
        )


def _touch_session(db: sqlite3.Connection, request: TurnRequest, moment: int) -> None:
    """Make the session, or note that something is said in it. A command makes no title that stays."""
    digest = extend(_digest(db, request.session_id), "user", request.message.text)
    user_id = clean_text(request.user_id)
    db.execute(
        "INSERT INTO sessions (id, title, user_id, source, created_at, updated_at, digest) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET updated_at = max(updated_at, excluded.updated_at), digest = excluded.digest,"
        " title = CASE WHEN titled = 0 AND (title = '' OR title LIKE '/%') THEN excluded.title ELSE title END",
        (request.session_id, title_of(request.message), user_id, request.source, moment, moment, digest),
    )


def _digest(db: sqlite3.Connection, session_id: str) -> bytes:
    row = db.execute("SELECT digest FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return bytes(row[0]) if row is not None else NOTHING_SAID


def _append(db: sqlite3.Connection, turn: int, session_id: str, message: Message, status: str, now: datetime) -> None:
    cursor = db.execute(
        "INSERT INTO messages (id, turn, session_id, role, parts, status, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (new_id("msg", now), turn, session_id, message.role, dump_parts(message), status, to_micros(now)),
    )
    for call in message.calls:
        db.execute(
            "INSERT OR IGNORE INTO calls (message, turn, call_id, state) VALUES (?, ?, ?, ?)",
            (cursor.lastrowid, turn, call.id, CallState.PENDING),
        )


def _open_turn(db: sqlite3.Connection, turn_id: str) -> _BriefTurn:
    turn = _brief(db, turn_id)
    if turn.state.ended:
        raise Conflict(f"turn {turn_id!r} has ended as {turn.state}; nothing can be added to it", state=turn.state)
    return turn


def _brief(db: sqlite3.Connection, turn_id: str) -> _BriefTurn:
    row = db.execute("SELECT number, session_id, state, usage_before FROM turns WHERE id = ?", (turn_id,)).fetchone()
    if row is None:
        raise NotFound("turn", turn_id)
    number, session_id, state, usage_before = row
    return _BriefTurn(number, session_id, TurnState(state), usage_before)


def _newest_call(db: sqlite3.Connection, turn: int, turn_id: str, call_id: str) -> tuple[int, CallState]:
    """Row and state; some providers use an id again in a later step, then the later call is meant."""
    row = db.execute(
        "SELECT rowid, state FROM calls WHERE turn = ? AND call_id = ? ORDER BY message DESC LIMIT 1", (turn, call_id)
    ).fetchone()
    if row is None:
        raise NotFound("tool call", call_id, f"turn {turn_id!r} made no such call")
    return row[0], CallState(row[1])
