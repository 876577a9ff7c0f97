"""The tables of the summarize queue in `memory.db` (component `queue`). Each function runs inside a transaction.

A task goes `queued` -> `extracted` -> `done`; after too many failures it is `aside` until somebody asks for it again.
`outcome` is what was extracted, stored together with the session's mark and before any of it is written: a task that
has one writes it, however often it begins. Times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from qworkspace.base.ids import new_id
from qworkspace.base.text import clean_text
from qworkspace.errors import NotFound
from qworkspace.sessions.rows import from_micros, to_micros

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE queue_tasks (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL,
        reason TEXT NOT NULL,
        upto_turn TEXT NOT NULL,
        wishes INTEGER NOT NULL DEFAULT 1,
        state TEXT NOT NULL,
        failures INTEGER NOT NULL DEFAULT 0,
        trouble_since INTEGER,
        provider INTEGER NOT NULL DEFAULT 0,
        error TEXT NOT NULL DEFAULT '',
        outcome TEXT,
        facts INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        ended_at INTEGER
    ) STRICT;
    CREATE INDEX queue_open ON queue_tasks (state, number) WHERE state != 'done';

    CREATE TABLE queue_marks (
        session_id TEXT PRIMARY KEY,
        turn_id TEXT NOT NULL,
        moment INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE queue_seen (only INTEGER PRIMARY KEY CHECK (only = 1), moment INTEGER NOT NULL) STRICT;
    """,
)
"""`queue_marks.moment` is when the marked turn had ended; `queue_seen`: older sessions need no look at the start."""

KEEP_DONE = 200
LONGEST_ERROR = 500
TaskState = Literal["queued", "extracted", "done", "aside"]
_COLUMNS = "id, session_id, reason, upto_turn, wishes, state, failures, facts, error, created_at, trouble_since"


@dataclass(frozen=True, slots=True)
class Task:
    """One extraction. `upto_turn` is inclusive, empty for all turns that have ended; `error` is its last failure.

    `wishes` counts how often it was asked for.
    """

    id: str
    session_id: str
    reason: str
    upto_turn: str
    wishes: int
    state: TaskState
    failures: int
    facts: int
    error: str
    created_at: datetime
    trouble_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to which turn a session was extracted, and when that turn had ended."""

    turn_id: str
    moment: datetime


@dataclass(frozen=True, slots=True)
class Trouble:
    """How a try has failed. `counts` tells whether it is one of the failures that a task may have."""

    error: str
    at: datetime
    counts: bool
    provider: bool


def add(db: sqlite3.Connection, session_id: str, reason: str, upto_turn: str, now: datetime) -> str:
    """Queue the session; a waiting task of it that has extracted nothing yet takes the wish over. The task's id."""
    row = db.execute(
        "SELECT id, upto_turn FROM queue_tasks WHERE state = 'queued' AND session_id = ?", (session_id,)
    ).fetchone()
    if row is not None:
        task_id, upto = row
        later = max(upto, upto_turn) if upto and upto_turn else ""
        db.execute("UPDATE queue_tasks SET upto_turn = ?, wishes = wishes + 1 WHERE id = ?", (later, task_id))
        return str(task_id)
    task_id = new_id("task", now)
    db.execute(
        "INSERT INTO queue_tasks (id, session_id, reason, upto_turn, state, created_at)"
        " VALUES (?, ?, ?, ?, 'queued', ?)",
        (task_id, session_id, reason, upto_turn, to_micros(now)),
    )
    return task_id


def ready(db: sqlite3.Connection, held: Collection[str]) -> Task | None:
    """The first task that waits, without those that are held back."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM queue_tasks WHERE state IN ('queued', 'extracted') ORDER BY number")
    return next((_to_task(row) for row in rows if row[0] not in held), None)


def has_waiting(db: sqlite3.Connection, session_id: str) -> bool:
    """Whether a task of the session waits."""
    row = db.execute(
        "SELECT 1 FROM queue_tasks WHERE state IN ('queued', 'extracted') AND session_id = ?", (session_id,)
    ).fetchone()
    return row is not None


def outcome(db: sqlite3.Connection, task_id: str) -> str:
    """What was extracted, as it was stored."""
    row = db.execute("SELECT outcome FROM queue_tasks WHERE id = ?", (task_id,)).fetchone()
    if row is None or row[0] is None:
        raise NotFound("extracted task", task_id)
    return str(row[0])


def mark(db: sqlite3.Connection, session_id: str) -> Mark | None:
    """The last turn of the session that was extracted."""
    row = db.execute("SELECT turn_id, moment FROM queue_marks WHERE session_id = ?", (session_id,)).fetchone()
    return Mark(row[0], from_micros(row[1])) if row is not None else None


def marks(db: sqlite3.Connection) -> dict[str, Mark]:
    rows = db.execute("SELECT session_id, turn_id, moment FROM queue_marks")
    return {session_id: Mark(turn_id, from_micros(moment)) for session_id, turn_id, moment in rows}


def set_mark(db: sqlite3.Connection, session_id: str, mark: Mark) -> None:
    """Everything up to that turn was extracted, or is never to be."""
    db.execute(
        "INSERT INTO queue_marks VALUES (?, ?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET turn_id = excluded.turn_id, moment = excluded.moment",
        (session_id, mark.turn_id, to_micros(mark.moment)),
    )


def extracted(
    db: sqlite3.Connection, task: Task, outcome: str, *, facts: int, mark: Mark | None, more: bool, now: datetime
) -> None:
    """Store what was found and how far. A task for the rest, or for what was wished since, waits at the queue's end."""
    row = db.execute(
        "UPDATE queue_tasks SET state = 'extracted', outcome = ?, facts = ?, failures = 0, trouble_since = NULL,"
        " error = '' WHERE id = ? AND state = 'queued' RETURNING wishes, upto_turn",
        (outcome, facts, task.id),
    ).fetchone()
    if row is None:
        raise NotFound("queued task", task.id)
    wishes, upto = row
    if mark is not None:
        set_mark(db, task.session_id, mark)
    if more or wishes != task.wishes:
        add(db, task.session_id, task.reason, upto, now)
    _close_aside(db, task.session_id, to_micros(now))  # what it was to extract is extracted now


