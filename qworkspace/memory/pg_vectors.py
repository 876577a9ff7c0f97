"""The vectors of long-term memory: made beside everything else, for whatever the database has without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from qworkspace.base.clock import Clock
from qworkspace.errors import ModelError
from qworkspace.memory.embeddings import Embedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qworkspace.memory.pg_store import PgStore

BATCH = 32
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0
Problem = Callable[[str], None]


class VectorWork:
    """Embeds the rows of a store that are not embedded yet: all once, then the newest ones whenever there are any.

    After a change of the embedder that is every row: the database is searched by words alone until a row has its new
    vector.
    """

    def __init__(
        self, store: PgStore, embedder: Embedder, *, clock: Clock, report: Problem, settled: Callable[[], None]
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._report = report
        self._settled = settled
        self._since: datetime | None = None
        self._more = asyncio.Event()
        self.ready = False
        self.idle = embedder.id == "none"

    def add(self, since: datetime) -> None:
        """Turns of that time and later have come."""
        if self._embedder.id == "none":
            return
        if self.idle or (self._since is not None and since < self._since):
            self._since = since
        self.idle = False
        self._more.set()

    async def run(self) -> None:
        """Until cancelled. Raises what the store raises."""
        pause = FIRST_PAUSE
        while self._embedder.id != "none":
            self._more.clear()
            try:
                await self._catch_up()
            except ModelError as error:
                self._report(error.message)
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self._report("")
            if not self._more.is_set():
                self.idle = True
                self._settled()
                await self._more.wait()

    async def _catch_up(self) -> None:
        if not self.ready:
            dimensions = self._embedder.dimensions or len(await self._embedder.embed_query("dimensions"))
            await self._store.use_vectors(self._embedder.id, dimensions)
            self.ready = True
        last = None
        while rows := await self._store.without_vector(BATCH, since=self._since, before=last):
            vectors = await self._embed([row.text for row in rows])
            await self._store.set_vectors(
                [(row.turn_id, row.part, vector) for row, vector in zip(rows, vectors, strict=True)]
            )
            last = rows[-1]

    async def _embed(self, texts: list[str]) -> list[NDArray[np.float32] | None]:
        """Their vectors; None for the one text that the model will never take: it must not stop the others."""
        try:
            return list(await self._embedder.embed(texts))
        except ModelError as error:
            if error.retryable:
                raise
            if len(texts) == 1:
                return [None]
        half = len(texts) // 2
        return [*await self._embed(texts[:half]), *await self._embed(texts[half:])]
