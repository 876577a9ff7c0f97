"""What a tool says: plain, bounded, and kept whole beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.base.clock import SimulatedClock
from qworkspace.chat.tools import output
from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.tools.output import OutputFiles, head_and_tail, plain, shorten, superfluous
from qworkspace.errors import StorageError


async def spill(text: str) -> str:
    return "files/.outputs/out_1.txt"


async def full_disk(text: str) -> str:
    raise StorageError("the disk is full")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("bell\x07 back\x08 nul\x00 tab\t", "bell back nul tab\t"),
        ("lone \ud83d surrogate", "lone \ufffd surrogate"),
    ],
)
def test_terminal_text_becomes_plain(raw: str, expected: str):
    assert plain(raw) == expected


@given(st.text(alphabet=st.sampled_from("\x1b[]0;m\\\x07\r\nab\x9b\ud800\x00"), max_size=60))
def test_no_escape_and_no_control_character_passes(raw: str):
    result = plain(raw)
    assert not any(ord(char) < 32 and char not in "\t\n" for char in result)
    result.encode()


@given(st.text(max_size=400), st.integers(min_value=60, max_value=300))
def test_a_shortened_text_keeps_its_beginning_and_end_and_the_limit(text: str, limit: int):
    short = head_and_tail(text, limit, "{left_out} left out")
    assert len(short) <= limit + 40
    assert short[:10] == text[:10]
    assert short[-5:] == text[-5:] or "\n" in text[-limit:]


def test_a_long_text_is_cut_between_lines():
    text = "\n".join(f"line {number:03}" for number in range(300))
    lines = head_and_tail(text, 500, "{left_out} characters left out").split("\n")
    assert lines[0] == "line 000" and lines[-1] == "line 299"
    cut = next(index for index, line in enumerate(lines) if "left out" in line)
    assert all(len(line) == 8 for line in lines[:cut] + lines[cut + 1 :])


async def test_a_short_output_is_not_kept():
    assert await shorten("hello", full_disk) == ("hello", None)


async def test_a_long_output_says_where_the_whole_is():
    text, file = await shorten("x" * 50_000, spill, limit=1_000)
    assert file == "files/.outputs/out_1.txt"
    assert file in text and len(text) < 1_100


async def test_a_full_disk_does_not_lose_head_and_tail():
    text, file = await shorten("begin" + "x" * 5_000 + "end", full_disk, limit=1_000)
    assert file is None and text.startswith("begin") and text.endswith("end") and "could not be kept" in text


async def test_whole_outputs_are_kept_in_files_the_newest_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output, "KEPT_FILES", 3)
    clock = SimulatedClock()
    keep = OutputFiles(Fence(tmp_path, tmp_path / "home"), clock)
    names = []
    for number in range(5):
        names.append(await keep(f"output {number} \ud800"))
        await clock.advance(1)
    (tmp_path / "files" / ".outputs" / "mine.txt").write_text("a person's")
    kept = sorted(path.name for path in (tmp_path / "files" / ".outputs").glob("out_*"))
    assert [f"files/.outputs/{name}" for name in kept] == names[2:]
    assert (tmp_path / names[4]).read_text() == "output 4 \ufffd"
    assert superfluous(["mine.txt", *kept]) == []