def finish(db: sqlite3.Connection, task_id: str, now: datetime) -> None:
    """The task is done; the oldest of those that are done are forgotten."""
    db.execute(
        "UPDATE queue_tasks SET state = 'done', outcome = NULL, error = '', ended_at = ? WHERE id = ?",
        (to_micros(now), task_id),
    )
    db.execute(
        "DELETE FROM queue_tasks WHERE state = 'done' AND number <= (SELECT number FROM queue_tasks"
        f" WHERE state = 'done' ORDER BY number DESC LIMIT 1 OFFSET {KEEP_DONE})"
    )


def fail(db: sqlite3.Connection, task_id: str, trouble: Trouble, *, most: int) -> TaskState:
    """Note a failure; the task is `aside` when it has failed `most` times."""
    at = to_micros(trouble.at)
    db.execute(
        "UPDATE queue_tasks SET error = ?, provider = ?, trouble_since = coalesce(trouble_since, ?),"
        " failures = failures + ? WHERE id = ?",
        (clean_text(trouble.error)[:LONGEST_ERROR], trouble.provider, at, trouble.counts, task_id),
    )
    row = db.execute("SELECT state, session_id, failures FROM queue_tasks WHERE id = ?", (task_id,)).fetchone()
    if row is None or row[2] < most:
        return row[0] if row is not None else "done"
    _close_aside(db, row[1], at)  # this one goes at least as far
    db.execute("UPDATE queue_tasks SET state = 'aside' WHERE id = ?", (task_id,))
    return "aside"


def retry(db: sqlite3.Connection, task_id: str) -> None:
    """A task that was set aside waits again, with what it had extracted."""
    if not _take_up(db, "state = 'aside' AND id = ?", task_id):
        raise NotFound("task", task_id, "only tasks that were set aside can be tried again")


def retry_provider(db: sqlite3.Connection) -> None:
    """The provider answers again: what was set aside because it did not waits again."""
    _take_up(db, "state = 'aside' AND provider = ?", 1)


def _close_aside(db: sqlite3.Connection, session_id: str, at: int) -> None:
    db.execute(
        "UPDATE queue_tasks SET state = 'done', ended_at = ? WHERE state = 'aside' AND session_id = ?"
        " AND outcome IS NULL",
        (at, session_id),
    )


def _take_up(db: sqlite3.Connection, where: str, value: str | int) -> int:
    return db.execute(
        "UPDATE queue_tasks SET state = iif(outcome IS NULL, 'queued', 'extracted'), failures = 0,"
        f" trouble_since = NULL WHERE {where}",
        (value,),
    ).rowcount


def tasks(db: sqlite3.Connection, limit: int) -> list[Task]:
    """The tasks, those that are not done first, then the newest ones."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM queue_tasks ORDER BY state = 'done', iif(state = 'done', -number, number) LIMIT ?",
        (limit,),
    )
    return [_to_task(row) for row in rows]


def set_aside(db: sqlite3.Connection) -> list[Task]:
    """The tasks that are set aside, the oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM queue_tasks WHERE state = 'aside' ORDER BY number")
    return [_to_task(row) for row in rows]


def count_waiting(db: sqlite3.Connection) -> int:
    """How many tasks wait."""
    (count,) = db.execute("SELECT count(*) FROM queue_tasks WHERE state IN ('queued', 'extracted')").fetchone()
    return int(count)


def seen(db: sqlite3.Connection) -> datetime | None:
    row = db.execute("SELECT moment FROM queue_seen").fetchone()
    return from_micros(row[0]) if row is not None else None


def set_seen(db: sqlite3.Connection, moment: datetime) -> None:
    """Sessions that were last used before that moment need no look at the next start."""
    db.execute("INSERT OR REPLACE INTO queue_seen VALUES (1, ?)", (to_micros(moment),))


def _to_task(row: tuple[Any, ...]) -> Task:
    task_id, session_id, reason, upto, wishes, state, failures, facts, error, created, trouble = row
    return Task(
        id=task_id,
        session_id=session_id,
        reason=reason,
        upto_turn=upto,
        wishes=wishes,
        state=state,
        failures=failures,
        facts=facts,
        error=error,
        created_at=from_micros(created),
        trouble_since=from_micros(trouble) if trouble is not None else None,
    )
