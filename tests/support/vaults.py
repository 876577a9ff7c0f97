"""A vault with a real database, for one test or one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

from qworkspace.base.clock import Clock, SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.memory.database import memory_db
from qworkspace.memory.history import MIGRATIONS, VaultHistory
from qworkspace.memory.notes import Author
from qworkspace.memory.vault import AgentMdManager

PERSON = Author("person")
TOOL = Author("tool", "chat-1", "turn_1")


@dataclass
class Opened:
    """A vault and what it stands on."""

    vault: AgentMdManager
    root: Path
    clock: Clock
    problems: Problems
    threads: Threads
    changed: list[str] = field(default_factory=list)

    def bytes(self, name: str) -> bytes | None:
        """What the file holds; None when it is not there."""
        path = self.root / name
        return path.read_bytes() if path.exists() else None

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")


@asynccontextmanager
async def opened(root: Path, *, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Opened]:
    """The vault of the workspace `root`, started; closed at the end."""
    clock = clock or SimulatedClock()
    threads = Threads()
    problems = Problems(clock, EventBus(clock))
    db = memory_db(
        root / ".state", {"vault": MIGRATIONS}, threads=threads, clock=clock, problems=problems, agent_id="a"
    )
    changed: list[str] = []
    vault = AgentMdManager(
        root,
        MemoryConfig(**settings),
        history=VaultHistory(db),
        clock=clock,
        threads=threads,
        problems=problems,
        agent_id="a",
        zone=lambda: UTC,
        changed=changed.append,
    )
    try:
        await db.open()
        try:
            await vault.start()
            yield Opened(vault, root, clock, problems, threads, changed)
        finally:
            await vault.close()
            await db.close()
    finally:
        threads.close()
