"""The search index of one vault: a cache beside the notes, made and kept up to date by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Tasks, Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import DatabaseDamaged, ModelError, QworkspaceError, StorageError
from qworkspace.memory.contract import Found, Query
from qworkspace.memory.embeddings import Embedder
from qworkspace.memory.index_database import IndexDatabase
from qworkspace.memory.index_embedding import Embedding
from qworkspace.memory.index_loading import LoadedIndex, MakeStore
from qworkspace.memory.index_state import IndexStatus, Signs
from qworkspace.memory.indexing import Indexing
from qworkspace.memory.notes import Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)
FILE = "index.db"
PATIENCE = 0.6  # of a search's time, for loading and for the question's vector
COVERED = 0.5  # of all passages have a vector: with fewer, vectors would only favour those


class MemoryIndex:
    """Finds passages of the notes. Its file may be deleted at any time; damage is noticed and mended by a rebuild."""

    def __init__(
        self,
        workspace: Path,
        sources: Callable[[], Sequence[Source]],
        *,
        state_dir: Path,
        embedder: Embedder,
        vectors: MakeStore,
        settings: MemoryConfig,
        clock: Clock,
        threads: Threads,
        problems: Problems,
        bus: EventBus,
        agent_id: str,
        turns: asyncio.Semaphore,
    ) -> None:
        """`sources` lists the notes, `vectors(embedder id, length)` makes a store; both block."""
        path = state_dir / FILE
        self._embedder = embedder
        self._clock = clock
        self._tasks = Tasks(f"index of {agent_id}")
        self._db = IndexDatabase(path, threads)
        self._signs = Signs(path, clock=clock, problems=problems, bus=bus, agent_id=agent_id)
        self._loaded = LoadedIndex(
            self._db,
            settings=settings,
            embedder=embedder,
            make_store=vectors,
            clock=clock,
            tasks=self._tasks,
            signs=self._signs,
            dropped=self._release,
        )
        self._work = Indexing(
            self._db,
            self._loaded,
            workspace,
            sources,
            clock=clock,
            tasks=self._tasks,
            turns=turns,
            signs=self._signs,
            quiet=self._quiet,
        )
        self._vectors = self._work.embedding = Embedding(
            self._db,
            self._loaded,
            embedder,
            clock=clock,
            threads=threads,
            tasks=self._tasks,
            signs=self._signs,
            damaged=self._work.damaged,
            quiet=self._quiet,
        )
        self._settled: list[asyncio.Future[None]] = []
        self._releasing: asyncio.Task[None] | None = None
        self._opened = False

    async def open(self) -> None:
        """Make or open the file. Nothing is indexed before `refresh`; what is there can be searched."""
        try:
            await self._db.open()
            await self._db.write(self._work.count)
            await self._db.write(self._vectors.count)
        except DatabaseDamaged as error:
            self._work.damaged(error)
            await self._db.renew()
        except StorageError as error:  # locked, or the disk refuses: tried again with the first work
            self._signs.report("file", f"the search index cannot be used: {error.message}")
        self._signs.refused(self._work.refused)
        self._opened = True

    async def close(self) -> None:
        """End all work, free everything. Idempotent; what was pending is noticed at the next start."""
        self._opened = False
        await self._work.stop()
        await self._vectors.stop()
        await self._tasks.close()
        await self._loaded.drop()
        await self._db.close()
        self._signs.clear_all()
        self._tell_settled()

    def refresh(self, names: Collection[str] | None = None) -> None:
        """These notes have changed (None: look at all). Returns at once; the work goes on by itself.

        The first one after `open` looks at all notes in any case. Nothing happens before `open` or after `close`.
        """
        if self._opened:
            self._work.refresh(names)

    def warm(self) -> None:
        """A search is likely to come: begin to load what it needs. Cheap when that is loaded."""
        if self._opened:
            self._loaded.load()

    def halt(self) -> None:
        """Begin no more work, searches go on; the next `refresh` resumes."""
        self._work.halt()

    async def halted(self) -> None:
        """Halt, and return when nothing of the index is being changed."""
        await self._work.stop()
        await self._vectors.stop()

    async def settled(self) -> None:
        """Return when nothing is pending and all vectors are made, or cannot be made now."""
        if self._work.busy or self._vectors.busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter

    async def reindex(self) -> None:
        """Throw everything away and begin again; `settled` waits for the end."""
        await self.halted()
        await self._loaded.drop()
        await self._db.renew()
        await self._db.write(self._work.count)
        self._work.refresh()

    async def search(self, query: Query, *, timeout: float = 2.0) -> Found:
        """The best passages; never raises, never takes longer than `timeout` seconds."""
        if not query.text.strip():
            return Found()
        if not self._opened:
            return Found(partial="the search index is not open")
        try:
            async with asyncio.timeout(timeout):
                return await self._search(query, timeout * PATIENCE)
        except TimeoutError:
            return Found(partial=f"the search index did not answer within {timeout:g} s")
        except DatabaseDamaged as error:
            self._work.damaged(error)
            return Found(partial="the search index was damaged and is being rebuilt")
        except QworkspaceError as error:
            return Found(partial=f"the search index cannot be read: {error.message}")
        except Exception as error:  # a turn goes on without memory
            logger.exception("a search failed")
            return Found(partial=f"the search failed: {error}; see the log")

    async def _search(self, query: Query, patience: float) -> Found:
        loading = self._loaded.load()
        asking = self._ask(query.text)
        waiting = {task for task in (loading, asking) if task is not None and not task.done()}
        if waiting:
            await asyncio.wait(waiting, timeout=patience)
        if not self._loaded.loaded or loading.done():
            await self._loaded.ensure()
        vector, reason = _vector_of(asking)
        hits = await self._loaded.find(query, vector, self._clock.now().date())
        return Found(tuple(hits), "; ".join(filter(None, (self._partial(), reason))))

    def _ask(self, text: str) -> asyncio.Task[NDArray[np.float32] | str] | None:
        """Begin to make the question's vector, when there is something to compare it with."""
        work, missing = self._work, self._vectors.missing
        if not self._vectors.wanted or work.chunks - missing < work.chunks * COVERED or not work.chunks:
            return None
        return self._tasks.start(_embedded(self._embedder, text), name="question")

    def status(self) -> IndexStatus:
        """How it is; quick."""
        work, vectors = self._work, self._vectors
        return IndexStatus(
            files=work.files,
            chunks=work.chunks,
            pending=work.pending,
            embedded=max(0, work.chunks - vectors.missing) if vectors.wanted else 0,
            embedder=self._embedder.id,
            vectors=vectors.state,
            partial=self._partial(),
            problems=self._signs.problems,
            refused=dict(work.refused),
        )

    def _partial(self) -> str:
        work, missing = self._work, self._vectors.missing
        reasons = []
        if work.pending and (work.busy or not work.files):
            reasons.append(f"notes are still being indexed: {work.files} are in, {work.pending} wait")
        if self._loaded.loading:
            reasons.append("the index is still being loaded")
        if self._vectors.wanted and missing:
            reasons.append(f"{missing} of {work.chunks} passages are found by their words only so far")
        return "; ".join(reasons)

    def _quiet(self) -> None:
        """A part of the work has ended: perhaps it was the last one."""
        asyncio.get_running_loop().call_soon(self._maybe_settled)

    def _maybe_settled(self) -> None:
        if self._work.busy or self._vectors.busy:
            return
        self._tell_settled()
        if self._opened and not self._loaded.loaded and not self._loaded.loading:
            self._releasing = self._tasks.start(self._release(), name="release")

    def _tell_settled(self) -> None:
        waiters, self._settled = self._settled, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _release(self) -> None:
        """Keep no connection while nothing happens."""
        if self._opened and not self._work.busy and not self._vectors.busy:
            await self._db.release()


async def _embedded(embedder: Embedder, text: str) -> NDArray[np.float32] | str:
    """The question's vector, or why there is none."""
    try:
        return await embedder.embed_query(text)
    except ModelError as error:
        return error.message
    except Exception as error:  # words are still searched
        logger.exception("the question's vector failed")
        return f"{error}; see the log"


def _vector_of(asking: asyncio.Task[NDArray[np.float32] | str] | None) -> tuple[NDArray[np.float32] | None, str]:
    if asking is None or asking.cancelled():  # the index has ended meanwhile
        return None, ""
    if not asking.done():
        return None, "found by words only: the question's vector is not ready yet"
    result = asking.result()
    return (None, f"found by words only: {result}") if isinstance(result, str) else (result, "")
