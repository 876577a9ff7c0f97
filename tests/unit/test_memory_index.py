"""The index of a vault: what is written is found, only what changed is read again, one bad note stops no other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.memory import index_slices
from qworkspace.memory.chunks import chunks_of
from qworkspace.memory.contract import Query
from qworkspace.memory.index import MemoryIndex
from qworkspace.memory.index_loading import IDLE_SECONDS
from tests.support.indexes import CountingEmbedder, Notes, paths

ANIMALS = ("aardvark", "badger", "cougar", "dingo", "ermine")


@pytest.fixture
async def notes(tmp_path: Path) -> AsyncIterator[Notes]:
    notes = Notes(tmp_path / "vault")
    yield notes
    await notes.close()


async def test_what_is_written_is_found_and_says_where(notes: Notes) -> None:
    notes.put("MEMORY.md", "# People\n\n- Ana is allergic to peanuts\n")
    notes.put("memory/2026-05-08.md", "# 2026-05-08\n\nWe moved the piano to Porto.\n")
    index = await notes.ready()
    (hit, *_) = (await index.search(Query("who is allergic to peanuts?"))).hits
    assert (hit.path, hit.heading) == ("MEMORY.md", ("People",))
    assert "Ana is allergic to peanuts" in hit.text and hit.start_line <= 3 <= hit.end_line
    assert await paths(index, "piano", since=date(2026, 5, 1), until=date(2026, 5, 31)) == ["memory/2026-05-08.md"]
    assert await paths(index, "piano", since=date(2026, 6, 1)) == []
    assert await paths(index, "piano peanuts", path_prefix="memory/") == ["memory/2026-05-08.md"]
    status = index.status()
    assert (status.files, status.pending, status.partial, status.problems) == (2, 0, "", ())


async def test_changes_are_found_and_only_the_changed_note_is_cut_again(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        notes.put(f"memory/n{number}.md", f"note {ANIMALS[number]}\n")
    index = await notes.ready()
    cut: list[str] = []
    monkeypatch.setattr(index_slices, "chunks_of", _watched(chunks_of, cut))
    notes.put("memory/n3.md", "now about zebras\n")
    (notes.folder / "memory/n4.md").unlink()
    (notes.folder / "memory/n0.md").rename(notes.folder / "memory/moved.md")
    index.refresh(["memory/n3.md", "memory/n4.md", "memory/moved.md", "memory/n0.md"])
    assert index.status().pending > 0
    await index.settled()
    assert index.status().pending == 0
    assert await paths(index, "zebras") == ["memory/n3.md"]
    assert await paths(index, ANIMALS[0]) == ["memory/moved.md"]
    assert await paths(index, f"{ANIMALS[3]} {ANIMALS[4]}") == []
    os.utime(notes.folder / "memory/n1.md")  # a new time, the same text
    index.refresh()
    await index.settled()
    assert sorted(cut) == ["memory/moved.md", "memory/n3.md"]


def _watched(cut_note: object, seen: list[str]) -> object:
    def cut(name: str, text: str) -> object:
        seen.append(name)
        return cut_note(name, text)  # type: ignore[operator]

    return cut


async def test_a_changed_note_needs_no_listing_of_the_vault(notes: Notes) -> None:
    notes.put("a.md", "apples\n")
    index = await notes.ready()
    before = notes.listings
    notes.put("a.md", "bananas\n")
    index.refresh(["a.md"])
    await index.settled()
    assert await paths(index, "bananas") == ["a.md"] and notes.listings == before


async def test_a_note_that_became_a_link_out_is_forgotten(notes: Notes, tmp_path: Path) -> None:
    index = notes.index()
    notes.sources = lambda: [s for s in Notes.sources(notes) if not s.path.is_symlink()]  # type: ignore[method-assign]
    index = await Notes.ready(notes)
    notes.put("a.md", "mine\n")
    index.refresh()
    await index.settled()
    secret = tmp_path / "secret.md"
    secret.write_text("passwords")
    (notes.folder / "a.md").unlink()
    (notes.folder / "a.md").symlink_to(secret)
    index.refresh(["a.md"])
    await index.settled()
    assert await paths(index, "passwords mine") == [] and index.status().files == 0


async def test_strange_notes_are_taken_as_far_as_they_go_and_stop_no_other(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qworkspace.memory.index_notes.MOST_BYTES", 100_000)
    notes.put("blank.md", " \n\n")
    notes.put("empty.md", "")
    notes.put("binary.md", bytes(range(256)) * 50)
    notes.put("latin.md", b"good beginning walrus\n" * 3 + "caf\u00e9 au lait".encode("latin-1"))
    notes.put("wide.md", "utf sixteen marmot\n".encode("utf-16"))
    notes.put("huge.md", "first lynx\n" + "filler words here\n" * 10_000)
    notes.put("fine.md", "plain otter\n")
    notes.put("memory/日記.md", "今日は東京で寿司を食べました\n")
    notes.put("memory/заметка.md", "# 9999-12-31\nкупить молоко\n")
    notes.put("memory/2999-01-01.md", "future cheetah\n")
    (notes.folder / "pipe.md").unlink(missing_ok=True)
    os.mkfifo(notes.folder / "pipe.md")
    secret = notes.folder / notes.put("secret.md", "hidden\n")
    secret.chmod(0)
    index = await notes.ready()
    for word, name in {
        "walrus": "latin.md",
        "marmot": "wide.md",
        "lynx": "huge.md",
        "otter": "fine.md",
        "寿司": "memory/日記.md",
        "молоко": "memory/заметка.md",
        "cheetah": "memory/2999-01-01.md",
    }.items():
        assert (await paths(index, word))[:1] == [name]
    refused = dict(index.status().refused)
    refused.pop("secret.md", None)  # nothing is unreadable for root
    assert sorted(refused) == ["binary.md", "blank.md", "empty.md", "huge.md", "latin.md", "pipe.md"]
    assert "not UTF-8 from line 4" in refused["latin.md"] and "first" in refused["huge.md"]
    (told,) = notes.troubles
    assert "binary.md" in told and "blank" not in told
    for name in ("binary.md", "huge.md", "latin.md", "pipe.md", "secret.md"):
        (notes.folder / name).unlink()
    index.refresh()
    await index.settled()
    assert notes.troubles == []


async def test_an_empty_vault_and_a_note_that_makes_chunking_fail(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = await notes.ready()
    assert (await index.search(Query("anything"))).hits == () and index.status().pending == 0
    monkeypatch.setattr(index_slices, "chunks_of", _broken)
    notes.put("odd.md", "odd\n")
    index.refresh()
    await index.settled()
    assert "no idea" in index.status().refused["odd.md"]


def _broken(_name: str, _text: str) -> object:
    raise RuntimeError("no idea")


async def test_first_results_come_during_the_build(notes: Notes) -> None:
    await notes.threads.run(notes.put_many, 400)
    index = notes.index()
    await index.open()
    index.refresh()
    early = 0
    while index.status().pending:
        found = await index.search(Query("filler"))
        early += bool(found.hits) and "still being indexed" in found.partial
        await asyncio.sleep(0)
    assert early
    await index.settled()
    assert (await paths(index, "word399"))[0] == "memory/n399.md"
    phases = [event.data["phase"] for event in notes.bus.log.since(0) if event.type == "memory.index"]
    assert phases[-1] == "ready" and len(phases) < 30


async def test_a_changed_note_overtakes_a_backlog(notes: Notes) -> None:
    notes.put("today.md", "old words\n")
    index = await notes.ready()
    await notes.threads.run(notes.put_many, 400)
    index.refresh()
    while index.status().files < 10:
        await asyncio.sleep(0.001)
    notes.put("today.md", "fresh pelican\n")
    index.refresh(["today.md"])
    while await paths(index, "pelican") != ["today.md"]:
        await asyncio.sleep(0.001)
    assert index.status().pending > 100
    await index.settled()


async def test_one_index_at_a_time_builds_and_small_changes_do_not_wait(notes: Notes) -> None:
    notes.put("a.md", "apples\n")
    index = await notes.ready()
    await notes.turns.acquire()  # another agent's index is being built
    notes.put("a.md", "bananas\n")
    index.refresh(["a.md"])
    await index.settled()
    assert await paths(index, "bananas") == ["a.md"]
    notes.put("b.md", "cherries\n")
    index.refresh()
    await asyncio.sleep(0.05)
    assert await paths(index, "cherries") == [] and index.status().pending
    notes.turns.release()
    await index.settled()
    assert await paths(index, "cherries") == ["b.md"]


async def test_idle_arrays_are_dropped_and_no_file_stays_open(tmp_path: Path) -> None:
    clock = SimulatedClock()
    notes = Notes(tmp_path / "vault", clock)
    notes.put("a.md", "apples\n")
    index = await notes.ready(CountingEmbedder())
    await asyncio.sleep(0.05)
    assert _open_files(notes) == 0, "an index that nobody searches holds nothing"
    assert await paths(index, "apples") == ["a.md"] and _open_files(notes) > 0
    await clock.advance(IDLE_SECONDS - 10)
    assert await paths(index, "apples") == ["a.md"]
    await clock.advance(IDLE_SECONDS + 10)
    await _until(lambda: not index._loaded.loaded and _open_files(notes) == 0)
    assert await paths(index, "apples") == ["a.md"]
    await notes.close()


def _open_files(notes: Notes) -> int:
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    return sum(link.startswith(str(notes.file)) for link in links)


def _is_link(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


async def _until(true: object) -> None:
    async with asyncio.timeout(10):
        while not true():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_halt_leaves_the_rest_and_searches_go_on(notes: Notes) -> None:
    await notes.threads.run(notes.put_many, 300)
    index = notes.index()
    await index.open()
    index.refresh()
    while not index.status().files:
        await asyncio.sleep(0.001)
    await index.halted()
    left = index.status().pending
    assert left and (await index.search(Query("filler"))).hits
    await asyncio.sleep(0.05)
    assert index.status().pending == left
    index.refresh([])
    await index.settled()
    assert index.status().pending == 0 and index.status().files == 300


async def test_reindex_begins_again(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    notes.put("a.md", "apples\n")
    index = await notes.ready()
    cut: list[str] = []
    monkeypatch.setattr(index_slices, "chunks_of", _watched(chunks_of, cut))
    await index.reindex()
    await index.settled()
    assert await paths(index, "apples") == ["a.md"] and cut == ["a.md"]


async def test_a_closed_index_takes_no_harm(notes: Notes) -> None:
    notes.put("a.md", "apples\n")
    index: MemoryIndex = await notes.ready()
    await index.close()
    await index.close()
    index.refresh(["a.md"])
    assert (await index.search(Query("apples"))).partial
