"""One SQLite file behind asyncio: durable, grouped, undisturbed by its neighbours, well again by itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from qworkspace.base.database import Database
from qworkspace.base.tasks import Threads
from qworkspace.errors import DatabaseDamaged, NotFound, StorageError, Unavailable

TABLE = ("CREATE TABLE words (word TEXT NOT NULL UNIQUE) STRICT",)
Work = Callable[[sqlite3.Connection], None]


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(4)
    yield threads
    threads.close()


@pytest.fixture
async def database(tmp_path: Path, threads: Threads) -> AsyncIterator[Database]:
    database = Database(tmp_path / "state" / "a.db", migrations=TABLE, threads=threads)
    await database.open()
    yield database
    await database.close()


def add(word: str) -> Work:
    def work(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO words VALUES (?)", (word,))

    return work


def words(db: sqlite3.Connection) -> list[str]:
    return [word for (word,) in db.execute("SELECT word FROM words ORDER BY rowid")]


def stored(path: Path) -> list[str]:
    """What another process would find now."""
    with sqlite3.connect(path) as other:
        found = words(other)
    other.close()
    return found


class Gate:
    """A work that holds the writer until it is let go, so that others have to wait together."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, db: sqlite3.Connection) -> None:
        self.entered.set()
        assert self._open.wait(10)

    def let_go(self) -> None:
        self._open.set()


async def test_what_is_written_is_durable_when_the_call_returns(database: Database) -> None:
    await database.write(add("hello"))
    assert stored(database.path) == ["hello"]
    assert await database.read(words) == ["hello"]


async def test_the_file_and_its_directory_are_for_their_owner_only(database: Database) -> None:
    await database.write(add("x"))
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "a.db"
    path.touch(mode=0o644)
    database = Database(path, migrations=TABLE, threads=threads)
    await database.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await database.close()


