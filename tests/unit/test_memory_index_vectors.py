"""Vectors of the index: made in the background, nothing twice, by one embedder at a time, words meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.errors import StorageError, Unavailable
from qworkspace.memory.contract import Query
from qworkspace.memory.index_embedding import FIRST_RETRY
from tests.support.indexes import CountingEmbedder, Notes, builtin_store, paths


@pytest.fixture
async def notes(tmp_path: Path) -> AsyncIterator[Notes]:
    notes = Notes(tmp_path / "vault")
    yield notes
    await notes.close()


async def test_a_text_is_embedded_once_though_it_moves_comes_back_or_stands_twice(notes: Notes) -> None:
    embedder = CountingEmbedder()
    notes.put("memory/a.md", "apples and pears\n")
    index = await notes.ready(embedder)
    assert index.status().embedded == index.status().chunks == 1 and index.status().vectors == "ready"
    notes.put("memory/a.md", "something else\n")
    notes.put("digest/deep/a.md", "apples and pears\n")  # a note of that name elsewhere
    index.refresh()
    await index.settled()
    notes.put("memory/a.md", "apples and pears\n")
    index.refresh(["memory/a.md"])
    await index.settled()
    await index.close()
    again = await notes.ready(embedder)
    assert max(Counter(embedder.texts).values()) == 1
    hits = (await again.search(Query("apples and pears"))).hits
    assert {hit.path for hit in hits if hit.vector_rank is not None} == {"memory/a.md", "digest/deep/a.md"}
    assert again.status().embedded == 2


async def test_words_are_searched_while_vectors_are_made(notes: Notes) -> None:
    embedder = CountingEmbedder(gate=asyncio.Event())
    notes.put("a.md", "apples\n")
    index = notes.index(embedder)
    await index.open()
    index.refresh()
    while index.status().pending:
        await asyncio.sleep(0.001)
    found = await index.search(Query("apples"))
    assert found.hits[0].path == "a.md" and found.hits[0].vector_rank is None
    assert "1 of 1 passages are found by their words only" in found.partial
    assert index.status().vectors == "building"
    notes.put("a.md", "bananas\n")  # the embedder hangs, and the change is found all the same
    index.refresh(["a.md"])
    while await paths(index, "bananas") != ["a.md"]:
        await asyncio.sleep(0.001)
    assert embedder.gate is not None
    embedder.gate.set()
    await index.settled()
    found = await index.search(Query("bananas"))
    assert found.partial == "" and found.hits[0].vector_rank == 1


async def test_another_embedder_makes_vectors_anew_while_words_go_on(notes: Notes) -> None:
    notes.put("a.md", "apples\n")
    await (await notes.ready(CountingEmbedder())).close()
    other = CountingEmbedder(id="counting/two", dimensions=8, gate=asyncio.Event())
    index = notes.index(other)
    await index.open()
    assert index.status().vectors == "reindex needed" and index.status().embedded == 0
    index.refresh()
    assert await paths(index, "apples") == ["a.md"]
    assert other.gate is not None
    other.gate.set()
    await index.settled()
    status = index.status()
    assert (status.vectors, status.embedded, status.embedder) == ("ready", 1, "counting/two")
    assert (await index.search(Query("apples"))).hits[0].vector_rank == 1


async def test_an_embedder_that_fails_is_shown_and_tried_again(tmp_path: Path) -> None:
    clock = SimulatedClock()
    notes = Notes(tmp_path / "vault", clock)
    embedder = CountingEmbedder(failing="the provider is down")
    notes.put("a.md", "apples\n")
    index = await notes.ready(embedder)
    assert index.status().vectors == "waiting" and index.status().pending == 0
    assert "the provider is down" in notes.troubles[0]
    assert await paths(index, "apples") == ["a.md"]
    embedder.failing = ""
    await clock.advance(FIRST_RETRY + 1)
    await index.settled()
    assert notes.troubles == [] and index.status().vectors == "ready"
    embedder.failing = "gone again"
    found = await index.search(Query("apples"))
    assert found.hits and "gone again" in found.partial
    await notes.close()


class Faulty(CountingEmbedder):
    """Has a fault of its own while `failing`, and answers no questions once it is `silent`."""

    silent = False

    async def embed(self, texts: Sequence[str]) -> Any:
        if self.failing:
            raise ZeroDivisionError(self.failing)
        return await super().embed(texts)

    async def embed_query(self, text: str) -> Any:
        if self.silent:
            await asyncio.Event().wait()
        return await super().embed_query(text)


async def test_a_fault_that_nobody_has_foreseen_is_shown_and_tried_again(tmp_path: Path) -> None:
    clock = SimulatedClock()
    notes = Notes(tmp_path / "vault", clock)
    embedder = Faulty(failing="a fault")
    notes.put("a.md", "apples\n")
    index = await notes.ready(embedder)
    assert index.status().vectors == "waiting" and "a fault; see the log" in notes.troubles[0]
    embedder.failing = ""
    await clock.advance(FIRST_RETRY + 1)
    await index.settled()
    assert notes.troubles == [] and index.status().vectors == "ready"
    await notes.close()


async def test_the_end_waits_for_no_retry_and_cancels_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(tmp_path / "vault", SimulatedClock())
    embedder = Faulty()
    notes.put("a.md", "apples\n")
    index = await notes.ready(embedder)
    await index.search(Query("apples"))
    embedder.silent = True
    looking = asyncio.ensure_future(index.search(Query("pears")))
    await asyncio.sleep(0)
    storing, full = threading.Event(), threading.Event()

    def keep(*_: object) -> None:
        storing.set()
        full.wait(10)
        raise StorageError("the disk is full")

    monkeypatch.setattr(index._vectors, "_keep", keep)
    notes.put("b.md", "pears\n")
    index.refresh(["b.md"])
    assert await asyncio.to_thread(storing.wait, 10)
    closing = asyncio.ensure_future(index.close())
    await asyncio.sleep(0)
    full.set()
    await asyncio.wait_for(closing, 10)
    assert (await looking).hits == ()
    await notes.close()


async def test_embeddings_of_texts_that_are_gone_are_bounded(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qworkspace.memory.indexing.SPARE", 10)
    monkeypatch.setattr("qworkspace.memory.index_vectors.SPARE", 10)
    embedder = CountingEmbedder()
    index = await notes.ready(embedder)
    for round in range(40):
        notes.put("n.md", f"text {round}\n")
        index.refresh(["n.md"])
        await index.settled()
    for name in ("n.md", "m.md"):  # the embeddings are counted when something is indexed
        notes.put(name, "text 39\n")
        index.refresh()
        await index.settled()
    assert len(embedder.texts) >= 40
    assert index._work.embeddings <= 10 + 2 + 1


async def test_a_store_that_cannot_be_reached_leaves_words(tmp_path: Path) -> None:
    clock = SimulatedClock()
    notes = Notes(tmp_path / "vault", clock)
    notes.put("a.md", "apples\n")
    away = ["the Chroma server is away"]

    def store(id: str, dimensions: int) -> object:
        if away:
            raise Unavailable(away[0])
        return builtin_store(id, dimensions)

    index = notes.index(CountingEmbedder())
    index._loaded._make_store = store  # type: ignore[assignment]
    await index.open()
    index.refresh()
    await index.settled()
    assert await paths(index, "apples") == ["a.md"]
    assert any("Chroma server" in message for message in notes.troubles)
    away.clear()
    await clock.advance(31)
    await paths(index, "apples")
    await index.search(Query("apples"))
    assert (await index.search(Query("apples"))).hits[0].vector_rank == 1
    assert notes.troubles == []
    await notes.close()


async def test_an_encoder_that_is_not_loaded_waits_until_the_start_is_over_and_words_are_found_at_once(
    tmp_path: Path,
) -> None:
    clock = SimulatedClock()
    notes = Notes(tmp_path / "vault", clock)
    notes.put("memory/a.md", "apples and pears\n")
    embedder = CountingEmbedder(ready=False)
    index = notes.index(embedder)
    await index.open()
    index.refresh()
    async with asyncio.timeout(10):
        while not await paths(index, "pears"):
            await asyncio.sleep(0.01)
    await clock.advance(4)
    assert embedder.texts == [] and index.status().vectors == "building"
    await clock.advance(2)
    await index.settled()
    assert len(embedder.texts) == 1 and index.status().vectors == "ready"
    await notes.close()
