"""What happened to the configuration of each agent: the reloads, kept in home.db."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from qworkspace.base.database import Database

KEPT = 200
"""Reloads kept per agent."""

MIGRATIONS = (
    """
    CREATE TABLE reloads (
        number INTEGER PRIMARY KEY,
        agent_id TEXT NOT NULL,
        generation INTEGER NOT NULL,
        at TEXT NOT NULL,
        cause TEXT NOT NULL,
        outcome TEXT NOT NULL,
        facts TEXT NOT NULL
    ) STRICT;
    CREATE INDEX reloads_of_agent ON reloads (agent_id, number);
    """,
)


class Outcome(StrEnum):
    """How a reload ended. `LIVE` swapped the configuration only; `FAILED` never came to the swap."""

    APPLIED = "applied"
    LIVE = "live"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds; None for what has not happened (yet)."""

    build_ms: float | None = None
    swap_ms: float | None = None
    drain_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Reload:
    """One reload. `generation` is the instance that acts after it; `number` is 0 until it is stored."""

    agent_id: str
    generation: int
    at: datetime
    trigger: str
    outcome: Outcome
    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    error: dict[str, Any] | None = None
    timings: Timings = field(default_factory=Timings)
    number: int = 0

    def facts(self) -> dict[str, Any]:
        """As the API shows it."""
        shown: dict[str, Any] = {
            "generation": self.generation,
            "at": self.at.isoformat(),
            "trigger": self.trigger,
            "changed": list(self.changed),
            "moved": list(self.moved),
            "rebuilt": list(self.rebuilt),
            "outcome": self.outcome.value,
            "timings": {
                "build_ms": self.timings.build_ms,
                "swap_ms": self.timings.swap_ms,
                "drain_ms": self.timings.drain_ms,
            },
        }
        return shown | ({"error": self.error} if self.error is not None else {})


class ReloadHistory:
    """The newest reloads of every agent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, reload: Reload) -> Reload:
        """Store it and drop what is too old; the stored one."""
        return await self._database.write(lambda db: _insert(db, reload))

    async def drained(self, reload: Reload, drain_ms: float) -> None:
        """Note how long the replaced instance still had turns."""
        done = replace(reload, timings=replace(reload.timings, drain_ms=drain_ms))
        facts = json.dumps(done.facts())
        await self._database.write(
            lambda db: db.execute("UPDATE reloads SET facts = ? WHERE number = ?", (facts, reload.number))
        )

    async def page(self, agent_id: str, limit: int, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """The agent's reloads, the newest first, and where to go on."""
        before = int(cursor) if cursor is not None and cursor.isdigit() else None
        return await self._database.read(lambda db: _page(db, agent_id, limit, before))


def _insert(db: sqlite3.Connection, reload: Reload) -> Reload:
    cursor = db.execute(
        "INSERT INTO reloads (agent_id, generation, at, cause, outcome, facts) VALUES (?, ?, ?, ?, ?, ?)",
        (
            reload.agent_id,
            reload.generation,
            reload.at.isoformat(),
            reload.trigger,
            reload.outcome.value,
            json.dumps(reload.facts()),
        ),
    )
    db.execute(
        "DELETE FROM reloads WHERE agent_id = ? AND number <="
        " (SELECT number FROM reloads WHERE agent_id = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (reload.agent_id, reload.agent_id, KEPT),
    )
    return replace(reload, number=cursor.lastrowid or 0)


def _page(
    db: sqlite3.Connection, agent_id: str, limit: int, before: int | None
) -> tuple[list[dict[str, Any]], str | None]:
    rows = db.execute(
        "SELECT number, facts FROM reloads WHERE agent_id = ? AND (? IS NULL OR number < ?)"
        " ORDER BY number DESC LIMIT ?",
        (agent_id, before, before, limit + 1),
    ).fetchall()
    more = str(rows[limit - 1][0]) if len(rows) > limit else None
    return [json.loads(facts) for _, facts in rows[:limit]], more
