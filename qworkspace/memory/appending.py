"""Lines that are added to a note: the block that is written, and which of them an editor has swallowed."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidInput

FEW = 20
PAGE = 512  # bytes; a write that was torn ends at a multiple of it, or the file ends there


@dataclass(frozen=True, slots=True)
class Block:
    """What one append writes after `place` bytes with that checksum; `seen`: how often its lines were there."""

    data: bytes
    place: int
    crc: int
    seen: Mapping[str, int]


@dataclass(slots=True)
class Fresh:
    """Lines that were appended a moment ago, and how often each has to stand in the note; `seq` numbers the change."""

    path: str
    seq: int
    until: float
    expected: dict[bytes, int] = field(default_factory=dict)
    put_back: int = 0

    def accept(self, data: bytes | None) -> None:
        """A later change made the note `data`, on purpose: what is not in it is not missed."""
        have = counts(data or b"", self.expected)
        self.expected = {line: min(times, have[line]) for line, times in self.expected.items() if have[line]}


def lines_to_add(lines: str | Sequence[str]) -> list[bytes]:
    """Whole lines without blanks at their ends; `InvalidInput` when there are none."""
    text = lines if isinstance(lines, str) else "\n".join(line.rstrip("\n") for line in lines)
    pieces = [line.rstrip() for line in clean_text(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    while pieces and not pieces[-1]:
        pieces.pop()
    if not any(pieces):
        raise InvalidInput("there is no text to add to the note")
    return [piece.encode() for piece in pieces]


def block_of(lines: Sequence[bytes], present: bytes | None) -> Block:
    """The bytes that add `lines` to a note with those bytes: its last line is ended first."""
    have = present or b""
    last = have.rfind(b"\n")
    end = b"\r\n" if have[last - 1 : last] == b"\r" else b"\n"
    data = b"".join(line + end for line in lines)
    if have and not have.endswith(b"\n"):
        data = end + data
    times = counts(have, lines)
    seen = {line.decode("utf-8", "replace"): times[line] for line in lines if line and times[line]}
    return Block(data, len(have), zlib.crc32(have), seen)


def lines_in(block: bytes) -> list[bytes]:
    """The lines of a block, without its line ends."""
    return [line.rstrip() for line in block.split(b"\n") if line.strip()]


def expected_of(block: bytes, seen: Mapping[str, int]) -> dict[bytes, int]:
    """How often each line has to stand in the note now."""
    added = Counter(lines_in(block))
    return {line: times + seen.get(line.decode("utf-8", "replace"), 0) for line, times in added.items()}


def counts(data: bytes, lines: Collection[bytes]) -> Counter[bytes]:
    """How often each of those lines stands there, whatever blanks follow it."""
    if len(lines) > FEW:
        return Counter(line.rstrip() for line in data.split(b"\n"))
    return Counter({line: _times(data, line) for line in lines if line})


def _times(data: bytes, line: bytes) -> int:
    """Fast in a large note, where a line that is looked for is seldom found."""
    times, at = 0, data.find(line)
    while at >= 0:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        times += (at == 0 or data[at - 1 : at] == b"\n") and not data[at + len(line) : end].strip()
        at = data.find(line, end)
    return times


def missing_of(data: bytes, fresh: Sequence[Fresh]) -> list[bytes]:
    """The lines that are not there as often as they have to be, in the order in which they were added."""
    have = counts(data, {line for one in fresh for line in one.expected})
    lacking = []
    for one in fresh:
        for line, times in one.expected.items():
            for _ in range(times - have[line]):
                lacking.append(line)
                have[line] += 1
    return lacking


def torn_at(data: bytes, block: bytes, place: int) -> int:
    """How many bytes of the block were written at `place` before the writer was killed; 0 when it cannot be told."""
    rest = data[place:]
    length = next((i for i, (a, b) in enumerate(zip(rest, block, strict=False)) if a != b), min(len(rest), len(block)))
    is_torn = length == len(rest) or (place + length) % PAGE == 0
    return length if is_torn and length < len(block) else 0
