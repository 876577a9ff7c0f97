"""The keyword index: after any changes it scores as rank-bm25 does on the same chunks."""

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from qworkspace.memory.keyword import KeywordIndex

Files = dict[int, list[tuple[int, list[str]]]]

WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=6)
REPLACE = st.tuples(st.just("replace"), st.integers(1, 5), st.lists(WORDS, max_size=8))
NONE: st.SearchStrategy[list[list[str]]] = st.just([])
REMOVE = st.tuples(st.just("remove"), st.integers(1, 5), NONE)
OTHER = st.tuples(st.sampled_from(["search", "reload"]), st.just(0), NONE)
CHANGES = st.lists(st.one_of(REPLACE, REPLACE, REMOVE, OTHER), min_size=1, max_size=15)


def after(changes: Sequence[tuple[str, int, list[list[str]]]]) -> tuple[KeywordIndex, Files]:
    """An index and what it must hold."""
    index, files, number = KeywordIndex(), Files(), 0
    for what, file, texts in changes:
        if what == "search":
            index.scores(["a"])
        elif what == "reload":
            index = KeywordIndex.load(index.dump())
        else:
            chunks = [(number + place, words) for place, words in enumerate(texts)]
            number += len(chunks)
            index.remove_file(file) if what == "remove" else index.replace_file(file, chunks)
            files.pop(file, None)
            files |= {file: chunks} if chunks else {}
    return index, files


def windows(files: Files, reach: int) -> dict[int, list[str]]:
    """By chunk number: the words of the chunk and of so many neighbours on each side."""
    return {
        number: [word for _, words in chunks[max(place - reach, 0) : place + reach + 1] for word in words]
        for chunks in files.values()
        for place, (number, _) in enumerate(chunks)
    }


@given(CHANGES)
@settings(max_examples=60, deadline=None)
def test_scores_are_those_of_rank_bm25_after_any_changes(changes: list[tuple[str, int, list[list[str]]]]) -> None:
    index, files = after(changes)
    chunks = windows(files, 0)

    assert len(index) == len(chunks)
    if not any(chunks.values()):
        assert not index.scores(["a"]).chunk.any()
        return
    parent, query = BM25Okapi(list(chunks.values())), ["a", "b", "z", "a"]
    found = dict(zip(index.chunk_nos.tolist(), index.get_scores(query).tolist(), strict=True))
    assert found == pytest.approx(dict(zip(chunks, parent.get_scores(query).tolist(), strict=True)))
    assert dict(index.idf) == pytest.approx(parent.idf)
    assert index.average_idf == pytest.approx(parent.average_idf) and index.avgdl == pytest.approx(parent.avgdl)
    if all(parent.idf.get(word, 1) > 0 for word in query):
        assert index.scores(query).chunk == pytest.approx(index.get_scores(query))


@given(CHANGES)
@settings(max_examples=30, deadline=None)
def test_neighbourhoods_and_files_are_scored_as_if_they_were_chunks(
    changes: list[tuple[str, int, list[list[str]]]],
) -> None:
    index, files = after(changes)
    signals = index.scores(["a"])
    numbers = signals.layout.chunk_nos.tolist()

    whole = {file: [word for _, words in chunks for word in words] for file, chunks in files.items()}
    by_file = lucene(whole, "a")
    owner = {number: file for file, chunks in files.items() for number, _ in chunks}
    assert dict(zip(numbers, signals.near.tolist(), strict=True)) == pytest.approx(lucene(windows(files, 1), "a"), 1e-4)
    assert dict(zip(numbers, signals.file.tolist(), strict=True)) == pytest.approx(
        {number: by_file[file] for number, file in owner.items()}, 1e-4
    )


def lucene(documents: Mapping[int, list[str]], word: str) -> dict[int, float]:
    """BM25 with the idf that is never negative, by its definition."""
    size = len(documents)
    frequency = sum(word in words for words in documents.values())
    average = sum(map(len, documents.values())) / max(size, 1) or 1.0
    idf = math.log(1 + (size - frequency + 0.5) / (frequency + 0.5))
    return {
        number: idf * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * len(words) / average)) if count else 0.0
        for number, words in documents.items()
        for count in [words.count(word)]
    }


def test_the_only_note_is_found_by_its_words() -> None:
    index = KeywordIndex()
    index.replace_file(1, [(1, ["tea", "cup"])])

    assert index.scores(["tea"]).chunk[0] > 0 and index.scores(["rain"]).chunk[0] == 0


def test_weights_of_terms_multiply_their_scores() -> None:
    index = KeywordIndex()
    index.replace_file(1, [(10, ["tea", "cup"]), (11, ["milk"]), (12, ["rain"]), (13, ["snow"])])

    once, thrice = index.scores(["tea"]), index.scores({"tea": 3.0})

    assert thrice.chunk == pytest.approx(once.chunk * 3) and once.chunk[0] > 0
    assert index.chunk_scores({"tea": 3.0}) == pytest.approx(thrice.chunk)


def test_a_replaced_file_is_found_by_its_new_words_only() -> None:
    index = KeywordIndex()
    for file in range(400):
        index.replace_file(file, [(file * 10 + place, [f"old{file}", "shared"]) for place in range(3)])
    index.scores(["shared"])

    index.replace_file(7, [(9000, ["fresh"])])
    signals = index.scores(["fresh"])

    assert signals.layout.chunk_nos[signals.chunk > 0].tolist() == [9000]
    assert not index.scores(["old7"]).chunk.any() and index.scores(["old8"]).chunk.any()
    assert len(index) == 399 * 3 + 1


def test_words_of_any_kind_come_back_from_bytes() -> None:
    index = KeywordIndex()
    index.replace_file(1, [(1, ["汉字", "naïve", "\ud800", "x" * 200]), (2, ["tea"])])

    again = KeywordIndex.load(index.dump())

    assert set(again.idf) == {"汉字", "naïve", "\ud800", "x" * 200, "tea"}
    assert len(KeywordIndex.load(KeywordIndex().dump())) == 0


def test_damaged_bytes_are_told_from_an_index() -> None:
    index = KeywordIndex()
    index.replace_file(1, [(1, ["tea"] * 50), (2, ["cup"])])
    data = index.dump()
    middle = len(data) // 2

    for damaged in (b"", b"PK", data[:middle], data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]):
        with pytest.raises(ValueError):
            KeywordIndex.load(damaged)
