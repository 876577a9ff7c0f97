"""The index file behind asyncio: a lane that writes and a lane that looks, connections only while there is work."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from qworkspace.base.database import FAILURES, explain
from qworkspace.base.lanes import Job, Lane
from qworkspace.base.tasks import Threads
from qworkspace.errors import DatabaseDamaged, Unavailable
from qworkspace.memory.index_schema import Identity, erase, identity, make, open_reader, open_writer, transaction

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class IndexDatabase:
    """One index file. Works of a lane run one after another, in threads; those of the two lanes beside each other.

    A file that is damaged, or was taken away or replaced, raises `DatabaseDamaged` from then on, until `renew`.
    """

    def __init__(self, path: Path, threads: Threads) -> None:
        self.path = path
        self._threads = threads
        self._writes: Lane[sqlite3.Connection] = Lane(threads, lambda batch: self._run(batch, self._writing))
        self._looks: Lane[sqlite3.Connection] = Lane(threads, lambda batch: self._run(batch, self._reading, "DEFERRED"))
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._opened = False

    async def open(self) -> bool:
        """Make or open the file; whether it is new. `DatabaseDamaged` when it is no index: then `renew`."""
        new = await self._threads.run(self._open)
        self._opened = True
        return new

    async def write(self, work: Work[T]) -> T:
        """The result of `work(connection)`, which begins and ends transactions by itself."""
        self._expect_open()
        return await self._writes.do(work)

    async def look(self, work: Work[T]) -> T:
        """The result of `work(connection)`, which sees one committed state."""
        self._expect_open()
        return await self._looks.do(work)

    async def renew(self) -> None:
        """Throw the file away and begin with an empty one."""
        await self._writes.idle()
        await self._looks.idle()
        await self._threads.run(self._renew)
        self._opened = True

    async def release(self) -> None:
        """Close connections until they are needed again. Not while works are under way."""
        await self._writes.idle()
        await self._looks.idle()
        await self._threads.run(self._drop)

    async def close(self) -> None:
        """Carry out what is queued, then close. Idempotent."""
        self._opened = False
        await self.release()

    def _expect_open(self) -> None:
        if not self._opened:
            raise Unavailable("the search index is not open", path=str(self.path))

    # everything below runs in threads

    def _open(self) -> bool:
        new = identity(self.path) is None
        if new:
            make(self.path)
        self._identity = identity(self.path)
        self._writing()
        return new

    def _renew(self) -> None:
        self._drop()
        erase(self.path)
        make(self.path)
        self._identity = identity(self.path)

    def _run(
        self, batch: list[Job[sqlite3.Connection, Any]], connected: Callable[[], sqlite3.Connection], kind: str = ""
    ) -> None:
        for job in batch:
            try:
                connection = connected()
                if kind:
                    with transaction(connection, kind):
                        job.result = job.work(connection)
                else:
                    job.result = job.work(connection)
            except FAILURES as error:
                job.fail(explain(error, self.path))
            except Exception as error:
                job.fail(error)

    def _writing(self) -> sqlite3.Connection:
        self._expect_same()
        if self._writer is None:
            self._writer = open_writer(self.path)
        return self._writer

    def _reading(self) -> sqlite3.Connection:
        self._expect_same()
        if self._reader is None:
            self._reader = open_reader(self.path)
        return self._reader

    def _expect_same(self) -> None:
        present = identity(self.path)
        if present != self._identity:
            what = "was deleted" if present is None else "was replaced by another file"
            raise DatabaseDamaged(f"the search index {str(self.path)!r} {what}", path=str(self.path))

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        for connection in (reader, writer):
            if connection is not None:
                connection.close()
