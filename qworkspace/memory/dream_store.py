"""What dream remembers of itself in memory.db: dreamt notes, an answer until it is written, what is yet to be told."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from qworkspace.base.database import Database
from qworkspace.memory.dream_answers import Finding
from qworkspace.memory.interests import Topic

logger = logging.getLogger(__name__)

# steps of the component `dream` of memory.db
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE dream_note (
        path TEXT PRIMARY KEY,
        version TEXT NOT NULL,
        upto INTEGER NOT NULL,              -- characters of that version that are worked in
        whole INTEGER NOT NULL,             -- whether those are all
        refused INTEGER NOT NULL DEFAULT 0, -- how often an answer about that version was refused
        reason TEXT NOT NULL DEFAULT '',
        size INTEGER NOT NULL,
        modified TEXT NOT NULL,
        at TEXT NOT NULL
    ) STRICT;
    CREATE TABLE dream_run (
        grp TEXT PRIMARY KEY,
        days TEXT NOT NULL
    ) STRICT;
    CREATE TABLE dream_answer (
        grp TEXT PRIMARY KEY,
        answer TEXT NOT NULL
    ) STRICT;
    CREATE TABLE dream_change (
        grp TEXT NOT NULL,
        path TEXT NOT NULL,
        before TEXT NOT NULL,
        after TEXT NOT NULL,
        PRIMARY KEY (grp, path)
    ) STRICT;
    """,
)


@dataclass(frozen=True, slots=True)
class Dreamt:
    """How far a note is worked in. `refused` counts answers about this version that were not accepted."""

    path: str
    version: str
    upto: int
    whole: bool
    refused: int
    reason: str
    size: int
    modified: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a note, up to the character `upto`, in one batch; `whole` when nothing is left after it."""

    path: str
    version: str
    text: str
    upto: int
    whole: bool
    size: int
    modified: str


@dataclass(frozen=True, slots=True)
class Plan:
    """An accepted answer with all that it takes to write it. `base` is the MEMORY.md that it was made from.

    `key` is its own: what is written under it is written once.
    """

    group: str
    key: str
    pieces: tuple[Piece, ...]
    base: str
    memory: str | None
    findings: tuple[Finding, ...]
    day: str
    language: str


Changed = tuple[str, str, str]
"""(note, text before, text after)"""


class DreamStore:
    """The tables of dream. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def notes(self) -> dict[str, Dreamt]:
        """What is known of each note."""
        return await self._database.read(_notes)

    async def note_done(self, piece: Piece, now: datetime) -> None:
        """That piece needs no model."""
        await self._database.write(lambda db: _done(db, [piece], now))

    async def note_refused(self, pieces: Sequence[Piece], reason: str, now: datetime) -> int:
        """Count a refused answer for the notes; the highest count of them."""
        return await self._database.write(lambda db: _refused(db, pieces, reason, now))

    async def store(self, plan: Plan) -> None:
        """Keep the answer until it is written."""
        await self._database.write(lambda db: _store(db, plan))

    async def stored(self) -> Plan | None:
        """The answer that is kept, if any; one that cannot be read any more is dropped, its notes are dreamt again."""
        row = await self._database.read(_stored)
        if row is None:
            return None
        group, answer = row
        try:
            return _plan(json.loads(answer))
        except (ValueError, KeyError, TypeError) as error:  # of another version, or rescued from a damaged file
            logger.warning("the stored answer of %s cannot be read: %s", group, error)
            await self._drop(group)
            return None

    async def drop(self, plan: Plan) -> None:
        """That answer will not be written."""
        await self._drop(plan.group)

    async def written(self, plan: Plan, changes: Sequence[Changed], now: datetime) -> None:
        """All of the plan is in the files."""
        await self._database.write(lambda db: _written(db, plan, changes, now))

    async def untold(self) -> list[tuple[str, tuple[str, ...], list[Changed]]]:
        """(group, notes, changes) of dreams that are written and not yet told."""
        return await self._database.read(_untold)

    async def told(self, group: str) -> None:
        """The person knows of that dream, or need not."""
        await self._database.write(lambda db: _told(db, group))

    async def _drop(self, group: str) -> None:
        await self._database.write(lambda db: db.execute("DELETE FROM dream_answer WHERE grp = ?", (group,)).rowcount)


