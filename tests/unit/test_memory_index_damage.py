"""The index file is a cache: damaged, deleted, locked or half built, it is mended, and nobody waits for long."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.memory.contract import Query
from tests.support.indexes import CountingEmbedder, Notes, paths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def notes(tmp_path: Path) -> AsyncIterator[Notes]:
    notes = Notes(tmp_path / "vault")
    for number in range(30):
        notes.put(f"memory/n{number}.md", f"# number {number}\nwalrus\n" + "some words to fill pages\n" * 60)
    yield notes
    await notes.close()


def _scribbled(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(8192, size, 4096):
            file.seek(at)
            file.write(os.urandom(2000))


def _no_database(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 1000)


def _halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def _without_a_table(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE chunk")
    db.close()


def _deleted(path: Path) -> None:
    path.unlink()


DAMAGES = (_scribbled, _no_database, _halved, _of_another_version, _without_a_table)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_is_rebuilt_at_the_start(notes: Notes, damage: Callable[[Path], None]) -> None:
    await (await notes.ready()).close()
    await notes.threads.run(damage, notes.file)
    index = notes.index()
    await index.open()
    index.refresh()
    await index.settled()
    found = await index.search(Query("walrus"))
    if not found.hits:  # damage that only reading a page shows
        assert notes.troubles
        await index.settled()
        found = await index.search(Query("walrus"))
    assert found.hits and notes.troubles == []
    assert any("damaged" in told or "version" in told for told in _told(notes))


@pytest.mark.parametrize("damage", [_scribbled, _no_database, _deleted])
async def test_a_file_damaged_or_deleted_under_way_is_rebuilt(notes: Notes, damage: Callable[[Path], None]) -> None:
    index = await notes.ready(CountingEmbedder())
    await index._db.release()
    await notes.threads.run(damage, notes.file)
    found = await index.search(Query("walrus"))
    assert not found.hits and "rebuilt" in found.partial and index.status().problems
    assert index.status().pending > 0
    await index.settled()
    assert (await index.search(Query("walrus"))).hits
    assert notes.troubles == [] and index.status().problems == ()
    assert any("being rebuilt" in told for told in _told(notes))


async def test_a_passage_that_was_changed_in_the_file_is_not_served(notes: Notes) -> None:
    index = await notes.ready()
    await index._db.release()
    with sqlite3.connect(notes.file) as db:
        db.execute("UPDATE chunk SET text = replace(text, 'walrus', 'walrus forged')")
    db.close()
    assert (await index.search(Query("walrus"))).hits == ()
    await index.settled()
    hits = (await index.search(Query("walrus"))).hits
    assert hits and not any("forged" in hit.text for hit in hits)


def _told(notes: Notes) -> list[str]:
    return [event.data["message"] for event in notes.bus.log.since(0) if event.type == "problem.opened"]


async def test_a_locked_file_delays_writing_and_no_search(notes: Notes) -> None:
    index = await notes.ready()
    other = sqlite3.connect(notes.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    notes.put("new.md", "pelican\n")
    index.refresh(["new.md"])
    began = time.perf_counter()
    assert (await index.search(Query("walrus"))).hits
    assert time.perf_counter() - began < 1
    await _until(lambda: bool(index.status().problems))
    assert "another program holds it" in notes.troubles[0] and index.status().pending
    other.execute("ROLLBACK")
    other.close()
    await index.settled()
    assert await paths(index, "pelican") == ["new.md"] and notes.troubles == []


async def test_a_file_that_another_program_holds_alone_costs_a_search_two_seconds_at_most(notes: Notes) -> None:
    await (await notes.ready()).close()
    other = sqlite3.connect(notes.file, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    index = notes.index()
    await index.open()
    began = time.perf_counter()
    found = await index.search(Query("walrus"))
    assert time.perf_counter() - began < 2.5 and not found.hits and found.partial
    index.refresh()
    other.close()
    await index.settled()
    assert (await index.search(Query("walrus"))).hits and notes.troubles == []


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def test_kill_in_the_middle_of_a_build_loses_the_current_note_only(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "vault")
    await notes.threads.run(notes.put_many, 250)
    for path in notes.folder.rglob("*.md"):
        os.utime(path, (path.stat().st_atime, time.time() - 60))  # what was written just now is read again
    code = (
        "import asyncio, sys; from pathlib import Path; from tests.support.indexes import Notes\n"
        "asyncio.run(Notes(Path(sys.argv[1])).ready())"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(notes.folder)], cwd=ROOT)
    await notes.threads.run(_wait_for_rows, notes.file, 60)
    process.kill()
    await notes.threads.run(process.wait)
    index = notes.index()
    await index.open()
    there = index.status().files
    assert 60 <= there < 250
    index.refresh()
    await index.settled()
    assert index.status().files == 250 and notes.troubles == []
    assert (await paths(index, "word7"))[0] == "memory/n007.md"
    (ready,) = [e for e in notes.bus.log.since(0) if e.type == "memory.index" and e.data["phase"] == "ready"]
    assert ready.data["done"] <= 250 - there
    await notes.close()


def _wait_for_rows(path: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists():
            db = sqlite3.connect(path)
            try:
                if db.execute("SELECT count(*) FROM file").fetchone()[0] >= count:
                    return
            finally:
                db.close()
        time.sleep(0.005)
    raise TimeoutError(f"{count} notes were not indexed")


async def test_rewriting_a_note_does_not_make_the_file_grow(notes: Notes) -> None:
    index = await notes.ready()
    sizes = []
    for round in range(12):
        lines = [f"line {line} of round {round} with some words in it" for line in range(2000)]
        await notes.threads.run(notes.put, "big.md", "\n".join(lines))
        index.refresh(["big.md"])
        await index.settled()
        await asyncio.sleep(0)
        sizes.append(sum(path.stat().st_size for path in notes.file.parent.glob("index.db*")))
    assert sizes[-1] < sizes[0] * 1.7
    assert (await paths(index, "round 11"))[0] == "big.md"


async def test_a_disk_that_refuses_is_shown_and_tried_again(tmp_path: Path) -> None:
    clock = SimulatedClock()
    notes = Notes(tmp_path / "vault", clock)
    notes.put("a.md", "apples\n")
    notes.file.parent.write_text("a file where the directory should be")
    index = notes.index()
    await index.open()
    index.refresh()
    await _until(lambda: bool(notes.troubles))
    assert index.status().pending and (await index.search(Query("apples"))).partial
    notes.file.parent.unlink()
    await clock.advance(6)
    await index.settled()
    assert await paths(index, "apples") == ["a.md"] and notes.troubles == []
    await notes.close()
