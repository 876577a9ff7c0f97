"""A database that mends itself and says what is wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database, T, Work
from qworkspace.base.files import storing, write_atomic
from qworkspace.base.problems import Problems
from qworkspace.base.rescue import Rescued, rescue, settle_rescue
from qworkspace.base.tasks import Threads
from qworkspace.errors import DatabaseDamaged, QworkspaceError, StorageError

RETRY_SECONDS = 5.0
ROOM = 64 * 1024  # bytes; with less the next message may not fit
MOST_RESCUES = 3  # of one opening: a disk that damages again and again is not to be filled with copies


class MendingDatabase(Database):
    """A `Database` whose damaged file is kept aside, rescued row by row and replaced, before or while it is used.

    A disk that refuses is reported as one problem, which is over with the next write that succeeds, or soon after the
    disk would take one.
    """

    def __init__(
        self,
        path: Path,
        *,
        migrations: Mapping[str, Sequence[str]],
        threads: Threads,
        clock: Clock,
        problems: Problems,
        agent_id: str | None = None,
        adopt: Sequence[str] = (),
    ) -> None:
        super().__init__(path, migrations=migrations, threads=threads)
        self._steps = migrations
        self._adopt = adopt
        self._clock = clock
        self._problems = problems
        self._agent_id = agent_id
        self._mending: asyncio.Task[None] | None = None
        self._rescues = 0
        self._refused = False
        self._trying: asyncio.Task[None] | None = None
        self._broken = False
        self._key = f"database/{path}"

    async def open(self) -> None:
        """Make or open the file, mended if need be. A disk that refuses is for the caller to report."""
        self._rescues = 0
        await self._threads.run(settle_rescue, self.path)
        try:
            await super().open()
        except DatabaseDamaged:
            await self._mended()

    async def write(self, work: Work[T]) -> T:
        try:
            try:
                await self._whole()
                result = await super().write(work)
            except DatabaseDamaged:
                await self._mended()
                result = await super().write(work)
        except StorageError as error:
            self._report(error)
            self._try_later()
            raise
        self._report_no_more()
        return result

    async def read(self, work: Work[T]) -> T:
        try:
            await self._whole()
            return await super().read(work)
        except DatabaseDamaged:
            await self._mended()
            return await super().read(work)

    async def close(self) -> None:
        if self._mending is not None:
            await asyncio.wait([self._mending])
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
        self._broken = False
        await super().close()
        self._report_no_more()

    async def _whole(self) -> None:
        """Wait while the file is being replaced; try again where that has failed, for example on a full disk."""
        if self._mending is not None or self._broken:
            await self._mended()

    async def _mended(self) -> None:
        """Mend the file once for all who have met the damage; `DatabaseDamaged` when that has not helped before."""
        if self._mending is None:
            if self._rescues >= MOST_RESCUES:
                raise DatabaseDamaged(
                    f"the database {str(self.path)!r} is damaged again after {MOST_RESCUES} rescues; check the disk",
                    path=str(self.path),
                )
            self._mending = asyncio.get_running_loop().create_task(self._mend(), name=f"mending {self.path.name}")
            self._mending.add_done_callback(self._mend_ended)
        await asyncio.shield(self._mending)

    def _mend_ended(self, task: asyncio.Task[None]) -> None:
        self._mending = None
        if not task.cancelled():
            task.exception()  # seen: whoever waited for it may have gone

    async def _mend(self) -> None:
        self._broken = True
        await super().close()
        rescued = await self._threads.run(rescue, self.path, self._steps, self._adopt, self._clock.now())
        await super().open()
        self._broken = False
        self._rescues += 1
        self._problems.report(f"database-damaged/{self.path}", _told(self.path, rescued), agent_id=self._agent_id)

    def _report(self, error: StorageError) -> None:
        self._refused = True
        self._problems.report(self._key, error.message, agent_id=self._agent_id)

    def _try_later(self) -> None:
        if self._trying is None or self._trying.done():
            self._trying = asyncio.get_running_loop().create_task(self._try_again(), name=f"trying {self.path.name}")

    async def _try_again(self) -> None:
        """Write until the disk takes it: nobody else may want to write, and the problem would stay."""
        while self._refused:
            await self._clock.sleep(RETRY_SECONDS)
            try:
                await self._threads.run(_find_room, self.path)
                await super().write(_touch)
            except StorageError:
                continue
            except QworkspaceError:
                return  # closed meanwhile
            self._report_no_more()

    def _report_no_more(self) -> None:
        if self._refused:
            self._refused = False
            self._problems.clear(self._key)


def _told(path: Path, rescued: Rescued) -> str:
    saved = ", ".join(f"{count} {table}" for table, count in rescued.rows.items()) or "nothing"
    lost = f"; some rows of {', '.join(sorted(rescued.gaps))} are lost" if rescued.gaps else ""
    return f"{str(path)!r} was damaged; saved: {saved}{lost}; the damaged file is kept as {rescued.aside.name!r}"


def _find_room(path: Path) -> None:
    """`StorageError` when the disk of that file does not take `ROOM` bytes more."""
    place = path.with_name(f".{path.name}.room")
    with storing(place):
        write_atomic(place, bytes(ROOM))
        place.unlink()


def _touch(db: sqlite3.Connection) -> None:
    """Write a page without changing anything."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute(f"PRAGMA user_version = {version}")