def _notes(db: sqlite3.Connection) -> dict[str, Dreamt]:
    rows = db.execute("SELECT path, version, upto, whole, refused, reason, size, modified FROM dream_note")
    return {row[0]: Dreamt(row[0], row[1], row[2], bool(row[3]), *row[4:]) for row in rows}


def _done(db: sqlite3.Connection, pieces: Sequence[Piece], now: datetime) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO dream_note (path, version, upto, whole, size, modified, at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(p.path, p.version, p.upto, int(p.whole), p.size, p.modified, now.isoformat()) for p in pieces],
    )


def _refused(db: sqlite3.Connection, pieces: Sequence[Piece], reason: str, now: datetime) -> int:
    known = _notes(db)
    counts = []
    for piece in pieces:
        row = known.get(piece.path)
        same = row is not None and row.version == piece.version
        counts.append(row.refused + 1 if row is not None and same else 1)
        upto = row.upto if row is not None and same else 0
        db.execute(
            "INSERT OR REPLACE INTO dream_note (path, version, upto, whole, refused, reason, size, modified, at)"
            " VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)",
            (piece.path, piece.version, upto, counts[-1], reason, piece.size, piece.modified, now.isoformat()),
        )
    return max(counts, default=0)


def _store(db: sqlite3.Connection, plan: Plan) -> None:
    text = json.dumps(asdict(plan), ensure_ascii=False)
    db.execute("INSERT OR REPLACE INTO dream_answer (grp, answer) VALUES (?, ?)", (plan.group, text))


def _stored(db: sqlite3.Connection) -> tuple[str, str] | None:
    row: tuple[str, str] | None = db.execute("SELECT grp, answer FROM dream_answer ORDER BY grp LIMIT 1").fetchone()
    return row


def _plan(value: Mapping[str, Any]) -> Plan:
    pieces = tuple(Piece(**piece) for piece in value["pieces"])
    findings = tuple(Finding(_topic(finding["topic"]), finding["text"]) for finding in value["findings"])
    rest = {key: value[key] for key in ("group", "key", "base", "memory", "day", "language")}
    return Plan(pieces=pieces, findings=findings, **rest)


def _topic(value: Mapping[str, Any]) -> Topic:
    return Topic(**{**value, "keywords": tuple(value["keywords"]), "paths": tuple(value["paths"])})


def _written(db: sqlite3.Connection, plan: Plan, changes: Sequence[Changed], now: datetime) -> None:
    _done(db, plan.pieces, now)
    row = db.execute("SELECT days FROM dream_run WHERE grp = ?", (plan.group,)).fetchone()
    days = dict.fromkeys([*(_days(row[0]) if row else ()), *(piece.path for piece in plan.pieces)])
    db.execute("INSERT OR REPLACE INTO dream_run (grp, days) VALUES (?, ?)", (plan.group, json.dumps(list(days))))
    db.executemany(
        "INSERT INTO dream_change (grp, path, before, after) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (grp, path) DO UPDATE SET after = excluded.after",
        [(plan.group, *change) for change in changes],
    )
    db.execute("DELETE FROM dream_answer WHERE grp = ?", (plan.group,))


def _untold(db: sqlite3.Connection) -> list[tuple[str, tuple[str, ...], list[Changed]]]:
    runs = db.execute("SELECT grp, days FROM dream_run ORDER BY grp").fetchall()
    select = "SELECT path, before, after FROM dream_change WHERE grp = ? ORDER BY rowid"
    return [(group, _days(days), db.execute(select, (group,)).fetchall()) for group, days in runs]


def _days(stored: str) -> tuple[str, ...]:
    try:
        return tuple(str(day) for day in json.loads(stored))
    except (ValueError, TypeError):  # rescued from a damaged file
        return ()


def _told(db: sqlite3.Connection, group: str) -> None:
    db.execute("DELETE FROM dream_change WHERE grp = ?", (group,))
    db.execute("DELETE FROM dream_run WHERE grp = ?", (group,))
