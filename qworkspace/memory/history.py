"""Every change of every note, with what it takes to undo it, and what a crash has left half done."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from qworkspace.errors import InvalidInput, NotFound
from qworkspace.memory.database import MemoryDb
from qworkspace.memory.merging import unified
from qworkspace.memory.notes import Author, Change

KEPT_DAYS = 90
KEPT_CHANGES = 2_000
KEPT_BYTES = 64_000_000

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE vault_change (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        grp TEXT NOT NULL,
        at TEXT NOT NULL,
        kind TEXT NOT NULL,
        session_id TEXT NOT NULL,
        turn_id TEXT NOT NULL,
        path TEXT NOT NULL,
        operation TEXT NOT NULL,
        state TEXT NOT NULL,
        key TEXT NOT NULL DEFAULT '',
        undoes TEXT NOT NULL DEFAULT '',
        added INTEGER NOT NULL DEFAULT 0,
        removed INTEGER NOT NULL DEFAULT 0,
        place INTEGER NOT NULL DEFAULT 0,   -- of an append: the note's size before
        crc INTEGER NOT NULL DEFAULT 0,     -- of an append: of the note's bytes before
        seen TEXT NOT NULL DEFAULT '{}',    -- of an append: how often its lines stood in the note before
        before BLOB,                        -- zlib; NULL: the note was not there
        after BLOB                          -- zlib; of an append only what was appended; NULL: the note is gone
    ) STRICT;
    CREATE UNIQUE INDEX vault_change_key ON vault_change (key) WHERE key <> '';
    CREATE INDEX vault_change_pending ON vault_change (state) WHERE state = 'pending';
    CREATE INDEX vault_change_group ON vault_change (grp);
    CREATE INDEX vault_change_path ON vault_change (path, seq);
    """,
)
_HEAD = "seq, id, grp, at, kind, session_id, turn_id, path, operation, state, key, undoes, added, removed"
_ALL = f"{_HEAD}, place, crc, seen, before, after"


@dataclass(frozen=True, slots=True)
class Row:
    """A change with what it takes to finish or undo it.

    Of an append `after` is what was appended, `place` and `crc` are the size and checksum of the bytes before it, and
    `seen` tells how often its lines stood in the note already; `before` is empty, or None when there was no note.
    """

    change: Change
    before: bytes | None
    after: bytes | None
    place: int = 0
    crc: int = 0
    seen: Mapping[str, int] = field(default_factory=dict)
    seq: int = 0

    @property
    def path(self) -> str:
        return self.change.path


@dataclass(frozen=True, slots=True)
class Page:
    """Changes, newest first; `cursor` asks for the next ones, empty when there are none."""

    changes: tuple[Change, ...]
    cursor: str = ""


