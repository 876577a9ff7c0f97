"""A memory index over a directory of notes, with an embedder that counts what it is asked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qworkspace.base.clock import Clock, SystemClock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import ModelError
from qworkspace.memory.contract import Query
from qworkspace.memory.embeddings import Embedder, NoEmbedder
from qworkspace.memory.index import MemoryIndex
from qworkspace.memory.notes import Source

if TYPE_CHECKING:
    from qworkspace.memory.vectors import VectorStore

DIMENSIONS = 16


@dataclass
class CountingEmbedder:
    """Vectors from the words of a text: the same text has the same one. `texts` are all that it has embedded."""

    id: str = "counting/one"
    strong: bool = False
    ready: bool = True
    dimensions: int = DIMENSIONS
    texts: list[str] = field(default_factory=list)
    failing: str = ""
    gate: asyncio.Event | None = None

    async def embed(self, texts: Sequence[str]) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        if self.failing:
            raise ModelError(self.failing, code="unreachable")
        self.texts += texts
        return await asyncio.to_thread(_vectors, texts, self.dimensions)

    async def embed_query(self, text: str) -> Any:
        if self.failing:
            raise ModelError(self.failing, code="unreachable")
        return (await asyncio.to_thread(_vectors, [text], self.dimensions))[0]


def _vectors(texts: Sequence[str], dimensions: int) -> Any:
    import numpy as np  # heavy

    rows = np.full((len(texts), dimensions), 1e-3, np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row[hashlib.md5(word.encode("utf-8", "replace")).digest()[0] % dimensions] += 1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def builtin_store(_id: str, dimensions: int) -> VectorStore:
    from qworkspace.memory.vectors import BuiltinVectors  # heavy

    return BuiltinVectors(dimensions)


class Notes:
    """A directory of notes, with the daemon's parts that an index needs."""

    def __init__(self, folder: Path, clock: Clock | None = None, *, workers: int = 3) -> None:
        self.folder = folder
        self.clock = clock or SystemClock()
        self.bus = EventBus(self.clock)
        self.problems = Problems(self.clock, self.bus)
        self.threads = Threads(workers)
        self.turns = asyncio.Semaphore(1)
        self.opened: list[MemoryIndex] = []
        self.listings = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def file(self) -> Path:
        return self.folder / ".state" / "index.db"

    @property
    def troubles(self) -> list[str]:
        return [problem.message for problem in self.problems.of()]

    def sources(self) -> list[Source]:
        self.listings += 1
        return [Source(path.relative_to(self.folder).as_posix(), path) for path in sorted(self.folder.rglob("*.md"))]

    def put(self, name: str, text: str | bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return name

    def put_many(self, count: int) -> None:
        for number in range(count):
            self.put(f"memory/n{number:03}.md", f"note word{number}\n" + "some filler text\n" * 40)

    def index(self, embedder: Embedder | None = None, **settings: Any) -> MemoryIndex:
        made = MemoryIndex(
            self.folder,
            self.sources,
            state_dir=self.folder / ".state",
            embedder=embedder or NoEmbedder(),
            vectors=builtin_store,
            settings=MemoryConfig(**settings),
            clock=self.clock,
            threads=self.threads,
            problems=self.problems,
            bus=self.bus,
            agent_id="a",
            turns=self.turns,
        )
        self.opened.append(made)
        return made

    async def ready(self, embedder: Embedder | None = None) -> MemoryIndex:
        """An open index that is up to date."""
        index = self.index(embedder)
        await index.open()
        index.refresh()
        await index.settled()
        return index

    async def close(self) -> None:
        for index in self.opened:
            await index.close()
        self.threads.close()


async def paths(index: MemoryIndex, text: str, **filters: Any) -> list[str]:
    """Where one of these words stands, best first, each note once: what is merely related is left out."""
    found = await index.search(Query(text, **filters))
    words = text.lower().split()
    return list(dict.fromkeys(hit.path for hit in found.hits if any(word in hit.text.lower() for word in words)))
