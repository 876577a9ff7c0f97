"""How turns of the database are scored and go together with notes; how texts become rows."""

from __future__ import annotations

from datetime import date

import pytest

from qworkspace.memory.contract import Found, Hit, Query
from qworkspace.memory.pg_ranking import hits_of, merged
from qworkspace.memory.pg_rows import PIECE, as_query, pieces, rows_of
from qworkspace.memory.pg_store import Kept
from tests.support.archives import said, texts


def kept(turn: str, text: str, words: float, similarity: float | None = None, part: str = "user") -> Kept:
    return Kept(turn, part, "s1", date(2026, 1, 2), text, words, similarity)


def note(text: str, score: float) -> Hit:
    return Hit("memory/2026-01-02.md", 1, 1, text, score)


def test_of_a_turn_the_best_piece_is_shown_with_why():
    rows = [kept("t1", "a", 0.2, 0.9), kept("t1", "b", 0.8, 0.5, "assistant.2"), kept("t2", "c", 0.6)]
    [first, second] = hits_of(rows, 0.35)
    assert (first.text, first.heading, first.bm25_rank, first.vector_rank) == ("b", ("assistant",), 1, 2)
    assert first.parts == pytest.approx({"words": 0.65 * 0.8, "vectors": 0.35 * 0.5})
    assert first.score == pytest.approx(sum(first.parts.values()))
    assert (second.text, second.vector_rank) == ("c", None)


def test_without_vectors_the_words_have_all_the_weight():
    assert [hit.score for hit in hits_of([kept("t1", "a", 0.5)], 0.7)] == [0.5]


def test_what_has_nothing_to_do_with_the_question_is_left_out():
    rows = [kept("t1", "a", 1.0), kept("t2", "b", 0.3), kept("t3", "c", 0.0, float("nan"))]
    assert texts(hits_of(rows, 0.35)) == ["a"]
    assert hits_of([kept("t1", "a", 0.0, 0.1)], 0.35) == []


def test_a_note_goes_before_a_turn_that_fits_as_well_and_says_it_once():
    local = Found((note("- Rex is a dog", 0.9), note("- Rex  bit\nthe postman", 0.5)), "being indexed")
    turns = [note("- rex BIT the postman", 1.0), note("rex is here", 0.9), note("rex is here", 0.3)]
    found = merged(local, turns, Query("rex"), partial="slow")
    assert [(hit.text, round(hit.score, 2)) for hit in found.hits] == [
        ("- Rex is a dog", 0.9),
        ("rex is here", 0.72),
        ("- Rex  bit\nthe postman", 0.5),
    ]
    assert found.partial == "being indexed; slow"
    assert len(merged(local, turns, Query("rex", max_results=1)).hits) == 1
    assert texts(merged(local, turns, Query("rex", min_score=0.8)).hits) == ["- Rex is a dog"]


@pytest.mark.parametrize("text", ["word " * 2_000, "line\n" * 2_000, "字" * 5_000, "short", "x" * (PIECE + 1)])
def test_pieces_are_short_and_lose_nothing(text):
    found = list(pieces(text))
    assert all(len(piece) <= PIECE for piece in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_blank_texts_are_no_rows():
    assert [row.facts["part"] for row in rows_of(said(1, " \n", "ok"), lambda text: [text, ""])] == ["assistant"]


def test_a_term_cannot_change_the_search():
    assert as_query("it's \\ a | b") == "'it''s \\\\ a | b'"
