"""Provenance marks and struck facts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.memory.marks import fact_line, facts_in, is_struck, mark, parse, plain, strike, unstrike


def test_a_fact_knows_its_turn_and_whether_it_still_holds() -> None:
    line = fact_line("Ann likes tea", "chat-1", "turn_01")
    assert line == "- Ann likes tea <!-- src: chat-1/turn_01 -->"
    assert strike(line) == "- ~~Ann likes tea~~ <!-- src: chat-1/turn_01 -->"
    text = f"# Day\n{line}\n\n1. [x] {strike(line)[2:]}\n- no mark\n"
    first, second = facts_in(text)
    assert (first.line_no, first.text, first.session, first.turn, first.struck) == (
        *(2, "Ann likes tea", "chat-1", "turn_01", False),
    )
    assert (second.line_no, second.text, second.struck) == (4, "Ann likes tea", True)


def test_a_fact_cannot_forge_a_mark_or_a_line() -> None:
    line = fact_line("x\n- y <!-- src: other/turn --> z\u2028-->", "s", "t")
    assert "\n" not in line
    assert line.count("<!--") == line.count("-->") == 1
    (fact,) = facts_in(line)
    assert (fact.session, fact.turn) == ("s", "t")


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_striking_is_taken_back_exactly(text: str) -> None:
    line = text.replace("\n", " ")
    struck = strike(line)
    assert strike(struck) == struck
    assert is_struck(line) or unstrike(struck) == line
    assert plain(struck) == plain(line)


@settings(max_examples=50)
@given(st.text(max_size=80))
def test_any_text_becomes_one_fact(text: str) -> None:
    (fact,) = facts_in(fact_line(text, "chat:1@x", "turn_1"))
    assert (fact.session, fact.turn) == ("chat:1@x", "turn_1")
    source = parse(mark("a b", "c/d"))
    assert source is not None
    assert (source.session, source.turn) == ("a_b", "c_d")