async def _together(database: Database, works: list[Work]) -> list[object]:
    """Run the works so that they wait at the same time."""
    gate = Gate()
    holding = asyncio.create_task(database.write(gate))
    waiting = [asyncio.create_task(database.write(work)) for work in works]
    await asyncio.sleep(0)
    gate.let_go()
    await holding
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_writes_that_wait_together_share_a_commit(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[int] = []

    def version(db: sqlite3.Connection) -> None:
        changes.append(db.execute("PRAGMA data_version").fetchone()[0])

    await database.read(version)
    await _together(database, [add(f"w{n}") for n in range(30)])
    await database.read(version)
    assert await database.read(words) == [f"w{n}" for n in range(30)]
    assert changes[1] - changes[0] == 1


async def test_a_failing_write_fails_its_own_caller_only(database: Database) -> None:
    def half(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO words VALUES ('half done')")
        raise NotFound("turn", "x")

    def wrong(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO nowhere VALUES (1)")

    results = await _together(database, [add("a"), half, add("a"), wrong, add("b")])
    assert [type(result) for result in results] == [
        type(None),
        NotFound,
        sqlite3.IntegrityError,
        sqlite3.OperationalError,
        type(None),
    ]
    assert stored(database.path) == ["a", "b"]


async def test_a_cancelled_waiter_disturbs_nobody_and_its_write_is_carried_out(database: Database) -> None:
    gate = Gate()
    holding = asyncio.create_task(database.write(gate))
    waiting = [asyncio.create_task(database.write(add(word))) for word in "abc"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    holding.cancel()
    await asyncio.sleep(0)
    gate.let_go()
    await asyncio.gather(waiting[0], waiting[2])
    assert waiting[1].cancelled()
    assert stored(database.path) == ["a", "b", "c"]


async def test_reads_see_committed_states_only_and_change_nothing(database: Database) -> None:
    gate = Gate()

    def write_and_wait(db: sqlite3.Connection) -> None:
        add("unfinished")(db)
        gate(db)

    writing = asyncio.create_task(database.write(write_and_wait))
    await asyncio.to_thread(gate.entered.wait, 10)
    assert await database.read(words) == []
    gate.let_go()
    await writing
    assert await database.read(words) == ["unfinished"]
    with pytest.raises(StorageError, match="read-only"):
        await database.read(add("x"))
    assert await database.read(words) == ["unfinished"]


async def test_closing_carries_out_what_is_queued_and_leaves_one_file(database: Database) -> None:
    writes = [asyncio.create_task(database.write(add(f"w{n}"))) for n in range(100)]
    await asyncio.sleep(0)
    await database.close()
    await database.close()
    await asyncio.gather(*writes)
    assert len(stored(database.path)) == 100
    assert [path.name for path in database.path.parent.iterdir()] == ["a.db"]
    with pytest.raises(Unavailable, match="is not open"):
        await database.write(add("late"))


async def test_a_full_disk_refuses_everything_and_is_forgotten_once_there_is_space(database: Database) -> None:
    await database.write(add("before"))

    def fill(db: sqlite3.Connection) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + 1}")
        db.execute("INSERT INTO words VALUES (?)", ("x" * 100_000,))

    results = await _together(database, [add("neighbour"), fill, add("other")])
    assert [type(result) for result in results] == [StorageError] * 3
    assert "the disk is full" in str(results[0])
    assert stored(database.path) == ["before"]
    await database.write(add("after"))
    assert stored(database.path) == ["before", "after"]


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
async def test_a_disk_that_fails_in_the_middle_of_a_write_leaves_nothing_half_done(database: Database) -> None:
    import resource  # not there on Windows

    await database.write(add("before"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match="the disk reports an error"):
            await database.write(add("x" * 500_000))
        with pytest.raises(StorageError):
            await database.write(add("y" * 500_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await database.write(add("after"))
    assert stored(database.path) == ["before", "after"]


async def test_a_file_held_by_another_program_is_an_error_after_two_seconds_not_a_hang(database: Database) -> None:
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="another program holds it"):
        await database.write(add("x"))
    other.execute("COMMIT")
    other.close()
    await database.write(add("x"))


async def test_a_file_taken_away_is_made_anew_and_a_missing_directory_is_not(database: Database) -> None:
    await database.write(add("old"))
    assert await database.read(words) == ["old"]
    for path in database.path.parent.iterdir():
        path.unlink()
    await database.write(add("new"))
    assert await database.read(words) == ["new"]
    shutil.move(database.path.parent, database.path.parent.with_name("moved"))
    with pytest.raises(StorageError):
        await database.write(add("nowhere"))
    assert not database.path.parent.exists()
    shutil.move(database.path.parent.with_name("moved"), database.path.parent)
    await database.write(add("again"))
    assert stored(database.path) == ["new", "again"]


async def test_components_share_a_file_and_each_goes_its_own_steps(tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "home.db"
    one = ["CREATE TABLE one (x INTEGER) STRICT; INSERT INTO one VALUES (1)"]
    two = ["CREATE TABLE two (y INTEGER) STRICT"]

    async def opened(**components: list[str]) -> list[str]:
        database = Database(path, migrations=components, threads=threads)
        await database.open()
        tables = await database.read(
            lambda db: [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        )
        await database.close()
        return sorted(tables)

    assert await opened(one=one) == ["one", "schema_steps"]
    assert await opened(two=two, one=one) == ["one", "schema_steps", "two"]
    one.append("ALTER TABLE one ADD COLUMN z TEXT; UPDATE one SET z = 'z' || x")
    await opened(one=one, two=two)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT x, z FROM one").fetchall() == [(1, "z1")]
    other.close()
    with pytest.raises(Unavailable, match="newer version") as caught:
        await opened(one=one[:1], two=two)
    assert caught.value.code == "newer_database"


async def test_a_step_that_fails_changes_nothing(tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "a.db"
    broken = [*TABLE, "CREATE TABLE more (x INTEGER) STRICT; INSERT INTO nowhere VALUES (1)"]
    with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
        await Database(path, migrations=broken, threads=threads).open()
    database = Database(path, migrations=[*TABLE, "CREATE TABLE more (x INTEGER) STRICT"], threads=threads)
    await database.open()
    await database.write(add("x"))
    await database.close()


async def test_what_is_no_database_is_said_to_be_damaged_and_left_alone(tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"this is something else, and a long one at that\n" * 100)
    before = path.read_bytes()
    with pytest.raises(DatabaseDamaged):
        await Database(path, migrations=TABLE, threads=threads).open()
    assert path.read_bytes() == before


async def test_damage_that_the_library_cannot_even_quote_is_damage(tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "a.db"
    first = Database(path, migrations=TABLE, threads=threads)
    await first.open()
    await first.close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE words (word", b"CREATE TABLE words \xa5\xff \xa5\xff"))
    second = Database(path, migrations=TABLE, threads=threads)
    with pytest.raises(DatabaseDamaged):
        await second.open()
    await second.close()


async def test_pages_are_checked_after_an_unclean_end_only(
    database: Database, tmp_path: Path, threads: Threads
) -> None:
    for n in range(300):
        await database.write(add(f"{n}" * 200))
    await database.read(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone())
    await database.write(add("last"))
    crashed, clean = tmp_path / "crashed", tmp_path / "clean"
    shutil.copytree(database.path.parent, crashed)
    await database.close()
    shutil.copytree(database.path.parent, clean)
    for directory in (crashed, clean):
        with (directory / "a.db").open("rb+") as file:
            file.seek(-20_000, os.SEEK_END)
            file.write(b"\xff" * 12_000)
    with pytest.raises(DatabaseDamaged):
        await Database(crashed / "a.db", migrations=TABLE, threads=threads).open()
    unread = Database(clean / "a.db", migrations=TABLE, threads=threads)
    await unread.open()
    await unread.close()


async def test_hundreds_of_files_share_the_threads(tmp_path: Path) -> None:
    threads = Threads(3)
    before = threading.active_count()
    databases = [Database(tmp_path / f"{n}.db", migrations=TABLE, threads=threads) for n in range(60)]
    await asyncio.gather(*(database.open() for database in databases))
    await asyncio.gather(*(database.write(add("x")) for database in databases))
    assert threading.active_count() - before <= 3
    await asyncio.gather(*(database.close() for database in databases))
    threads.close()


async def test_threads_that_have_ended_are_an_error_not_a_hang(tmp_path: Path) -> None:
    threads = Threads(1)
    database = Database(tmp_path / "a.db", migrations=TABLE, threads=threads)
    await database.open()
    await database.close()
    await database.open()
    await threads.run(database._drop)
    threads.close()
    with pytest.raises(RuntimeError):
        await database.write(add("x"))


async def test_another_program_that_looks_in_and_leaves_does_not_take_the_log_with_it(database: Database) -> None:
    await database.write(add("before"))
    await database.read(words)
    look = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM words'); db.close()"
    subprocess.run([sys.executable, "-c", look, str(database.path)], check=True)
    assert Path(f"{database.path}-wal").exists()
    await database.write(add("after"))
    assert await database.read(words) == stored(database.path) == ["before", "after"]


WRITER = """
import asyncio, sys
from pathlib import Path
from qworkspace.base.database import Database
from qworkspace.base.tasks import Threads

async def main():
    database = Database(Path(sys.argv[1]), migrations=["CREATE TABLE words (word TEXT) STRICT"], threads=Threads(2))
    await database.open()
    async def writer(name):
        for n in range(100_000):
            word = f"{name}-{n}"
            await database.write(lambda db: db.execute("INSERT INTO words VALUES (?)", (word,)).rowcount)
            print(word, flush=True)
    await asyncio.gather(*(writer(name) for name in "abc"))

asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(300)]
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split()
    found = stored(path)
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    for name in "abc":
        mine = [word for word in found if word.startswith(name)]
        assert mine == [f"{name}-{n}" for n in range(len(mine))]
