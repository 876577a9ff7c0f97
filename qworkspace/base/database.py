"""One SQLite file behind asyncio: durable group commits, no thread of its own, nothing to do when idle."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from qworkspace.base.files import make_directory, storing, sync_directory, sync_file
from qworkspace.base.lanes import Job, Lane
from qworkspace.base.tasks import Threads
from qworkspace.errors import DatabaseDamaged, QworkspaceError, StorageError, Unavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Identity = tuple[int, int]
Migrations = Mapping[str, Sequence[str]] | Sequence[str]

BUSY_SECONDS = 2.0
COMPANIONS = ("-wal", "-shm", "-journal")
FULL = 64 * 1024  # bytes; with less nothing works
PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA cache_size=-256",  # KiB; hundreds of files may be open at once
    "PRAGMA temp_store=MEMORY",
    "PRAGMA journal_size_limit=4194304",
)
TOLERANT = partial(str, encoding="utf-8", errors="replace")
FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the second when its message quotes bytes of a damaged file."""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNSPECIFIC = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_REFUSED = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "access is not permitted",
    sqlite3.SQLITE_BUSY: "another program holds it",
    sqlite3.SQLITE_LOCKED: "another program holds it",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
    sqlite3.SQLITE_PROTOCOL: "its lock file does not work here",
}


class Database:
    """One SQLite file with one writer and one reader.

    `migrations` maps each component with tables in this file to its steps (SQL scripts); a plain list is the steps
    of the component `main`. A component's steps are only ever appended to.
    """

    def __init__(self, path: Path, *, migrations: Migrations, threads: Threads) -> None:
        self.path = path
        self._threads = threads
        self._migrations = migrations if isinstance(migrations, Mapping) else {"main": migrations}
        self._writes: Lane[sqlite3.Connection] = Lane(threads, self._commit)
        self._reads: Lane[sqlite3.Connection] = Lane(threads, self._look)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: Identity | None = None
        self._reader_file: Identity | None = None
        self._opened = False

    async def open(self) -> None:
        """Make or open the file and bring its tables up to date. `DatabaseDamaged` when it is no sound database."""
        await self._threads.run(self._open)
        self._opened = True

    async def write(self, work: Work[T]) -> T:
        """The result of `work(connection)`, once it is durable. Works run one after another, several in one commit.

        A work that raises changes nothing and disturbs no other. It touches only the connection, never begins or
        ends transactions, and is carried out even if its caller is cancelled while it waits.
        """
        self._expect_open()
        return await self._writes.do(work)

    async def read(self, work: Work[T]) -> T:
        """The result of `work(connection)`, which sees one committed state and changes nothing."""
        self._expect_open()
        return await self._reads.do(work)

    async def close(self) -> None:
        """Carry out what is queued and close the file. Idempotent; `open` opens it again."""
        self._opened = False
        await self._writes.idle()
        await self._reads.idle()
        await self._threads.run(self._drop)

    def _expect_open(self) -> None:
        if not self._opened:
            raise Unavailable(f"the database {self.path.name!r} is not open", path=str(self.path))

    # everything below runs in threads, one writing and one reading at a time

    def _open(self) -> None:
        make_directory(self.path.parent)
        _check_header(self.path)
        unclean = _size(Path(f"{self.path}-wal")) > 0
        try:
            connection = self._writing()
            if unclean:
                _quick_check(connection, self.path)
        except BaseException:
            self._drop()
            raise

    def _commit(self, batch: list[Job[sqlite3.Connection, Any]]) -> None:
        try:
            connection = self._writing()
            connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                _apply(connection, job)
            connection.execute("COMMIT")
        except (*FAILURES, QworkspaceError) as error:
            self._drop_writer()
            for job in batch:
                job.fail(self._explained(error))
        except BaseException:
            self._drop_writer()
            raise

    def _look(self, batch: list[Job[sqlite3.Connection, Any]]) -> None:
        for job in batch:
            try:
                connection = self._reading()
                connection.execute("BEGIN")
                try:
                    job.result = job.work(connection)
                finally:
                    connection.execute("COMMIT")
            except FAILURES as error:
                self._drop_reader()
                job.fail(self._explained(error))
            except Exception as error:
                job.fail(error)

    def _explained(self, error: Exception) -> Exception:
        return explain(error, self.path) if isinstance(error, FAILURES) else error

    def _writing(self) -> sqlite3.Connection:
        if self._writer is not None and self._file != _identity(self.path):
            self._drop_writer()  # somebody took the file away or put another in its place
        if self._writer is None:
            try:
                if not os.path.lexists(self.path):
                    create(self.path, self._migrations)
                self._writer = connect(self.path)
                migrate(self._writer, self._migrations, self.path)
            except FAILURES as error:
                raise explain(error, self.path) from error
            self._file = _identity(self.path)
        return self._writer

    def _reading(self) -> sqlite3.Connection:
        if self._reader is not None and self._reader_file != self._file:
            self._drop_reader()
        if self._reader is None:
            self._reader_file = self._file
            self._reader = connect(self.path)
            self._reader.execute("PRAGMA query_only=ON")
        return self._reader

    def _drop(self) -> None:
        self._drop_reader()
        self._drop_writer()

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()  # rolls back what was under way


