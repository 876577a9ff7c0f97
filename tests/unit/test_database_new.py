"""A new database: there with all its tables or not at all, whatever a crash or an earlier file has left behind."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworkspace.base import database as module
from qworkspace.base.database import Database
from qworkspace.base.tasks import Threads
from qworkspace.errors import StorageError

TABLE = ("CREATE TABLE words (word TEXT NOT NULL UNIQUE) STRICT",)


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(2)
    yield threads
    threads.close()


def words(db: sqlite3.Connection) -> list[str]:
    return [word for (word,) in db.execute("SELECT word FROM words")]


async def test_what_a_crash_left_of_a_draft_is_no_obstacle(tmp_path: Path, threads: Threads) -> None:
    for name in ("a.db.new", "a.db.new-wal", "a.db.new-journal"):
        (tmp_path / name).write_bytes(b"half a file")
    database = Database(tmp_path / "a.db", migrations=TABLE, threads=threads)
    await database.open()
    assert await database.read(words) == []
    await database.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


async def test_the_log_of_a_file_that_is_gone_is_not_replayed_into_the_new_one(
    tmp_path: Path, threads: Threads
) -> None:
    database = Database(tmp_path / "a.db", migrations=TABLE, threads=threads)
    await database.open()
    await database.write(lambda db: db.execute("INSERT INTO words VALUES ('old')"))
    shutil.copyfile(tmp_path / "a.db-wal", tmp_path / "kept")
    await database.close()
    (tmp_path / "a.db").unlink()
    shutil.move(tmp_path / "kept", tmp_path / "a.db-wal")
    await database.open()
    assert await database.read(words) == []
    await database.close()


async def test_a_disk_that_refuses_in_the_middle_leaves_no_half_file(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "a.db", migrations=TABLE, threads=threads)

    def refuse(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(module, "sync_file", refuse)
        with pytest.raises(StorageError):
            await database.open()
    assert not (tmp_path / "a.db").exists()
    await database.open()
    assert await database.read(words) == []
    await database.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
