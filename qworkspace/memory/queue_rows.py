"""The tables of the summarize queue in `memory.db` (component `queue`). Each function runs inside a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

MIGRATIONS: tuple[str, ...] = ()
TaskState = Literal["queued", "extracted", "done", "aside"]


@dataclass(frozen=True, slots=True)
class Task:
    """One extraction. `upto_turn` is inclusive, empty for all turns that have ended; `error` is its last failure."""

    id: str
    session_id: str
    reason: str
    upto_turn: str
    state: TaskState
    failures: int
    facts: int
    error: str
    created_at: datetime
