"""A note in pieces that are added as wholes: headings, list items, paragraphs, code fences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_HEADING = re.compile(r"#{1,6}\s+\S")
_ITEM = re.compile(r"\s{0,3}(?:[-*+]|\d{1,9}[.)])\s")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Segment:
    """Some lines; `level` is that of a heading, 0 for text."""

    lines: tuple[str, ...]
    level: int = 0

    @property
    def sense(self) -> str:
        """What it says, whatever its spaces, bullets and strikes."""
        words = " ".join(" ".join(self.lines).replace("~~", "").split())
        return re.sub(r"\A[-*+] (?:\[[ xX]\] )?", "", words).casefold()


def segments_of(text: str) -> list[Segment]:
    """The segments of a note in their order; blank lines belong to none."""
    return list(_segments(text.replace("\r\n", "\n").split("\n")))


def new_lines(text: str, known: Collection[str]) -> list[str]:
    """The lines of those segments whose sense is not known, under their headings; empty when there are none."""
    lines: list[str] = []
    headings: list[Segment] = []
    was_item = False
    for segment in segments_of(text):
        if segment.level:
            headings = [other for other in headings if other.level < segment.level]
            headings.append(segment)
        elif segment.sense not in known:
            for heading in headings:
                lines += ["", *heading.lines]
                was_item = False
            headings = [Segment((), heading.level) for heading in headings]
            is_item = _ITEM.match(segment.lines[0]) is not None
            lines += segment.lines if was_item and is_item else ["", *segment.lines]
            was_item = is_item
    return [line for number, line in enumerate(lines) if line or number == 0 or lines[number - 1]]


def _segments(lines: list[str]) -> Iterator[Segment]:
    block: list[str] = []
    fence = ""
    for line in lines:
        opening = _FENCE.match(line)
        if fence or opening:
            if opening and not fence and block and not _ITEM.match(block[0]):
                yield Segment(tuple(block))
                block = []
            block.append(line)
            fence = _after(fence, opening)
            continue
        if not line.strip() or _HEADING.match(line) or _ITEM.match(line):
            if block:
                yield Segment(tuple(block))
            block = []
        if _HEADING.match(line):
            yield Segment((line.rstrip(),), len(line) - len(line.lstrip("#")))
        elif line.strip():
            block.append(line.rstrip())
    if block:
        yield Segment(tuple(block))


def _after(fence: str, opening: re.Match[str] | None) -> str:
    if opening is None:
        return fence
    return "" if fence and opening[1].startswith(fence) else fence or opening[1]
