"""Which documents were read, into which notes, in memory.db."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qworkspace.base.database import Database
from qworkspace.memory.document_files import Dropped

# steps of the component `documents` of memory.db
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE document (
        path TEXT PRIMARY KEY,
        stamp TEXT NOT NULL,                -- of the file that was looked at; empty: to be read again
        digest TEXT NOT NULL DEFAULT '',    -- sha256 of the content that was read
        note TEXT NOT NULL DEFAULT '',
        written TEXT NOT NULL DEFAULT '',   -- the note as it was written
        number INTEGER NOT NULL DEFAULT 0,  -- how often it was written
        reason TEXT NOT NULL DEFAULT '',    -- why it cannot be read; empty when it can
        tries INTEGER NOT NULL DEFAULT 0,
        at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX document_digest ON document (digest) WHERE digest <> '';
    """,
)
_COLUMNS = "path, stamp, digest, note, written, number, reason, tries"


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a document. `written` is its note's text as it was last written."""

    path: str
    stamp: str
    digest: str
    note: str
    written: str
    number: int
    reason: str
    tries: int

    def is_of(self, dropped: Dropped) -> bool:
        """Whether the file is as it was when it was looked at, and may be read or not as then."""
        return self.stamp == dropped.stamp and (not dropped.reason or dropped.reason == self.reason)


class DocumentRows:
    """The table of documents. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> dict[str, Row]:
        """Every document that was looked at, by path."""
        rows = await self._database.read(lambda db: _select(db, "1"))
        return {row.path: row for row in rows}

    async def all_refused(self) -> list[Row]:
        """Those that cannot be read."""
        return await self._database.read(lambda db: _select(db, "reason <> '' ORDER BY path"))

    async def of_content(self, digest: str) -> Row | None:
        """A document with that content that was read, under whatever name."""
        found = await self._database.read(lambda db: _select(db, "digest = ? LIMIT 1", (digest,)))
        return found[0] if found else None

    async def is_shared(self, note: str, path: str) -> bool:
        """Whether another document that is still there has the same note, for it had the same content."""
        where = "note = ? AND path <> ? AND stamp <> ''"
        return bool(await self._database.read(lambda db: _select(db, where, (note, path))))

    async def read(self, dropped: Dropped, digest: str, note: str, written: str, number: int, now: datetime) -> None:
        """Its note is written, for the time `number`."""
        values: dict[str, str | int] = {"digest": digest, "note": note, "written": written, "number": number}
        await self._put(dropped, now, **values, reason="", tries=0)

    async def same(self, dropped: Dropped, known: Row, now: datetime) -> None:
        """Its content has a note already."""
        await self.read(dropped, known.digest, known.note, known.written, known.number, now)

    async def refused(self, dropped: Dropped, reason: str, now: datetime) -> None:
        """It cannot be read; what was read of it before is still in its note."""
        await self._put(dropped, now, reason=reason)

    async def tried(self, dropped: Dropped, now: datetime) -> None:
        """It will be read again at the next look."""
        await self._database.write(
            lambda db: db.execute(
                "INSERT INTO document (path, stamp, tries, at) VALUES (?, '', 1, ?)"
                " ON CONFLICT (path) DO UPDATE SET stamp = '', tries = tries + 1, at = excluded.at",
                (dropped.name, now.isoformat()),
            )
        )

    async def gone(self, present: Collection[str]) -> None:
        """Only these files are there. What was read of others stays known; that they were refused is over."""
        rows = await self.all()
        gone = [row for row in rows.values() if row.path not in present and (row.stamp or not row.digest)]
        if gone:
            await self._database.write(lambda db: _gone(db, [row.path for row in gone]))

    async def _put(self, dropped: Dropped, now: datetime, **values: str | int) -> None:
        values = {"stamp": dropped.stamp, "at": now.isoformat(), **values}
        names = ", ".join(values)
        marks = ", ".join("?" for _ in values)
        changes = ", ".join(f"{name} = excluded.{name}" for name in values)
        statement = (
            f"INSERT INTO document (path, {names}) VALUES (?, {marks}) ON CONFLICT (path) DO UPDATE SET {changes}"
        )
        await self._database.write(lambda db: db.execute(statement, (dropped.name, *values.values())))


def _select(db: sqlite3.Connection, where: str, bound: tuple[Any, ...] = ()) -> list[Row]:
    return [Row(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM document WHERE {where}", bound)]


def _gone(db: sqlite3.Connection, paths: Sequence[str]) -> None:
    db.executemany("DELETE FROM document WHERE path = ? AND digest = ''", [(path,) for path in paths])
    db.executemany("UPDATE document SET stamp = '', reason = '' WHERE path = ?", [(path,) for path in paths])
