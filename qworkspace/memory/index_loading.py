"""The arrays of an index while they are in use: loaded on first need, kept up to date, dropped when idle."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import Tasks
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import DatabaseDamaged, QworkspaceError, StorageError, Unavailable
from qworkspace.memory.contract import Hit, Query
from qworkspace.memory.embeddings import Embedder
from qworkspace.memory.heap import give_back
from qworkspace.memory.index_database import IndexDatabase
from qworkspace.memory.index_rows import Stored
from qworkspace.memory.index_state import Signs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qworkspace.memory.index_arrays import Arrays
    from qworkspace.memory.vectors import VectorStore

IDLE_SECONDS = 600.0
RETRY_SECONDS = 30.0  # before a store that could not be reached is tried again

MakeStore = Callable[[str, int], "VectorStore"]
"""A store for vectors (embedder id, length). Blocks; `Unavailable` says what is missing."""


class LoadedIndex:
    """What searches of one index use. Everything it does to the arrays runs in the lane that looks."""

    def __init__(
        self,
        db: IndexDatabase,
        *,
        settings: MemoryConfig,
        embedder: Embedder,
        make_store: MakeStore,
        clock: Clock,
        tasks: Tasks,
        signs: Signs,
        dropped: Callable[[], Awaitable[None]],
    ) -> None:
        """`dropped` is called when the arrays were idle for long and went."""
        self._db = db
        self._settings = settings
        self._embedder = embedder
        self._make_store = make_store
        self._clock = clock
        self._tasks = tasks
        self._signs = signs
        self._dropped = dropped
        self._arrays: Arrays | None = None
        self._meanwhile: list[Stored] = []
        self._loading: asyncio.Task[QworkspaceError | None] | None = None
        self._idle: asyncio.Task[None] | None = None
        self._used = 0.0
        self._retry_at = 0.0
        self._catching_up = asyncio.Lock()

    @property
    def loaded(self) -> bool:
        """Whether words can be searched."""
        return self._arrays is not None

    @property
    def loading(self) -> bool:
        return self._loading is not None and not self._loading.done()

    @property
    def _incomplete(self) -> bool:
        arrays = self._arrays
        lacking = arrays is not None and self._embedder.id != "none" and not arrays.complete
        return arrays is None or (lacking and self._clock.monotonic() >= self._retry_at)

    def load(self) -> asyncio.Task[QworkspaceError | None]:
        """Begin to load unless that is done or under way. The task's result is what went wrong; never cancel it."""
        self._used = self._clock.monotonic()
        if self._loading is None or (self._loading.done() and (_failed(self._loading) or self._incomplete)):
            self._loading = self._tasks.start(self._tried(), name="load")
        return self._loading

    async def ensure(self) -> None:
        """Return when it is loaded; raises what went wrong."""
        loading = self.load()
        await asyncio.wait({loading})
        if loading.cancelled():
            raise Unavailable("it is being made anew")
        error = loading.result()
        if error is not None:
            raise error

    async def _tried(self) -> QworkspaceError | None:
        try:
            await self._load()
        except QworkspaceError as error:
            return error
        return None

    async def _load(self) -> None:
        if self._arrays is None:
            self._arrays = await self._db.look(self._load_arrays)
            for stored in self._meanwhile:
                self._arrays.changed(stored.file_no, stored.removed)
        self._meanwhile.clear()
        if self._idle is None or self._idle.done():
            self._idle = self._tasks.start(self._drop_when_idle(), name="idle")
        await self.catch_up()
        await self._load_vectors()

    def _load_arrays(self, db: sqlite3.Connection) -> Arrays:
        from qworkspace.memory.index_arrays import Arrays  # heavy: numpy
        from qworkspace.memory.search import Weights  # heavy: numpy

        settings = self._settings
        weights = Weights.of(settings.vector_weight, strong=self._embedder.strong, fusion=settings.fusion)
        return Arrays.load(db, weights, partial(self._make_store, self._embedder.id))

    async def _load_vectors(self) -> None:
        arrays = self._arrays
        if arrays is None or self._embedder.id == "none" or arrays.complete:
            return
        try:
            while await self._db.look(lambda db: arrays.load_vectors(db, self._embedder.id)):
                pass
        except StorageError:
            raise
        except Unavailable as error:
            arrays.trouble = error.message
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        self._tell_trouble()

    def _tell_trouble(self) -> None:
        if self._arrays is not None and self._arrays.trouble:
            self._signs.report("store", f"memory is searched by words only: {self._arrays.trouble}")
        else:
            self._signs.clear("store")

    async def changed(self, stored: Sequence[Stored]) -> None:
        """These notes have other rows now: searches are to see them."""
        if self._arrays is None:
            if self.loading:
                self._meanwhile += stored
            return
        arrays = self._arrays

        def tell(_db: sqlite3.Connection) -> None:
            for one in stored:
                arrays.changed(one.file_no, one.removed)

        await self._db.look(tell)
        await self.catch_up()

    async def catch_up(self) -> None:
        """Tokenise what is new, in turns that let searches in between."""
        async with self._catching_up:
            while (arrays := self._arrays) is not None and await self._db.look(arrays.catch_up) > 0:
                pass

    async def add_vectors(self, items: Sequence[tuple[int, str]], vectors: NDArray[np.floating[Any]]) -> None:
        """New vectors; a later load finds them in the file."""
        arrays = self._arrays
        if arrays is not None and items:
            await self._db.look(lambda db: arrays.add_vectors(db, items, vectors))

    async def add_known(self, nos: tuple[int, ...]) -> None:
        """These chunks have vectors in the file that were made for the same text before."""
        arrays = self._arrays
        if arrays is not None:
            await self._db.look(lambda db: arrays.add_known(db, self._embedder.id, nos))

    async def dump(self) -> bytes | None:
        """The keyword index as bytes, when it is loaded and holds everything."""
        await self.catch_up()
        arrays = self._arrays
        if arrays is None or self.loading:
            return None
        return await self._db.look(lambda _db: arrays.dump())

    async def find(self, query: Query, vector: NDArray[np.float32] | None, today: date) -> list[Hit]:
        """The best passages. `DatabaseDamaged` when one of them is not what was written."""
        arrays = self._arrays
        if arrays is None:
            return []
        self._used = self._clock.monotonic()
        found = await self._db.look(lambda db: self._found(db, arrays, query, vector, today))
        self._tell_trouble()
        return found

    def _found(
        self, db: sqlite3.Connection, arrays: Arrays, query: Query, vector: NDArray[np.float32] | None, today: date
    ) -> list[Hit]:
        found = arrays.find(db, query, vector, today)
        if not all(passage.sound for _, passage in found):
            path = str(self._db.path)
            raise DatabaseDamaged(f"the search index {path!r} is damaged: a passage is not what was stored", path=path)
        return [hit for hit, _ in found]

    async def drop(self) -> None:
        """Free the arrays; the next search loads them again."""
        if self.loading and self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})
        self._loading = None
        arrays, self._arrays = self._arrays, None
        self._meanwhile.clear()
        if arrays is not None:
            await self._db.after_looks(arrays.close)
            del arrays
            await self._db.after_looks(give_back)

    async def _drop_when_idle(self) -> None:
        while True:
            left = self._used + IDLE_SECONDS - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(left)
            elif self.loading:
                await self._clock.sleep(IDLE_SECONDS)
            else:
                await self.drop()
                await self._dropped()
                return


def _failed(task: asyncio.Task[QworkspaceError | None]) -> bool:
    return task.cancelled() or task.exception() is not None or task.result() is not None
