"""Every change of every note, with what it takes to undo it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from qworkspace.memory.database import MemoryDb
from qworkspace.memory.notes import Change

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


@dataclass(frozen=True, slots=True)
class Page:
    """Changes, newest first; `cursor` asks for the next ones, empty when there are none."""

    changes: tuple[Change, ...]
    cursor: str = ""


class VaultHistory:
    """The changes of one vault, newest first, in the component `vault` of the agent's memory database."""

    def __init__(self, db: MemoryDb) -> None:
        self.db = db

    async def list(self, path: str | None = None, *, limit: int = 50, cursor: str = "") -> Page:
        """Changes that took place (done or undone), newest first; of one note if named."""
        raise NotImplementedError

    async def show(self, change_or_group: str) -> str:
        """The change, or all of a group, as a unified diff. `NotFound`."""
        raise NotImplementedError

    async def prune(self, now: datetime) -> int:
        """Forget what is older than 90 days, beyond 2,000 changes or 64 MB; the number of changes forgotten."""
        raise NotImplementedError