def _apply(connection: sqlite3.Connection, job: Job[sqlite3.Connection, Any]) -> None:
    """Run one job of a transaction; only what the whole transaction cannot survive is raised."""
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.work(connection)
    except Exception as error:
        if not connection.in_transaction or (isinstance(error, FAILURES) and _is_grave(error)):
            raise
        job.fail(error)
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")


def _code(error: sqlite3.Error | UnicodeDecodeError) -> int:
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    code: int = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file ends too early: it was cut off, or its log was taken away
        return sqlite3.SQLITE_CORRUPT
    return code & 0xFF  # without the extended part


def _is_grave(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    return _code(error) in _DAMAGED or _code(error) in _REFUSED


def explain(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> Exception:
    """What an error of SQLite means: damage, a disk that refuses, or the error itself, which is a fault in a query."""
    if _code(error) in _DAMAGED:
        return DatabaseDamaged(f"the database {str(path)!r} is damaged: {error}", path=str(path))
    reason = _REFUSED.get(_code(error))
    if reason is None:
        return error
    if _code(error) in _UNSPECIFIC and _is_full(path):
        reason = _REFUSED[sqlite3.SQLITE_FULL]
    return StorageError(f"the database {str(path)!r} cannot be used: {reason}", path=str(path), reason=reason)


def _is_full(path: Path) -> bool:
    """Whether its disk has no room left to speak of: SQLite does not always tell."""
    try:
        return shutil.disk_usage(path.parent).free < FULL
    except OSError:
        return False


def create(path: Path, migrations: Mapping[str, Sequence[str]]) -> None:
    """Make the file with all its tables, whole or not at all: as a draft beside it that is synced once.

    What an earlier file of that name has left behind would be taken for a part of this one, and goes.
    """
    draft = path.with_name(f"{path.name}.new")
    with storing(path):
        draft.unlink(missing_ok=True)
        for name, companion in product((path, draft), COMPANIONS):
            Path(f"{name}{companion}").unlink(missing_ok=True)
        _make_private(draft)
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA journal_mode=MEMORY")
        migrate(connection, migrations, path)
        connection.execute("PRAGMA journal_mode=WAL")  # cheap now; on a file that is synced it takes four waits
    finally:
        connection.close()
    with storing(path):
        sync_file(draft)
        draft.replace(path)
        sync_directory(path.parent)


def connect(path: Path) -> sqlite3.Connection:
    """An open connection in autocommit mode; the file is made when it is missing, for its owner only."""
    with storing(path):
        _make_private(path)
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.text_factory = TOLERANT  # one damaged text must not hide the rows around it
    try:
        for pragma in PRAGMAS:
            connection.execute(pragma)
    except FAILURES as error:
        connection.close()
        if isinstance(error, sqlite3.Error) and _is_grave(error):
            raise
        raise DatabaseDamaged(f"the database {str(path)!r} is damaged: {error}", path=str(path)) from error
    return connection


def _make_private(path: Path) -> None:
    """The file exists and only its owner may read it.

    A file that is there is not opened: closing it would take away the locks that this process has on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if os.name != "nt" and path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _check_header(path: Path) -> None:
    """Refuse format versions that SQLite would open for reading only, as if the disk refused."""
    try:
        with path.open("rb") as file:
            versions = file.read(20)[18:]
    except OSError:
        return  # missing, or what opening it will tell
    if not set(versions) <= {1, 2}:
        raise DatabaseDamaged(f"the database {str(path)!r} is damaged: its header is unknown", path=str(path))


def migrate(connection: sqlite3.Connection, migrations: Mapping[str, Sequence[str]], path: Path) -> None:
    """Apply each component's missing steps, each in a transaction of its own."""
    done = steps_done(connection)
    for component, steps in migrations.items():
        have = done.get(component, 0)
        if have > len(steps):
            message = f"{str(path)!r} was written by a newer version of qworkspace; install that one again"
            raise Unavailable(message, code="newer_database", component=component)
        for number, script in enumerate(steps[have:], have + 1):
            _apply_step(connection, component, number, script)


def steps_done(connection: sqlite3.Connection) -> dict[str, int]:
    """How many steps of each component the file has."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_steps'").fetchone()
    if known is None:
        return {}
    return dict(connection.execute("SELECT component, max(step) FROM schema_steps GROUP BY component"))


def _apply_step(connection: sqlite3.Connection, component: str, number: int, script: str) -> None:
    if not component.isidentifier():
        raise ValueError(f"{component!r} is no name of a component")
    try:
        connection.executescript(
            "BEGIN IMMEDIATE;"
            "CREATE TABLE IF NOT EXISTS schema_steps"
            " (component TEXT NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (component, step)) STRICT, WITHOUT ROWID;"
            f"{script};"
            f"INSERT INTO schema_steps VALUES ('{component}', {number});"
            "COMMIT;"
        )
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _quick_check(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise DatabaseDamaged(f"the database {str(path)!r} is damaged: {found[0] if found else '?'}", path=str(path))


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
