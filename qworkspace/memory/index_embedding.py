"""Vectors in the background: what has none yet is embedded, stored and made searchable, piece by piece."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import Tasks, Threads
from qworkspace.errors import DatabaseDamaged, ModelError, StorageError
from qworkspace.memory.embeddings import Embedder
from qworkspace.memory.index_database import IndexDatabase
from qworkspace.memory.index_loading import LoadedIndex
from qworkspace.memory.index_rows import meta
from qworkspace.memory.index_schema import transaction
from qworkspace.memory.index_state import Signs, VectorState
from qworkspace.memory.index_vectors import Waiting, begin, keep, still_waiting, waiting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)
T = TypeVar("T")
PIECE = 64
FIRST_RETRY, LAST_RETRY = 5.0, 600.0  # seconds
LATER_SECONDS = 5.0
"""Loading an encoder takes two seconds of a processor: whoever talks to a daemon that has just started comes first."""


class Embedding:
    """Gives every chunk of an index its vector. Runs while there is something to do; `wake` when there may be."""

    def __init__(
        self,
        db: IndexDatabase,
        loaded: LoadedIndex,
        embedder: Embedder,
        *,
        clock: Clock,
        threads: Threads,
        tasks: Tasks,
        signs: Signs,
        damaged: Callable[[DatabaseDamaged], None],
        quiet: Callable[[], None],
    ) -> None:
        """`damaged` is told of a damaged file, `quiet` that nothing is to be done for now."""
        self._db = db
        self._loaded = loaded
        self._embedder = embedder
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._signs = signs
        self._damaged = damaged
        self._quiet = quiet
        self._task: asyncio.Task[None] | None = None
        self._other = False
        self._failing = False
        self._again = False
        self._stopping = False
        self._waiting = False
        self.missing = 0

    @property
    def wanted(self) -> bool:
        return self._embedder.id != "none"

    @property
    def busy(self) -> bool:
        """Whether it makes progress now; not while it waits to try again."""
        return self._task is not None and not self._task.done() and not self._failing

    @property
    def state(self) -> VectorState:
        if not self.wanted:
            return "none"
        if self._other:
            return "reindex needed"
        if self._failing:
            return "waiting"
        return "building" if self.missing or self.busy else "ready"

    def count(self, db: sqlite3.Connection) -> None:
        """How much is missing; whether the vectors there are of another embedder. Blocks."""
        if self.wanted:
            upto, before = int(meta(db, "embedded_upto")), str(meta(db, "embedder"))
            self._other = before not in ("", self._embedder.id)
            self.missing = still_waiting(db, self._embedder.id, 0 if before != self._embedder.id else upto)

    def wake(self) -> None:
        """There may be chunks without a vector."""
        self._again, self._stopping = True, False
        if self.wanted and (self._task is None or self._task.done()):
            self._task = self._tasks.start(self._run(), name="vectors")

    async def stop(self) -> None:
        """End what is under way; the piece that was begun is lost."""
        task, self._task = self._task, None
        self._failing, self._stopping = False, True
        if task is not None:
            if self._waiting:
                task.cancel()
            await asyncio.wait({task})  # what is stored is also to be seen by searches

    async def _run(self) -> None:
        if not self._embedder.ready:
            await self._interruptible(self._clock.sleep(LATER_SECONDS))
        retry = FIRST_RETRY
        while self._again and not self._stopping:
            self._again = False
            try:
                await self._all()
            except DatabaseDamaged as error:
                self._damaged(error)
                return
            except (ModelError, StorageError) as error:
                await self._wait(error.message, retry)
            except Exception as error:
                logger.exception("making vectors failed")
                await self._wait(f"{error}; see the log", retry)
            else:
                retry = FIRST_RETRY
                self._failing = False
                self._signs.clear("vectors")
                continue
            retry = min(retry * 2, LAST_RETRY)
        self._task = None
        self._quiet()

    async def _wait(self, trouble: str, seconds: float) -> None:
        """Say what is wrong, and wait before all that is left is tried again."""
        self._signs.report("vectors", f"notes are found by their words only: {trouble}")
        if self._stopping:
            return
        self._failing, self._again = True, True
        self._quiet()
        await self._interruptible(self._clock.sleep(seconds))
        self._failing = False

    async def _all(self) -> None:
        self._other |= await self._db.write(self._begin)
        upto = await self._db.look(lambda db: int(meta(db, "embedded_upto")))
        self.missing = await self._db.look(lambda db: still_waiting(db, self._embedder.id, upto))
        total = self.missing
        while not self._stopping:
            after = upto
            piece = await self._db.look(lambda db, after=after: waiting(db, self._embedder.id, after, PIECE))  # type: ignore[misc]
            if piece is None:
                self.missing, self._other = 0, False
                break
            await self._piece(piece)
            upto = piece.upto
            if total:
                self._signs.progress("vectors", total - self.missing, max(total, self.missing))

    async def _interruptible(self, work: Awaitable[T]) -> T:
        """What `stop` may cut short: nothing is stored meanwhile."""
        self._waiting = True
        try:
            return await work
        finally:
            self._waiting = False

    def _begin(self, db: sqlite3.Connection) -> bool:
        with transaction(db):
            return begin(db, self._embedder.id)

    async def _piece(self, piece: Waiting) -> None:
        hashes = list(piece.texts)
        texts = [piece.texts[hash] for hash in hashes]
        vectors = await self._interruptible(self._embedder.embed(texts)) if texts else None
        rows = await self._threads.run(_halves, vectors) if vectors is not None else []
        await self._db.write(lambda db: self._keep(db, dict(zip(hashes, rows, strict=True)), piece.upto))
        if vectors is not None:
            self._failing = False
            self._signs.clear("vectors")
            places = [(index, no) for index, hash in enumerate(hashes) for no in piece.nos[hash]]
            items = [(no, hashes[index].hex()) for index, no in places]
            await self._loaded.add_vectors(items, vectors[[index for index, _ in places]])
            self.missing = max(0, self.missing - len(items))
        if piece.known:
            await self._loaded.add_known(piece.known)

    def _keep(self, db: sqlite3.Connection, rows: dict[bytes, bytes], upto: int) -> None:
        with transaction(db):
            keep(db, self._embedder.id, rows, upto)


def _halves(vectors: NDArray[np.floating[Any]]) -> list[bytes]:
    """Each row in half precision."""
    return [row.tobytes() for row in vectors.astype("float16")]
