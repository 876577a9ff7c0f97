"""A damaged database: bad bytes are kept aside, readable rows move on, the person is told, work goes on."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.files import write_atomic
from qworkspace.base.mending import MOST_RESCUES, MendingDatabase
from qworkspace.base.problems import Problems
from qworkspace.base.rescue import rescue, settle_rescue
from qworkspace.base.tasks import Threads
from qworkspace.errors import DatabaseDamaged, StorageError

STEPS = {
    "main": (
        "CREATE TABLE parents (number INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;"
        "CREATE TABLE children (number INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES parents (number),"
        " text TEXT NOT NULL) STRICT;"
        "CREATE INDEX children_by_parent ON children (parent)",
    )
}
ADOPT = ("INSERT OR IGNORE INTO parents SELECT DISTINCT parent, 'unknown' FROM children",)
PAGE = 4096
CHILDREN = 400


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(2)
    yield threads
    threads.close()


@pytest.fixture
def problems() -> Problems:
    clock = SimulatedClock()
    return Problems(clock, EventBus(clock))


def make(path: Path, threads: Threads, problems: Problems) -> MendingDatabase:
    return MendingDatabase(
        path, migrations=STEPS, threads=threads, clock=SimulatedClock(), problems=problems, agent_id="a", adopt=ADOPT
    )


@pytest.fixture
async def database(tmp_path: Path, threads: Threads, problems: Problems) -> AsyncIterator[MendingDatabase]:
    database = make(tmp_path / "a.db", threads, problems)
    await database.open()
    await database.write(fill)
    yield database
    await database.close()


def fill(db: sqlite3.Connection) -> None:
    db.executemany("INSERT INTO parents VALUES (?, ?)", [(n, f"parent {n}") for n in range(1, 41)])
    rows = [(n, n % 40 + 1, f"child {n} " * 30) for n in range(1, CHILDREN + 1)]
    db.executemany("INSERT INTO children VALUES (?, ?, ?)", rows)


def children(db: sqlite3.Connection) -> dict[int, str]:
    return dict(db.execute("SELECT number, text FROM children"))


def parents(db: sqlite3.Connection) -> dict[int, str]:
    return dict(db.execute("SELECT number, name FROM parents"))


def sound(db: sqlite3.Connection) -> bool:
    checks = db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return checks and not db.execute("PRAGMA foreign_key_check").fetchall()


def overwrite(path: Path, page: int, *, length: int = PAGE, offset: int = 0) -> None:
    with path.open("rb+") as file:
        file.seek((page - 1) * PAGE + offset)
        file.write(b"\xa5" * length)


def leaf_pages(path: Path) -> list[int]:
    """The pages that hold the children's rows, by their first byte and a word of their text."""
    data = path.read_bytes()
    pages = range(1, len(data) // PAGE + 1)
    return [n for n in pages if data[(n - 1) * PAGE] == 0x0D and b"child " in data[(n - 1) * PAGE : n * PAGE]]


def asides(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


async def test_rows_around_the_damage_are_saved_and_the_bad_bytes_kept(
    database: MendingDatabase, problems: Problems, threads: Threads
) -> None:
    await database.close()
    pages = leaf_pages(database.path)
    for page in pages[3:5]:
        overwrite(database.path, page)
    damaged = database.path.read_bytes()
    await database.open()
    with_gap = await database.read(children)
    assert CHILDREN - 40 < len(with_gap) < CHILDREN
    assert {1, CHILDREN} <= with_gap.keys()
    assert all(text == f"child {n} " * 30 for n, text in with_gap.items())
    assert await database.read(sound)
    [aside] = asides(database.path)
    assert aside.read_bytes() == damaged
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    [problem] = problems.of("a")
    assert f"saved: 40 parents, {len(with_gap)} children" in problem.message
    assert "some rows of children are lost" in problem.message
    assert aside.name in problem.message
    await database.write(lambda db: db.execute("INSERT INTO children VALUES (1000, 1, 'new')").rowcount)


async def test_damage_met_while_running_is_mended_for_everyone_at_once(
    database: MendingDatabase, problems: Problems
) -> None:
    await database.close()
    overwrite(database.path, leaf_pages(database.path)[2])
    await database.open()
    assert asides(database.path) == []

    def everything(db: sqlite3.Connection) -> int:
        return len(db.execute("SELECT * FROM children").fetchall())

    def touch(db: sqlite3.Connection) -> int:
        return db.execute("UPDATE children SET text = text || '!'").rowcount

    counts = await asyncio.gather(*(database.read(everything) for _ in range(5)), database.write(touch))
    assert len(set(counts)) == 1
    assert len(asides(database.path)) == 1
    assert len(problems.of()) == 1


async def test_a_file_whose_first_page_is_gone_still_gives_its_rows(database: MendingDatabase) -> None:
    await database.close()
    overwrite(database.path, 1, length=100)
    await database.open()
    assert len(await database.read(children)) == CHILDREN
    await database.close()
    overwrite(database.path, 1)
    await database.open()
    assert len(await database.read(children)) == CHILDREN
    assert len(asides(database.path)) == 2


async def test_what_sqlite_keeps_for_itself_becomes_no_row(
    tmp_path: Path, threads: Threads, problems: Problems
) -> None:
    steps = {
        "main": (
            "CREATE TABLE numbered (n INTEGER PRIMARY KEY AUTOINCREMENT, a TEXT, b TEXT) STRICT;"
            "CREATE TABLE pairs (name TEXT PRIMARY KEY, said TEXT NOT NULL) STRICT",
        )
    }
    path = tmp_path / "b.db"
    database = MendingDatabase(path, migrations=steps, threads=threads, clock=SimulatedClock(), problems=problems)
    await database.open()
    await database.write(lambda db: db.execute("INSERT INTO numbered (a, b) VALUES ('x', 'y')").rowcount)
    await database.write(lambda db: db.execute("INSERT INTO pairs VALUES ('z', '5')").rowcount)
    await database.close()
    overwrite(path, 1)
    await database.open()
    assert await database.read(lambda db: db.execute("SELECT * FROM numbered").fetchall()) == [(1, "x", "y")]
    assert await database.read(lambda db: db.execute("SELECT * FROM pairs").fetchall()) == [("z", "5")]
    await database.close()


async def test_rows_are_found_without_the_tree_that_led_to_them(database: MendingDatabase) -> None:
    await database.write(lambda db: db.execute("INSERT INTO children VALUES (777, 1, ?)", ("long " * 5000,)).rowcount)
    await database.write(lambda db: db.execute("DELETE FROM children WHERE number BETWEEN 100 AND 299").rowcount)
    await database.close()
    with sqlite3.connect(database.path) as other:
        [root] = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'children'").fetchone()
    other.close()
    overwrite(database.path, root)
    await database.open()
    found = await database.read(children)
    assert found.keys() == {*range(1, 100), *range(300, CHILDREN + 1), 777}
    assert found[777] == "long " * 5000


@pytest.mark.parametrize("content", [b"not a database", os.urandom(3 * PAGE), b"{}" * PAGE])
async def test_something_else_in_its_place_is_kept_and_replaced(
    tmp_path: Path, threads: Threads, problems: Problems, content: bytes
) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    database = make(path, threads, problems)
    await database.open()
    await database.write(fill)
    assert len(await database.read(children)) == CHILDREN
    assert asides(path)[0].read_bytes() == content
    await database.close()


async def test_rows_that_lost_their_parents_are_adopted(database: MendingDatabase) -> None:
    await database.close()
    data = database.path.read_bytes()
    [page] = [n for n in range(1, len(data) // PAGE + 1) if b"parent 40" in data[(n - 1) * PAGE : n * PAGE]]
    overwrite(database.path, page)
    with sqlite3.connect(database.path) as other, pytest.raises(sqlite3.DatabaseError):
        other.execute("SELECT * FROM parents").fetchall()
    other.close()
    await database.open()
    names = await database.read(lambda db: set(db.execute("SELECT name FROM parents").fetchall()))
    assert names == {("unknown",)}
    assert len(await database.read(children)) == CHILDREN
    assert await database.read(sound)


async def test_what_was_only_in_the_log_of_a_crash_is_saved_too(
    database: MendingDatabase, tmp_path: Path, threads: Threads, problems: Problems
) -> None:
    await database.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
    await database.write(lambda db: db.execute("INSERT INTO children VALUES (9999, 1, 'just said')").rowcount)
    copy = tmp_path / "crashed" / "a.db"
    copy.parent.mkdir()
    for name in ("a.db", "a.db-wal"):
        (copy.parent / name).write_bytes((tmp_path / name).read_bytes())
    overwrite(copy, leaf_pages(copy)[4])
    crashed = make(copy, threads, problems)
    await crashed.open()
    assert (await crashed.read(children))[9999] == "just said"
    assert len(asides(copy)) >= 1
    await crashed.close()


@pytest.mark.parametrize("stage", ["before the log is removed", "before the file is replaced"])
async def test_a_crash_during_the_rescue_is_completed_at_the_next_start(
    database: MendingDatabase, tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    await database.close()
    overwrite(database.path, leaf_pages(database.path)[0])

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        if stage == "before the log is removed":
            patch.setattr("qworkspace.base.rescue.settle_rescue", killed)
        else:
            patch.setattr("qworkspace.base.rescue.sync_directory", _Nth(killed, 2))
            patch.setattr("qworkspace.base.rescue.settle_rescue", killed)
        rescue(database.path, STEPS, ADOPT, SimulatedClock().now())
    Path(f"{database.path}-wal").write_bytes(b"of the damaged file")
    await database.open()
    assert await database.read(sound)
    assert len(await database.read(children)) > CHILDREN // 2
    assert len(asides(database.path)) == 1
    assert sorted(p.name for p in tmp_path.iterdir() if "damaged" not in p.name and "-" not in p.name) == ["a.db"]


class _Nth:
    def __init__(self, action: object, nth: int) -> None:
        self._action, self._left = action, nth

    def __call__(self, *args: object) -> None:
        self._left -= 1
        if self._left == 0:
            self._action(*args)  # type: ignore[operator]


def test_there_is_nothing_to_settle_without_a_rescue(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a.db", b"content")
    settle_rescue(tmp_path / "a.db")
    assert (tmp_path / "a.db").read_bytes() == b"content"


async def test_a_disk_that_damages_again_and_again_is_not_filled_with_copies(database: MendingDatabase) -> None:
    for _ in range(MOST_RESCUES):
        await database._threads.run(database._drop)
        overwrite(database.path, 1)
        await database.read(children)
    await database._threads.run(database._drop)
    overwrite(database.path, 1)
    with pytest.raises(DatabaseDamaged, match="check the disk"):
        await database.read(children)
    assert len(asides(database.path)) == MOST_RESCUES


async def test_a_problem_is_over_when_the_disk_would_take_something_again(
    tmp_path: Path, threads: Threads, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, full = SimulatedClock(), True

    def write(path: Path, data: bytes) -> None:
        if full:
            raise StorageError("the disk is full")
        write_atomic(path, data)

    def refuse(db: sqlite3.Connection) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("qworkspace.base.mending.write_atomic", write)
    database = MendingDatabase(tmp_path / "a.db", migrations=STEPS, threads=threads, clock=clock, problems=problems)
    await database.open()
    with pytest.raises(StorageError):
        await database.write(refuse)
    await clock.advance(60)
    assert len(problems.of()) == 1
    full = False
    async with asyncio.timeout(10):
        while problems.of():
            await clock.advance(1)
            await asyncio.sleep(0.01)
    assert [path.name for path in tmp_path.iterdir() if "room" in path.name] == []
    await database.close()


async def test_a_disk_that_refuses_is_one_problem_until_it_takes_again(
    database: MendingDatabase, problems: Problems
) -> None:
    def full(db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA max_page_count={db.execute('PRAGMA page_count').fetchone()[0] + 1}")
        db.execute("INSERT INTO parents (name) VALUES (?)", ("x" * 100_000,))

    for _ in range(3):
        with pytest.raises(StorageError):
            await database.write(full)
    [problem] = problems.of("a")
    assert "the disk is full" in problem.message
    await database.write(lambda db: db.execute("INSERT INTO parents (name) VALUES ('x')").rowcount)
    assert problems.of() == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 3000)), min_size=1, max_size=4))
def test_whatever_is_overwritten_work_goes_on(
    tmp_path_factory: pytest.TempPathFactory, wounds: list[tuple[int, int]]
) -> None:
    async def wound_and_mend(threads: Threads) -> None:
        path = tmp_path_factory.mktemp("wounded") / "a.db"
        clock = SimulatedClock()
        database = make(path, threads, Problems(clock, EventBus(clock)))
        await database.open()
        await database.write(fill)
        await database.close()
        data = bytearray(path.read_bytes())
        for place, length in wounds:
            start = place % len(data)
            data[start : start + length] = b"\xa5" * len(data[start : start + length])
        path.write_bytes(data)
        await database.open()
        await database.read(lambda db: db.execute("PRAGMA quick_check").fetchall())
        await database.write(lambda db: db.execute("INSERT INTO parents VALUES (99, 'after')").rowcount)
        assert 99 in await database.read(parents)
        assert len(await database.read(children)) > CHILDREN // 2
        await database.close()

    threads = Threads(2)
    try:
        asyncio.run(wound_and_mend(threads))
    finally:
        threads.close()
