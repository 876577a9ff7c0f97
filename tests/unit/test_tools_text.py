"""Files as text: lines, encodings, and edits that change nothing else."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qworkspace.chat.tools.text import binary_type, decoded, lines_of, replaced
from qworkspace.errors import InvalidInput


def test_an_exact_text_is_replaced_once():
    assert replaced(b"one\ntwo\nthree\n", "two", "2") == (b"one\n2\nthree\n", [2])


def test_line_ends_and_the_mark_of_a_windows_file_stay():
    data = b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n"
    assert replaced(data, "two\nthree", "2\n3\n4") == (b"\xef\xbb\xbfone\r\n2\r\n3\r\n4\r\n", [2])


def test_mixed_line_ends_stay_where_nothing_was_replaced():
    assert replaced(b"a\r\nb\nc\r\nd\ne\r\n", "c\nd", "X\nY") == (b"a\r\nb\nX\r\nY\ne\r\n", [3])


def test_bytes_that_are_no_characters_stay():
    assert replaced(b"caf\xe9 old \xff\n", "old", "new") == (b"caf\xe9 new \xff\n", [1])


def test_utf_16_stays_utf_16():
    data = "\ufefföld".encode("utf-16-le")
    assert replaced(data, "öld", "nëw") == ("\ufeffnëw".encode("utf-16-le"), [1])


@pytest.mark.parametrize(
    ("data", "old", "message"),
    [
        (b"a\nb\n", "x", "not there; read the file again"),
        (b"b\nb\na b\n", "b", r"3 times \(lines 1, 2, 3\)"),
        (b"x\n    a b\n", "\ta b", "line 2 differs from it in white space only"),
        (b"x\na b\nc\n", "a b\nzzz", "its first line is line 2"),
        (b"x", "", "empty"),
    ],
)
def test_an_edit_that_is_not_clear_is_refused_with_a_hint(data: bytes, old: str, message: str):
    with pytest.raises(InvalidInput, match=message):
        replaced(data, old, "new")


def test_overlapping_places_are_not_clear():
    with pytest.raises(InvalidInput, match="2 times"):
        replaced(b"aaa", "aa", "b")


def test_everywhere():
    assert replaced(b"b a\nb", "b", "c", everywhere=True) == (b"c a\nc", [1, 2])
    assert replaced(b"aaa", "aa", "b", everywhere=True)[0] == b"ba"


TEXTS = st.text(alphabet="ab \n\u00e9\U0001f600", max_size=20)


@given(TEXTS, TEXTS.map("[{}]".format), TEXTS, TEXTS)
def test_an_edit_is_what_it_would_be_with_plain_line_ends(head: str, old: str, tail: str, new: str):
    before, expected = f"{head}{old}{tail}", f"{head}{new}{tail}"
    assert replaced(before.encode(), old, new) == (expected.encode(), [head.count("\n") + 1])
    if "\n" in before:
        crlf = before.replace("\n", "\r\n").encode()
        assert replaced(crlf, old, new)[0].decode() == expected.replace("\n", "\r\n")


@given(st.binary(max_size=60))
def test_decoding_loses_no_byte_of_utf_8_and_what_is_shown_can_be_stored(data: bytes):
    file = decoded(data)
    file.shown.encode()
    if file.encoding == "utf-8":
        assert file.encoded(file.text) == data


@given(st.lists(st.text(alphabet="abc", max_size=8), max_size=12), st.integers(-15, 15), st.integers(1, 15))
def test_lines_are_those_that_were_asked_for(lines: list[str], start: int, count: int):
    assume(start != 0 and (not lines or lines[-1]))
    part = lines_of("".join(line + "\n" for line in lines), start, count, 10_000)
    wanted = lines[start - 1 :][:count] if start > 0 else lines[max(0, len(lines) + start) :][:count]
    assert part.text == "\n".join(wanted)
    assert part.total == len(lines) and part.last - part.first + 1 == len(wanted)


def test_lines_stop_at_the_limit_and_a_huge_line_is_cut():
    assert lines_of("aaaa\nbbbb\ncccc\n", 1, 10, 10).text == "aaaa\nbbbb"
    assert lines_of("x" * 100, 1, 10, 20).text.startswith("x" * 20 + " [... line of 100 characters")


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "a.txt", "image/png"),
        (b"SQLite format 3\x00", "a", "application/vnd.sqlite3"),
        (b"a\x00b", "a.mp3", "audio/mpeg"),
        (b"a\x00b", "a", "application/octet-stream"),
        ("\ufeffhello".encode("utf-16"), "a", None),
        (b"plain \xff", "a.png", None),
        (b"", "a", None),
    ],
)
def test_binary_data_is_told_from_text(data: bytes, name: str, kind: str | None):
    assert binary_type(data, name) == kind
