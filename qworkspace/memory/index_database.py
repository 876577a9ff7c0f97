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
        self._writes: Lane[None] = Lane(threads, _run)
        self._looks: Lane[None] = Lane(threads, _run)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._reader_file: Identity | None = None
        self._file: Identity | None = None
        self._opened = False

    async def open(self) -> bool:
        """Make or open the file; whether it is new. `DatabaseDamaged` when it is no index: then `renew`.

        After another `StorageError` each work tries again.
        """
        self._opened = True
        return await self._writes.do(lambda _: self._open())

    async def write(self, work: Work[T]) -> T:
        """The result of `work(connection)`, which begins and ends transactions by itself."""
        self._expect_open()
        return await self._writes.do(lambda _: self._written(work))

    async def look(self, work: Work[T]) -> T:
        """The result of `work(connection)`, which sees one committed state."""
        self._expect_open()
        return await self._looks.do(lambda _: self._looked(work))

    async def after_looks(self, work: Callable[[], None]) -> None:
        """Run `work`, which needs no connection, in the lane that looks."""
        await self._looks.do(lambda _: work())

    async def renew(self) -> None:
        """Throw the file away and begin with an empty one."""
        await self._looks.do(lambda _: self._drop_reader())
        await self._writes.do(lambda _: self._renew())
        self._opened = True

    async def release(self) -> None:
        """Close the connections until they are needed again."""
        await self._looks.do(lambda _: self._drop_reader())
        await self._writes.do(lambda _: self._drop_writer())

    async def close(self) -> None:
        """Carry out what is queued, then close. Idempotent."""
        self._opened = False
        await self.release()

    def _expect_open(self) -> None:
        if not self._opened:
            raise Unavailable("the search index is not open", path=str(self.path))

    # everything below runs in threads: what touches the writer in one lane, what touches the reader in the other

    def _open(self) -> bool:
        new = identity(self.path) is None
        self._file = None
        self._written(lambda _: None)
        return new

    def _renew(self) -> None:
        self._drop_writer()
        erase(self.path)
        make(self.path)
        self._file = identity(self.path)

    def _written(self, work: Work[T]) -> T:
        try:
            return work(self._writing())
        except FAILURES as error:
            raise explain(error, self.path) from error

    def _looked(self, work: Work[T]) -> T:
        try:
            connection = self._reading()
            with transaction(connection, "DEFERRED"):
                return work(connection)
        except FAILURES as error:
            raise explain(error, self.path) from error

    def _writing(self) -> sqlite3.Connection:
        if self._file is None:
            if identity(self.path) is None:
                make(self.path)
            self._file = identity(self.path)
        self._expect_same()
        if self._writer is None:
            self._writer = open_writer(self.path)
        return self._writer

    def _reading(self) -> sqlite3.Connection:
        if self._file is None:
            raise Unavailable("the search index is not made yet", path=str(self.path))
        self._expect_same()
        if self._reader_file != self._file:
            self._drop_reader()
        if self._reader is None:
            self._reader = open_reader(self.path)
            self._reader_file = self._file
        return self._reader

    def _expect_same(self) -> None:
        present = identity(self.path)
        if present != self._file:
            what = "was deleted" if present is None else "was replaced by another file"
            raise DatabaseDamaged(f"the search index {str(self.path)!r} {what}", path=str(self.path))

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _run(batch: list[Job[None, Any]]) -> None:
    for job in batch:
        try:
            job.result = job.work(None)
        except Exception as error:
            job.fail(error)