class VaultHistory:
    """The changes of one vault, in the component `vault` of the agent's memory database."""

    def __init__(self, db: MemoryDb) -> None:
        self.db = db

    async def list(self, path: str | None = None, *, limit: int = 50, cursor: str = "") -> Page:
        """Changes that took place (done or undone), newest first; of one note if named."""
        if cursor and not cursor.isdecimal():
            raise InvalidInput(f"{cursor!r} is no cursor of a history", code="invalid_cursor")
        below = int(cursor) if cursor else 1 << 62
        found = await self._select(
            f"SELECT {_HEAD} FROM vault_change WHERE state <> 'pending' AND seq < ? AND (? IS NULL OR path = ?)"
            " ORDER BY seq DESC LIMIT ?",
            (below, path, path, limit + 1),
        )
        more = str(found[limit - 1][0]) if len(found) > limit else ""
        return Page(tuple(_change(row) for row in found[:limit]), more)

    async def show(self, change_or_group: str) -> str:
        """The change, or all of a group, as a unified diff. `NotFound`."""
        return "".join(unified(row.path, row.before, row.after) for row in await self.rows(change_or_group))

    async def prune(self, now: datetime) -> int:
        """Forget what is older than 90 days, beyond 2,000 changes or 64 MB; the number of changes forgotten."""
        oldest = _stamp(now - timedelta(days=KEPT_DAYS))
        return await self.db.write(lambda db: _prune(db, oldest))

    async def rows(self, change_or_group: str) -> Sequence[Row]:
        """A change, or those of a group, oldest first; `NotFound` when there is none."""
        found = await self._select(
            f"SELECT {_ALL} FROM vault_change WHERE state <> 'pending' AND (id = ? OR grp = ?) ORDER BY seq",
            (change_or_group, change_or_group),
        )
        rows = [_row(values) for values in found]
        if not rows:
            raise NotFound("change", change_or_group, "`qworkspace memory history` lists them")
        return [row for row in rows if row.change.id == change_or_group] or rows

    async def last(self) -> str:
        """The group of the last change that is neither undone nor an undo; `NotFound` when there is none."""
        found = await self._select(
            "SELECT grp FROM vault_change WHERE state = 'done' AND undoes = '' ORDER BY seq DESC LIMIT 1", ()
        )
        if not found:
            raise NotFound("change", "last", "nothing is left to undo")
        return str(found[0][0])

    async def known(self, key: str) -> Change | None:
        """The change that was made with that key."""
        found = await self._select(f"SELECT {_HEAD} FROM vault_change WHERE key = ? AND state <> 'pending'", (key,))
        return _change(found[0]) if found else None

    async def pending(self) -> Sequence[Row]:
        """What was begun and neither finished nor given up, oldest first."""
        found = await self._select(f"SELECT {_ALL} FROM vault_change WHERE state = 'pending' ORDER BY seq", ())
        return [_row(values) for values in found]

    async def recent(self, since: datetime) -> Sequence[Row]:
        """Appends since then, oldest first."""
        found = await self._select(
            f"SELECT {_ALL} FROM vault_change WHERE state = 'done' AND operation = 'append' AND at >= ? ORDER BY seq",
            (_stamp(since),),
        )
        return [_row(values) for values in found]

    async def later(self, path: str, seq: int) -> Sequence[bytes | None]:
        """What the note was made by the changes after that one which did not append."""
        found = await self._select(
            "SELECT after FROM vault_change WHERE path = ? AND seq > ? AND operation <> 'append'"
            " AND state <> 'pending' ORDER BY seq",
            (path, seq),
        )
        return [_unpacked(blob) for (blob,) in found]

    async def begin(self, rows: Sequence[Row]) -> Sequence[int]:
        """Record what is about to be done, all or nothing; their numbers."""
        return await self.db.write(lambda db: [_insert(db, row) for row in rows])

    async def revise(self, row: Row) -> None:
        """Record other bytes for what was begun."""
        values = (_packed(row.before), _packed(row.after), row.change.added, row.change.removed, row.change.id)
        statement = "UPDATE vault_change SET before = ?, after = ?, added = ?, removed = ? WHERE id = ?"
        await self.db.write(lambda db: db.execute(statement, values).rowcount)

    async def finish(self, changes: Sequence[Change]) -> None:
        """They took place; what they undo is undone, and what an undone undo had undone holds again."""
        await self.db.write(lambda db: _finish(db, changes))

    async def give_up(self, changes: Sequence[Change]) -> None:
        """They did not take place."""
        await self.db.write(
            lambda db: db.executemany("DELETE FROM vault_change WHERE id = ?", [(c.id,) for c in changes]).rowcount
        )

    async def _select(self, statement: str, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        return await self.db.read(lambda db: db.execute(statement, values).fetchall())


def _insert(db: sqlite3.Connection, row: Row) -> int:
    change, by = row.change, row.change.by
    values = (
        *(change.id, change.group, _stamp(change.at), by.kind, by.session_id, by.turn_id, change.path),
        *(change.operation, "pending", change.key, change.undoes, change.added, change.removed),
        *(row.place, row.crc, json.dumps(dict(row.seen)), _packed(row.before), _packed(row.after)),
    )
    marks = ", ".join("?" * len(values))
    columns = _ALL.removeprefix("seq, ")
    return db.execute(f"INSERT INTO vault_change ({columns}) VALUES ({marks})", values).lastrowid or 0


def _finish(db: sqlite3.Connection, changes: Sequence[Change]) -> None:
    for change in changes:
        db.execute("UPDATE vault_change SET state = 'done' WHERE id = ?", (change.id,))
        for undone in change.undoes.split():
            db.execute("UPDATE vault_change SET state = 'undone' WHERE id = ?", (undone,))
            again = db.execute("SELECT undoes FROM vault_change WHERE id = ?", (undone,)).fetchone()
            for other in (again[0] if again else "").split():
                db.execute("UPDATE vault_change SET state = 'done' WHERE id = ?", (other,))


def _prune(db: sqlite3.Connection, oldest: str) -> int:
    kept, size, last = 0, 0, 0
    for seq, bytes_ in db.execute(
        "SELECT seq, coalesce(length(before), 0) + coalesce(length(after), 0) FROM vault_change ORDER BY seq DESC"
    ):
        kept, size = kept + 1, size + bytes_
        if kept > 1 and (kept > KEPT_CHANGES or size > KEPT_BYTES):
            last = seq
            break
    statement = "DELETE FROM vault_change WHERE state <> 'pending' AND (seq <= ? OR at < ?)"
    return db.execute(statement, (last, oldest)).rowcount


def _row(values: tuple[Any, ...]) -> Row:
    place, crc, seen, before, after = values[14:]
    return Row(_change(values), _unpacked(before), _unpacked(after), place, crc, json.loads(seen), values[0])


def _change(values: tuple[Any, ...]) -> Change:
    _, id_, group, at, kind, session, turn, path, operation, state, key, undoes, added, removed = values[:14]
    by = Author(kind, session, turn, group if group != id_ else "")
    when = datetime.fromisoformat(at)
    return Change(id_, group, when, by, path, operation, state, added, removed, undoes, key)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _packed(data: bytes | None) -> bytes | None:
    return None if data is None else zlib.compress(data, 6 if len(data) < 1_000_000 else 1)


def _unpacked(blob: bytes | None) -> bytes | None:
    return None if blob is None else zlib.decompress(blob)
