"""Chunks: every line of a note is found under its place, and no text makes the cutting fail or slow."""

import time
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.memory.chunks import LARGEST, Chunk, chunks_of, embedded_text, indexed_text

LINE = st.one_of(
    st.text(max_size=40).map(lambda text: text.replace("\n", " ").replace("\r", " ")),
    st.sampled_from(
        ["", "", "# A", "## B ##", "### ", "- item", "  - sub", "1. one", "```", "~~~~", "===", "---", "> q"]
    ),
    st.sampled_from(["我喜欢" * 400, "word " * 300, "x" * 1500]),
)


def cut(text: str, path: str = "memory/note.md") -> list[Chunk]:
    return chunks_of(path, text)


@given(st.lists(LINE, max_size=40))
@settings(max_examples=50, deadline=None)
def test_chunks_are_the_lines_they_name_and_leave_none_out(lines: list[str]) -> None:
    chunks = cut("\n".join(lines))

    covered: set[int] = set()
    for chunk in chunks:
        named = "\n".join(lines[chunk.start_line - 1 : chunk.end_line])
        assert chunk.text == named or (chunk.start_line == chunk.end_line and chunk.text in named)
        assert chunk.text.strip() and len(chunk.text) <= LARGEST
        covered |= set(range(chunk.start_line, chunk.end_line + 1))
    assert {number for number, line in enumerate(lines, 1) if line.strip()} <= covered
    assert [chunk.start_line for chunk in chunks] == sorted(chunk.start_line for chunk in chunks)


@pytest.mark.parametrize("line", ["word " * 900, "汉字。" * 900, "x" * 5000, "a\u0301" * 3000])
def test_no_character_of_a_long_line_is_lost(line: str) -> None:
    chunks = cut(line)

    assert "".join(chunk.text for chunk in chunks) == line
    assert {(chunk.start_line, chunk.end_line) for chunk in chunks} == {(1, 1)}


def test_a_chunk_knows_its_headings_and_its_day() -> None:
    story = "word " * 70
    note = f"# Trip\n\n{story}\n\n## 2024-02-29 Leap\n\n{story}\n\n### Food\n\n{story}\n\n## Home\n\n{story}\n"

    first, leap, food, home = cut(note, "memory/2023-05-08.md")

    assert (first.heading, first.date) == (("Trip",), date(2023, 5, 8))
    assert (leap.heading, leap.date) == (("Trip", "2024-02-29 Leap"), date(2024, 2, 29))
    assert (food.heading, food.date) == (("Trip", "2024-02-29 Leap", "Food"), date(2024, 2, 29))
    assert (home.heading, home.date, home.start_line) == (("Trip", "Home"), date(2023, 5, 8), 13)


def test_small_sections_share_a_chunk_and_a_heading_stays_with_its_text() -> None:
    assert len(cut("# A\n\none\n\n# B\n\ntwo\n")) == 1

    chunks = cut(f"{'word ' * 70}\n\n# Next\n\n{'item ' * 100}\n")
    assert [chunk.text.startswith("# Next") for chunk in chunks] == [False, True]


def test_list_items_are_not_torn_apart() -> None:
    items = [f"- item {number} {'word ' * 20}\n  goes on {number}" for number in range(40)]

    for chunk in cut("\n".join(items)):
        assert chunk.text.startswith("- item") and "  goes on" in chunk.text.splitlines()[-1]


def test_a_heading_in_a_fence_or_in_front_matter_is_none() -> None:
    fenced = cut("# Real\n\n```sh\n# a comment\n```\n\ntext\n")
    front = cut("---\ntitle: x\n---\n\n# Real\n\ntext\n")

    assert {chunk.heading for chunk in fenced} == {("Real",)}
    assert front[-1].heading == () and "# Real" in front[-1].text
    assert cut("Under\n=====\n\n" + "word " * 100)[0].heading == ("Under",)


def test_line_ends_of_all_systems_count_alike() -> None:
    texts = ["# A\n\none\n\ntwo", "# A\r\n\r\none\r\n\r\ntwo", "# A\r\rone\r\rtwo"]

    assert len({tuple(cut(text)) for text in texts}) == 1


def test_what_is_indexed_names_the_day_as_people_say_it() -> None:
    (chunk,) = cut("# 2023-05-08\n\n- **Ann** (13:56): hello", "memory/2023-05-08.md")

    text = indexed_text("memory/2023-05-08.md", chunk)

    assert "8 May 2023 Monday" in text and "5月8日" in text and text.endswith(chunk.text)


def test_a_vector_is_made_of_what_a_passage_is_about() -> None:
    note = "# 2023-05-08\n\n- **Ann**: 2 * 3 is `six` <!-- src: chat-1/turn_2 -->\n\n## Sums\n1. more"
    (chunk,) = cut(note, "memory/2023-05-08.md")

    assert embedded_text("memory/2023-05-08.md", chunk) == "Ann: 2 * 3 is six\nSums\nmore"
    assert embedded_text("digest/Numbers.md", chunk).startswith("Numbers\nAnn")
    assert "chat-1" not in indexed_text("memory/2023-05-08.md", chunk)


@pytest.mark.parametrize("text", ["", "\n\n\n", "   \n\t", "\ufeff"])
def test_a_blank_note_has_no_chunk_to_show(text: str) -> None:
    assert all(chunk.text.strip() for chunk in cut(text))


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"{'#' * (number % 6 + 1)} heading {number}" for number in range(100_000)),
        "我们都喜欢编程和电影他的" * 140_000,
        "x" * 5_000_000,
        "```\n" + "code\n" * 200_000,
        "---\n" * 50_000,
        "- " * 500_000,
    ],
    ids=["headings", "cjk", "one line", "open fence", "rules", "markers"],
)
def test_huge_notes_take_seconds_not_minutes(text: str) -> None:
    began = time.perf_counter()

    chunks = cut(text)

    assert time.perf_counter() - began < 15
    assert max(len(chunk.text) for chunk in chunks) <= LARGEST
