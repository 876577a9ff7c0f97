"""One contract for all vector stores; what only one of them promises stands at the end."""

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qworkspace.config.models import MemoryConfig
from qworkspace.errors import Unavailable
from qworkspace.memory.vector_stores import VectorStores
from qworkspace.memory.vectors import BuiltinVectors, VectorStore

SIZE = 24


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorStores]:
    """One client of Chroma for the module, as a daemon has it."""
    made = VectorStores(tmp_path_factory.mktemp("home") / ".daemon" / "chroma")
    yield made
    made.close()


@pytest.fixture(params=["builtin", "chroma"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "chroma":
        pytest.importorskip("chromadb")
    return kind


@pytest.fixture
def store(stores: VectorStores, kind: str, request: pytest.FixtureRequest) -> Iterator[VectorStore]:
    opened = opening(stores, kind, request.node.name)
    yield opened
    opened.close()


def opening(stores: VectorStores, kind: str, agent: str, embedder: str = "one") -> VectorStore:
    settings = MemoryConfig.model_validate({"vector_store": kind})
    return stores.open(settings, agent_id=agent, embedder_id=embedder, dimensions=SIZE)


def unit_rows(count: int, *, size: int = SIZE, seed: int = 1) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def items(*numbers: int) -> list[tuple[int, str]]:
    return [(number, f"hash-{number}") for number in numbers]


def nearest(rows: NDArray[np.float32], question: NDArray[np.float32], k: int) -> list[int]:
    return [int(place) for place in np.argsort(-(rows @ question), kind="stable")[:k]]


def test_the_nearest_come_first_with_their_cosine(store: VectorStore) -> None:
    rows, question = unit_rows(300), unit_rows(1, seed=2)[0]
    store.add(items(*range(300)), rows)
    near = store.search(question, 10)
    assert near.chunk_nos.tolist() == nearest(rows, question, 10)
    assert near.similarities == pytest.approx(np.sort(rows @ question)[::-1][:10], abs=1e-3)
    assert near.chunk_nos.dtype == np.int64 and near.similarities.dtype == np.float32
    assert len(store) == 300


@pytest.mark.parametrize("allowed", [[5], [7, 3, 250, 999], [999], []])
def test_only_allowed_chunks_are_found(store: VectorStore, allowed: list[int]) -> None:
    rows, question = unit_rows(300), unit_rows(1, seed=2)[0]
    store.add(items(*range(300)), rows)
    found = store.search(question, 6, np.array(allowed, np.int64)).chunk_nos.tolist()
    assert found == [number for number in nearest(rows, question, 300) if number in allowed][:6]


def test_a_wide_filter_finds_as_many_as_a_narrow_one(store: VectorStore) -> None:
    rows, question = unit_rows(1_500), unit_rows(1, seed=2)[0]
    store.add(items(*range(1_500)), rows)
    ranked = nearest(rows, question, 1_500)
    allowed = np.setdiff1d(np.arange(1_500), ranked[:200])
    assert store.search(question, 3, allowed).chunk_nos.tolist() == ranked[200:203]


def test_what_is_changed_and_removed_is_found_no_more(store: VectorStore) -> None:
    rows = unit_rows(40)
    store.add(items(*range(40)), rows)
    store.remove([3, 39, 4711])
    store.add([(5, "new"), (100, "more")], rows[[3, 39]])
    assert store.search(rows[3], 1).chunk_nos.tolist() == [5]
    assert store.search(rows[39], 1).chunk_nos.tolist() == [100]
    assert sorted(store.search(rows[0], 99).chunk_nos.tolist()) == [*range(3), *range(4, 39), 100]
    assert len(store) == 39


def test_an_empty_store_and_blank_texts_are_no_error(store: VectorStore) -> None:
    question = unit_rows(1)[0]
    assert store.search(question, 5).chunk_nos.tolist() == []
    store.remove([1])
    store.add([], np.empty((0, SIZE), np.float32))
    store.add(items(1, 2), np.stack([np.zeros(SIZE, np.float32), question]))
    near = store.search(question, 5)
    assert near.chunk_nos.tolist() == [2, 1]
    assert near.similarities == pytest.approx([1, 0], abs=1e-3)
    store.clear()
    assert len(store) == 0 and store.search(question, 5).chunk_nos.tolist() == []


def test_similarities_agree_with_search_where_a_store_has_them(store: VectorStore) -> None:
    rows = unit_rows(50)
    store.add(items(*range(50)), rows.astype(np.float16))
    every = store.similarities(rows[7])
    if every is None:
        assert not isinstance(store, BuiltinVectors)
        return
    best = np.argsort(-every.similarities)[:5]
    assert every.chunk_nos[best].tolist() == store.search(rows[7], 5).chunk_nos.tolist()


def test_feedback_also_finds_what_is_near_to_the_nearest(store: VectorStore) -> None:
    question, other, far = np.eye(SIZE, dtype=np.float32)[:3]
    rows = np.stack([question + other, 0.2 * question + other, 0.25 * question + far])
    store.add(items(1, 2, 3), rows / np.linalg.norm(rows, axis=1, keepdims=True))
    assert store.search(question, 3).chunk_nos.tolist() == [1, 3, 2]
    assert store.search(question, 3, feedback=0.9).chunk_nos.tolist() == [1, 2, 3]
    assert len(store.search(question, 3, np.array([9]), feedback=0.9).chunk_nos) == 0


def test_what_a_store_has_kept_it_tells_when_it_is_opened_again(stores: VectorStores, kind: str) -> None:
    first = opening(stores, kind, "kept")
    first.add(items(1, 2), unit_rows(2))
    first.close()
    again = opening(stores, kind, "kept")
    assert again.stored() in ({}, {1: "hash-1", 2: "hash-2"})
    assert len(again) == len(again.stored())


def test_agents_and_embedders_do_not_see_each_other(stores: VectorStores, kind: str) -> None:
    one, other = opening(stores, kind, "ann"), opening(stores, kind, "bob")
    one.add(items(1), unit_rows(1))
    assert len(other) == 0
    changed = opening(stores, kind, "ann", embedder="two")
    assert len(changed) == 0 and changed.stored() == {}
    assert opening(stores, kind, "ann").stored() == {}, "vectors of a former embedder do not stay on disk"


def test_many_rows_are_compared_by_their_signs_first_and_nothing_near_is_lost() -> None:
    rows = unit_rows(5_000, size=512)
    questions = rows[:20] + unit_rows(20, size=512, seed=3) * 0.9
    questions /= np.linalg.norm(questions, axis=1, keepdims=True)
    store = BuiltinVectors(512, exact_rows=1_000, candidates=600)
    for start in range(0, 5_000, 700):
        store.add(items(*range(start, min(start + 700, 5_000))), rows[start : start + 700])
    assert store.similarities(questions[0]) is None
    for place, question in enumerate(questions):
        assert store.search(question, 1).chunk_nos.tolist() == [place]
    every_second = np.arange(0, 5_000, 2)
    assert store.search(questions[4], 1, every_second).chunk_nos.tolist() == [4]
    assert not (store.search(questions[5], 50, every_second).chunk_nos % 2).any()


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "chromadb", None)
    with pytest.raises(Unavailable, match=r"pip install 'qworkspace\[chroma\]'"):
        opening(VectorStores(tmp_path), "chroma", "a")


def test_a_server_that_is_away_is_named(tmp_path: Path) -> None:
    pytest.importorskip("chromadb")
    stores = VectorStores(tmp_path)
    settings = MemoryConfig.model_validate({"vector_store": "chroma", "chroma_url": "http://127.0.0.1:9"})
    with pytest.raises(Unavailable, match=re.escape("is the server at http://127.0.0.1:9 running?")):
        stores.open(settings, agent_id="a", embedder_id="e", dimensions=3)
    stores.close()


def test_a_server_that_never_answers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("chromadb")
    monkeypatch.setattr("qworkspace.memory.chroma.CONNECT_SECONDS", 0.1)
    stores = VectorStores(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = MemoryConfig.model_validate({"vector_store": "chroma", "chroma_url": url})
        with pytest.raises(Unavailable, match=f"timed out; is the server at {url} running"):
            stores.open(settings, agent_id="a", embedder_id="e", dimensions=3)
    stores.close()


def test_a_damaged_directory_is_named_and_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("chromadb")
    (tmp_path / "chroma.sqlite3").write_bytes(b"no database at all " * 500)
    stores = VectorStores(tmp_path)
    with pytest.raises(Unavailable, match=re.escape(f"delete {tmp_path}")):
        opening(stores, "chroma", "a")
    stores.close()
