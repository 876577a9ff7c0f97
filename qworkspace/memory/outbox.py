"""What is on its way to the long-term database: kept in `memory.db` until the database has confirmed it.

Bounded in entries and bytes: when it is full the oldest go, are counted, and that is a problem that a person sees.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Literal

from qworkspace.base.database import Database
from qworkspace.base.text import clean_text

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE outbox (
        no INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL CHECK (kind IN ('turn', 'forget')),
        session_id TEXT NOT NULL,
        turn_id TEXT UNIQUE,
        body BLOB NOT NULL,
        size INTEGER NOT NULL,
        error TEXT
    ) STRICT;
    CREATE INDEX outbox_size ON outbox (size, error);
    CREATE TABLE outbox_facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    """,
)
MAX_ENTRIES = 20_000
MAX_BYTES = 64 * 1024 * 1024  # compressed
BATCH_ENTRIES = 50
BATCH_BYTES = 1024 * 1024
OVERHEAD = 128  # bytes of a row beside its body


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn as the database gets it. `at` is UTC, `day` the user's date then."""

    turn_id: str
    session_id: str
    user_id: str
    agent_id: str
    at: datetime
    day: date
    message: str
    reply: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A turn to be stored, a session whose turns are to be deleted, or a row that cannot be read any more."""

    no: int
    kind: Literal["turn", "forget", "broken"]
    session_id: str
    record: TurnRecord | None = None


@dataclass(frozen=True, slots=True)
class OutboxCounts:
    """Entries that wait, entries that the database refused, turns that were dropped because there was no room."""

    waiting: int = 0
    refused: int = 0
    dropped: int = 0


class Outbox:
    """Entries in order. What `put` and `forget` were given is durable when they return."""

    def __init__(self, database: Database, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._database = database
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self.counts = OutboxCounts()

    async def open(self) -> None:
        """Look at what an earlier run has left, and let what was refused be tried once more."""
        self.counts = await self._database.write(_reopen)

    async def last_at(self, now: datetime) -> datetime:
        """The time of the newest turn that was ever put; `now`, which is kept, when there was none."""
        return datetime.fromtimestamp(await self._database.write(lambda db: _latest(db, int(now.timestamp()))), UTC)

    async def put(self, record: TurnRecord) -> int:
        """Queue a turn; one that waits already is not queued again. The number of turns that had to go for it."""

        def work(db: sqlite3.Connection) -> tuple[int, OutboxCounts]:
            _insert(db, "turn", record.session_id, record.turn_id, _packed(record))
            _keep_latest(db, int(record.at.timestamp()))
            return _make_room(db, self._max_entries, self._max_bytes), _count(db)

        dropped, self.counts = await self._database.write(work)
        return dropped

    async def forget(self, session_id: str) -> None:
        """The session's turns that wait are not sent any more, and those that were are to be deleted."""

        def work(db: sqlite3.Connection) -> OutboxCounts:
            db.execute("DELETE FROM outbox WHERE session_id = ?", (session_id,))
            _insert(db, "forget", session_id, None, b"")
            return _count(db)

        self.counts = await self._database.write(work)

    async def next(self) -> list[Entry]:
        """The oldest entries, as many as go together; empty when nothing waits."""
        return await self._database.read(_oldest)

    async def done(self, entries: Sequence[Entry]) -> None:
        """The database has them."""

        def work(db: sqlite3.Connection) -> OutboxCounts:
            db.executemany("DELETE FROM outbox WHERE no = ?", [(entry.no,) for entry in entries])
            return _count(db)

        self.counts = await self._database.write(work)

    async def refuse(self, entry: Entry, reason: str) -> None:
        """The database will not take this one: it waits no more, and is kept until the next `open`."""

        def work(db: sqlite3.Connection) -> OutboxCounts:
            db.execute("UPDATE outbox SET error = ? WHERE no = ?", (reason, entry.no))
            return _count(db)

        self.counts = await self._database.write(work)


