"""Archives over a real PostgreSQL: outboxes in one directory, an embedder that knows words, a simulated clock."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.database import Database
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import PostgresConfig
from qworkspace.errors import ModelError
from qworkspace.memory import outbox
from qworkspace.memory.contract import Hit, Query
from qworkspace.memory.outbox import Outbox, TurnRecord
from qworkspace.memory.pg_archive import Archive, ArchiveParts
from qworkspace.memory.pg_schema import STEPS
from qworkspace.memory.pg_store import PgStore

PATIENCE = 20.0  # seconds


class WordEmbedder:
    """Each word is a direction; words of one group of `SAME` are the same direction."""

    strong = False
    ready = True
    SAME = ({"car", "automobile", "vehicle"}, {"doctor", "physician"})

    def __init__(self, dimensions: int = 512, id: str = "words") -> None:
        self.id = id
        self.dimensions = dimensions
        self.failing: ModelError | None = None
        self.refused = ""
        self.seen: list[str] = []

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.failing is not None:
            raise self.failing
        if self.refused and any(self.refused in text for text in texts):
            raise ModelError("this text is not allowed", retryable=False)
        self.seen += texts
        return np.array([self._vector(text) for text in texts], dtype=np.float32)

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        if self.failing is not None:
            raise self.failing
        return self._vector(text)

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector = np.zeros(self.dimensions, dtype=np.float32)
        for word in text.lower().split():
            group = next((min(group) for group in self.SAME if word in group), word)
            vector[int(hashlib.sha256(group.encode()).hexdigest(), 16) % self.dimensions] += 1
        length = float(np.linalg.norm(vector))
        return vector / length if length else vector


def said(number: int, message: str, reply: str = "noted", **changes: Any) -> TurnRecord:
    """Turn `number`, on the day of that number in January."""
    facts: dict[str, Any] = {
        "turn_id": f"turn_{number:04}",
        "session_id": "s1",
        "user_id": "",
        "agent_id": "anna",
        "at": datetime(2026, 1, 1 + number % 28, 12, tzinfo=UTC),
        "day": date(2026, 1, 1 + number % 28),
        "message": message,
        "reply": reply,
    }
    return TurnRecord(**(facts | changes))


class ArchiveBench:
    """Archives of one home. `async with` closes what was opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = SimulatedClock()
        self.threads = Threads(3)
        self.problems = Problems(self.clock, EventBus(self.clock))
        self._databases: list[Database] = []
        self._archives: list[Archive] = []

    async def __aenter__(self) -> ArchiveBench:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for archive in self._archives:
            await archive.close()
        for database in self._databases:
            await database.close()
        self.threads.close()

    async def outbox(self, name: str = "anna", *, kind: type[Outbox] = Outbox, **limits: int) -> Outbox:
        database = Database(
            self.directory / f"{name}.db", migrations={"outbox": outbox.MIGRATIONS}, threads=self.threads
        )
        await database.open()
        self._databases.append(database)
        opened = kind(database, **limits)
        await opened.open()
        return opened

    def store(
        self,
        settings: dict[str, Any],
        *,
        namespace: str = "agent:anna",
        agent: str = "anna",
        steps: Sequence[str] = STEPS,
    ) -> PgStore:
        config = PostgresConfig.model_validate(settings)
        return PgStore(config, namespace=namespace, agent_id=agent, threads=self.threads, steps=steps)

    async def archive(
        self,
        settings: dict[str, Any],
        *,
        agent: str = "anna",
        namespace: str = "",
        embedder: WordEmbedder | None = None,
        box: Outbox | None = None,
    ) -> Archive:
        """An archive that has begun to act."""
        archive = Archive(
            ArchiveParts(
                agent_id=agent,
                outbox=box if box is not None else await self.outbox(agent),
                ready=opened,
                embedder=embedder or WordEmbedder(),
                store=lambda: self.store(settings, namespace=namespace or f"agent:{agent}", agent=agent),
                turn=asyncio.Lock(),
                clock=self.clock,
                threads=self.threads,
                problems=self.problems,
            )
        )
        self._archives.append(archive)
        archive.activate()
        return archive

    async def settled(self, archive: Archive) -> None:
        """The archive has carried everything; time moves on meanwhile."""
        async with asyncio.timeout(PATIENCE):
            settled = asyncio.ensure_future(archive.settled())
            while not settled.done():
                await self.clock.advance(1.0)
                await asyncio.wait({settled}, timeout=0.01)

    async def problem(self, part: str) -> str:
        """The message of a problem, once there is one whose message has `part` in it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = [problem.message for problem in self.problems.of() if part in problem.message]
                if found:
                    return found[0]
                await self.clock.advance(1.0)
                await asyncio.sleep(0.01)


async def opened() -> None:
    """The bench's outboxes are open."""


async def found(archive: Archive, text: str, *, user: str = "", **filters: Any) -> list[Hit]:
    """What a search finds; it must be a whole one."""
    hits, partial = await archive.search(Query(text, **filters), user)
    assert partial == ""
    return hits


def texts(hits: Sequence[Hit]) -> list[str]:
    return [hit.text for hit in hits]
