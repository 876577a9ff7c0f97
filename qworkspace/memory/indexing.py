"""The work of an index: notes that changed are read, cut and stored in small pieces, a changed one before a backlog."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import Tasks
from qworkspace.base.text import clean_text
from qworkspace.errors import DatabaseDamaged, StorageError
from qworkspace.memory.heap import give_back
from qworkspace.memory.index_database import IndexDatabase
from qworkspace.memory.index_embedding import Embedding
from qworkspace.memory.index_loading import LoadedIndex
from qworkspace.memory.index_rows import counts, meta, refusals, save_snapshot
from qworkspace.memory.index_schema import tidy, transaction
from qworkspace.memory.index_slices import SLICE_NOTES, Slice, compare, locate, take
from qworkspace.memory.index_state import Signs
from qworkspace.memory.index_vectors import SPARE, SPARE_SHARE, prune
from qworkspace.memory.notes import Source

logger = logging.getLogger(__name__)

FEW = 8
"""So many notes are looked at without waiting for other indexes to have their turn."""

BACKLOG = 200
"""With so many notes to do, words become searchable while they are stored."""

UNSAVED = 2000
"""Chunks that may be tokenised again at the next load, before the keyword index is kept anew."""

FIRST_RETRY, LAST_RETRY = 1.0, 5.0  # seconds


class Indexing:
    """Brings one index up to date. `refresh` says what may have changed; a task works it off."""

    def __init__(
        self,
        db: IndexDatabase,
        loaded: LoadedIndex,
        workspace: Path,
        sources: Callable[[], Sequence[Source]],
        *,
        clock: Clock,
        tasks: Tasks,
        turns: asyncio.Semaphore,
        signs: Signs,
        quiet: Callable[[], None],
    ) -> None:
        self._db = db
        self._loaded = loaded
        self._workspace = workspace
        self._sources = sources
        self._clock = clock
        self._tasks = tasks
        self._turns = turns
        self._signs = signs
        self._quiet = quiet
        self.embedding: Embedding | None = None
        self._task: asyncio.Task[None] | None = None
        self._acting = False
        self._napping = False
        self._everything = True
        self._comparing = False
        self._names: dict[str, None] = {}
        self._urgent: dict[str, Path | None] = {}
        self._backlog: dict[str, Path | None] = {}
        self._broken: DatabaseDamaged | None = None
        self._rebuilding = False
        self._done = 0
        self._unsaved = 0
        self._saved = 0
        self._retry = FIRST_RETRY
        self.files = 0
        self.chunks = 0
        self.embeddings = 0
        self.refused: dict[str, str] = {}

    @property
    def pending(self) -> int:
        """Notes that may not be found yet; one stands for a vault that was not looked at."""
        unseen = self._everything or self._comparing or self._broken is not None
        return len(self._names) + len(self._urgent) + len(self._backlog) + unseen

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def refresh(self, names: Collection[str] | None = None) -> None:
        """These notes (None: any) may have changed."""
        if names is None:
            self._everything = True
        else:
            # a file whose name is no text is no note, and could not be stored
            self._names |= dict.fromkeys(name for name in names if clean_text(name) == name)
        self.resume()

    def resume(self) -> None:
        """Work off what is pending."""
        self._acting = True
        if not self.busy:
            self._task = self._tasks.start(self._work(), name="index")

    def damaged(self, error: DatabaseDamaged) -> None:
        """The file is to be thrown away and made anew."""
        if self._broken is None:
            self._broken = error
            self._signs.report("damaged", f"{error.message}; it is being rebuilt from the notes", error=True)
        if self._acting:
            self.resume()

    def halt(self) -> None:
        """Begin nothing more; what is under way ends within a piece. What is pending stays so."""
        self._acting = False

    async def stop(self) -> None:
        """Halt, and return when nothing is under way."""
        self.halt()
        if self._task is not None:
            if self._napping:
                self._task.cancel()
            await asyncio.wait({self._task})  # a piece that is stored is also to be seen by searches

    def count(self, db: sqlite3.Connection) -> None:
        """Take stock of the file. Blocks."""
        have = counts(db)
        self.files, self.chunks, self.embeddings = have.files, have.chunks, have.embeddings
        self.refused = refusals(db)
        self._unsaved = db.execute(_UNSAVED).fetchone()[0]
        self._saved = self.chunks - self._unsaved

    async def _work(self) -> None:
        while True:
            while self._acting and await self._step():
                pass
            if self._acting:
                await self._guarded(self._finish)
            if not self._acting or not self.pending:
                break
        self._quiet()

    async def _step(self) -> bool:
        """Do one piece; whether there was one."""
        if self._broken is not None:
            return await self._guarded(self._rebuild)
        if self._names:
            return await self._guarded(self._locate)
        if self._urgent:
            return await self._guarded(partial(self._take, self._urgent))
        if self._everything:
            return await self._guarded(self._compare)
        if self._backlog:
            return await self._guarded(partial(self._take, self._backlog))
        return False

    async def _guarded(self, piece: Callable[[], Awaitable[None]]) -> bool:
        """Run a piece; what goes wrong is shown and tried again later."""
        try:
            await piece()
        except DatabaseDamaged as error:
            self.damaged(error)
        except StorageError as error:
            await self._wait("file", f"the search index cannot be written: {error.message}")
        except Exception as error:
            logger.exception("indexing %s failed", self._workspace)
            await self._wait("work", f"indexing failed: {error}; see the log")
        else:
            self._retry = FIRST_RETRY
            self._signs.clear("file")
            self._signs.clear("work")
        return True

    async def _wait(self, what: str, message: str) -> None:
        self._signs.report(what, message)
        if not self._acting:
            return  # `stop` waits
        self._napping = True
        try:
            await self._clock.sleep(self._retry)
        finally:
            self._napping = False
        self._retry = min(self._retry * 2, LAST_RETRY)

    async def _rebuild(self) -> None:
        if self.embedding is not None:
            await self.embedding.stop()
        await self._loaded.drop()
        await self._db.renew()
        await self._db.write(self.count)
        self._backlog.clear()
        self._everything, self._rebuilding, self._broken = True, True, None

    async def _locate(self) -> None:
        names = list(islice(self._names, SLICE_NOTES))
        places = await self._db.write(lambda db: locate(db, self._workspace, names, self._sources))
        for name in names:
            self._names.pop(name, None)
            self._backlog.pop(name, None)
        self._urgent |= places

    async def _compare(self) -> None:
        self._comparing, self._everything = True, False
        try:
            async with self._turns:
                places = await self._db.write(lambda db: compare(db, self._sources()))
        except BaseException:
            self._everything = True
            raise
        finally:
            self._comparing = False
        self._backlog = {name: path for name, path in places.items() if name not in self._urgent}
        self._done = 0

    async def _take(self, queue: dict[str, Path | None]) -> None:
        places = dict(islice(queue.items(), SLICE_NOTES))
        if len(queue) > BACKLOG and not self._loaded.loaded:
            await self._loaded.ensure()
        async with nullcontext() if len(queue) <= FEW else self._turns:
            now = self._clock.now().timestamp()
            taken = await self._db.write(lambda db: take(db, places, now))
            await self._loaded.changed(taken.stored)
        self._account(taken)
        for name in taken.done:
            queue.pop(name, None)
        self._done += len(taken.done)
        if self.pending:
            self._signs.progress("notes", self._done, self._done + self.pending)
        await self._save_if(max(UNSAVED, self._saved // 2))

    def _account(self, taken: Slice) -> None:
        self.files += taken.came
        for stored in taken.stored:
            self.chunks += stored.added - len(stored.removed)
            self._unsaved += stored.chunks
            if self.embedding is not None and self.embedding.wanted:
                self.embedding.missing += stored.added  # at most: counted when vectors are made
        before = dict(self.refused)
        for name, reason in taken.refused.items():
            self.refused.pop(name, None)
            if reason:
                self.refused[name] = reason
        if self.refused != before:
            self._signs.refused(self.refused)

    async def _save_if(self, most: int) -> None:
        """Keep the keyword index when so many chunks would have to be tokenised again."""
        if self._unsaved <= most:
            return
        if not self._loaded.loaded or self._loaded.loading:
            await self._loaded.ensure()
        data = await self._loaded.dump()
        if data is not None:
            await self._db.write(lambda db: _save(db, data))
            del data
            await self._db.after_looks(give_back)
            self._unsaved, self._saved = 0, self.chunks

    async def _finish(self) -> None:
        """All notes are in: keep what a restart would have to make again, clean up, and let vectors be made."""
        if self._done > BACKLOG:  # what was built piece by piece is smaller when it is read in one
            await self._save_if(0)
            await self._loaded.drop()
        else:
            await self._save_if(UNSAVED)
        await self._db.write(self._clean)
        if self._rebuilding and not self.pending:
            self._rebuilding = False
            self._signs.clear("damaged")
        if self._done:
            self._signs.progress("ready", self._done, self._done)
            self._done = 0
        if self.embedding is not None:
            self.embedding.wake()

    def _clean(self, db: sqlite3.Connection) -> None:
        if self.embeddings > self.chunks + SPARE + self.chunks * SPARE_SHARE:
            with transaction(db):
                prune(db, self.chunks)
        self.count(db)
        tidy(db)


_UNSAVED = (
    "SELECT count(*) FROM chunk WHERE file IN"
    " (SELECT no FROM file WHERE rev > (SELECT value FROM meta WHERE key = 'snapshot_rev'))"
)


def _save(db: sqlite3.Connection, data: bytes) -> None:
    with transaction(db):
        save_snapshot(db, data, int(meta(db, "rev")))