def _reopen(db: sqlite3.Connection) -> OutboxCounts:
    db.execute("UPDATE outbox SET error = NULL WHERE error IS NOT NULL")
    return _count(db)


def _insert(db: sqlite3.Connection, kind: str, session_id: str, turn_id: str | None, body: bytes) -> None:
    row = (kind, session_id, turn_id, body, len(body) + OVERHEAD)
    db.execute("INSERT OR IGNORE INTO outbox (kind, session_id, turn_id, body, size) VALUES (?, ?, ?, ?, ?)", row)


def _latest(db: sqlite3.Connection, otherwise: int) -> int:
    db.execute("INSERT OR IGNORE INTO outbox_facts VALUES ('latest', ?)", (otherwise,))
    (seconds,) = db.execute("SELECT value FROM outbox_facts WHERE name = 'latest'").fetchone()
    return int(seconds)


def _keep_latest(db: sqlite3.Connection, seconds: int) -> None:
    db.execute(
        "INSERT INTO outbox_facts VALUES ('latest', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, ?)",
        (seconds, seconds),
    )


def _make_room(db: sqlite3.Connection, max_entries: int, max_bytes: int) -> int:
    """Drop the oldest turns until the rest fits; requests to delete stay. The newest entry stays in any case."""
    dropped = 0
    while True:
        entries, size = db.execute("SELECT count(*), total(size) FROM outbox").fetchone()
        if entries <= max_entries and size <= max_bytes:
            break
        gone = db.execute(
            "DELETE FROM outbox WHERE no = (SELECT min(no) FROM outbox WHERE kind = 'turn')"
            " AND no < (SELECT max(no) FROM outbox)"
        ).rowcount
        if not gone:
            break
        dropped += gone
    if dropped:
        db.execute(
            "INSERT INTO outbox_facts VALUES ('dropped', ?) ON CONFLICT (name) DO UPDATE SET value = value + ?",
            (dropped, dropped),
        )
    return dropped


def _count(db: sqlite3.Connection) -> OutboxCounts:
    waiting, refused = db.execute("SELECT count(*) FILTER (WHERE error IS NULL), count(error) FROM outbox").fetchone()
    dropped = db.execute("SELECT value FROM outbox_facts WHERE name = 'dropped'").fetchone()
    return OutboxCounts(waiting, refused, dropped[0] if dropped else 0)


def _oldest(db: sqlite3.Connection) -> list[Entry]:
    found: list[Entry] = []
    size = 0
    rows = db.execute(
        "SELECT no, kind, session_id, body, size FROM outbox WHERE error IS NULL ORDER BY no LIMIT ?", (BATCH_ENTRIES,)
    )
    for no, kind, session_id, body, bytes_ in rows:
        size += bytes_
        if found and size > BATCH_BYTES:
            break
        found.append(Entry(no, "forget", session_id) if kind == "forget" else _turn(no, session_id, body))
    return found


def _turn(no: int, session_id: str, body: bytes) -> Entry:
    try:
        return Entry(no, "turn", session_id, _unpacked(body))
    except (zlib.error, ValueError, TypeError, KeyError):  # rescued from a damaged file
        return Entry(no, "broken", session_id)


def _packed(record: TurnRecord) -> bytes:
    facts = asdict(record) | {"at": record.at.isoformat(), "day": record.day.isoformat()}
    facts |= {key: _storable(facts[key]) for key in ("message", "reply")}
    return zlib.compress(json.dumps(facts, ensure_ascii=False).encode())


def _unpacked(body: bytes) -> TurnRecord:
    facts = json.loads(zlib.decompress(body))
    facts |= {"at": datetime.fromisoformat(facts["at"]), "day": date.fromisoformat(facts["day"])}
    return TurnRecord(**facts)


def _storable(text: str) -> str:
    """PostgreSQL has no NUL in a text."""
    return clean_text(text).replace("\0", "")
