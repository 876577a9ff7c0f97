"""Notes cut into passages that follow the markdown structure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of a note, verbatim: they count from 1, both inclusive.

    `heading` is the path of headings above the first line, outermost first; `date` is the note's (from its name) or
    the heading's. A line that is longer than a chunk is cut: its pieces have the same line number.
    """

    start_line: int
    end_line: int
    heading: tuple[str, ...]
    date: date | None
    text: str


def chunks_of(path: str, text: str) -> list[Chunk]:
    """The passages of a note in their order, together all its lines that are not blank. Never fails; linear time."""
    raise NotImplementedError


def indexed_text(path: str, chunk: Chunk) -> str:
    """What is tokenised and embedded: the name of the note, its date in words, the headings, then the text."""
    raise NotImplementedError
