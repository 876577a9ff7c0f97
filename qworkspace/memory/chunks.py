"""Notes cut into passages that follow the markdown structure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise

from qworkspace.memory.marks import is_struck

LARGEST = 600
"""Size of a chunk at most; 400-600 found most evidence per character of results in LoCoMo (see docs/memory.md)."""

ENOUGH = 400
"""A chunk of this size is not filled up any further when a block begins."""

SECTION = 200
"""A chunk of this size ends where a heading begins; smaller sections share one."""

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_DATE = re.compile(r"(?<!\d)(\d{4})-(\d{2})-(\d{2})(?!\d)")
_ONLY_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_MARKS = re.compile(r"^[ \t]*(?:#{1,6}|[-*+]|\d{1,9}[.)])[ \t]+|\*{2,3}|`+")
_SOURCE = re.compile(r"[ \t]*<!--\s*src:[^<>]*-->")  # provenance of a fact, see marks.py
_WORD = re.compile(r"[^\W_]+")
_FRONT_MATTER = 100  # lines at most
_BREAK = re.compile(r"[.!?;,](?=\s)|[。！？；，、]|\s")

_MONTHS = (  # not the locale's
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of a note, verbatim: they count from 1, both inclusive.

    `heading` is the path of headings above the first line, outermost first, that line's own included; `date` is that
    of the innermost heading with one, else of the note's name. A line that is longer than a chunk is cut: its pieces
    have the same line number.
    """

    start_line: int
    end_line: int
    heading: tuple[str, ...]
    date: date | None
    text: str


def chunks_of(path: str, text: str) -> list[Chunk]:
    """The passages of a note in their order, together all its lines that are not blank. Never fails; linear time."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    packer = _Packer(date_in(path))
    starts = [*_block_starts(lines), len(lines)]
    for start, end in pairwise(starts):
        packer.add(start, lines[start:end], _heading_at(lines, start))
    packer.flush()
    return packer.chunks


def indexed_text(path: str, chunk: Chunk) -> str:
    """Whose words are looked for: the name of the note, its date in words, the headings, then what holds of the text.

    Of struck lines only names and numbers are: they are found by what they say, and do not answer before what holds.
    """
    above = [part for part in _above(path, chunk) if not chunk.text.startswith(f"# {part}")]
    words = [date_in_words(chunk.date)] if chunk.date else []
    holding, struck = _parted(chunk)
    names = [word for word in _WORD.findall(struck) if word[0].isupper() or any(map(str.isdecimal, word))]
    return "\n".join([" · ".join([*above, *words]), holding, *([" ".join(names)] if names else [])])


def embedded_text(path: str, chunk: Chunk) -> str:
    """What becomes a vector: what the passage is about, without dates and marks of markdown.

    A day's date in each text makes all notes alike: without it 3 % more questions of the Chinese and Japanese set find
    their note by vectors, and LoCoMo's the same.
    """
    lines = [_MARKS.sub("", line).strip() for line in _parted(chunk)[0].split("\n")]
    lines = [line for line in lines if line and not _ONLY_DATE.match(line)]
    above = [part for part in _above(path, chunk) if part not in lines and not _ONLY_DATE.match(part)]
    return "\n".join([*above, *lines]) or chunk.text


def _parted(chunk: Chunk) -> tuple[str, str]:
    """What holds and what is struck, as a reader of markdown shows it: where a fact is from is no part of it.

    Where everything is struck, that is what there is to be found.
    """
    text = _SOURCE.sub("", chunk.text) if "<!--" in chunk.text else chunk.text
    if "~~" not in text:
        return text, ""
    lines = text.split("\n")
    holding = [line for line in lines if not is_struck(line)]
    if not any(line.strip() and not _HEADING.match(line) for line in holding):
        return text, ""
    return "\n".join(holding), "\n".join(line for line in lines if is_struck(line))


def _above(path: str, chunk: Chunk) -> list[str]:
    name = path.rsplit("/", 1)[-1].removesuffix(".md")
    return [part for part in dict.fromkeys((name, *chunk.heading)) if part]


def date_in(text: str) -> date | None:
    """The first ISO date of a text that exists in the calendar."""
    for year, month, day in _DATE.findall(text):
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None


def date_in_words(day: date) -> str:
    """As people ask for it: "8 May 2023 Monday 2023年5月8日"."""
    month = _MONTHS[day.month - 1]
    return f"{day.day} {month} {day.year} {_DAYS[day.weekday()]} {day.year}年{day.month}月{day.day}日"


@dataclass(slots=True)
class _Packer:
    """Puts blocks together until a chunk is full."""

    day: date | None
    chunks: list[Chunk] = field(default_factory=list)
    _heading: list[tuple[int, str]] = field(default_factory=list)
    _at: tuple[str, ...] = ()
    _day: date | None = None
    _start: int = 0
    _lines: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, start: int, lines: list[str], heading: tuple[int, str] | None) -> None:
        size = sum(map(_size, lines))
        if self._size and self._ends_before(size, heading):
            self.flush()
        if heading:
            while self._heading and self._heading[-1][0] >= heading[0]:
                self._heading.pop()
            self._heading.append(heading)
        if self._size + size <= LARGEST:
            self._take(start, lines, size)
        else:
            self._cut(start, lines)

    def flush(self) -> None:
        """End the chunk, without the blank lines around it."""
        first, last = 0, len(self._lines)
        while last and not self._lines[last - 1].strip():
            last -= 1
        while first < last and not self._lines[first].strip():
            first += 1
        if first < last:
            text = "\n".join(self._lines[first:last])
            start = self._start + 1 + first
            self.chunks.append(Chunk(start, start + last - first - 1, self._at, self._day, text))
        self._lines, self._size = [], 0

    def _ends_before(self, size: int, heading: tuple[int, str] | None) -> bool:
        if heading and self._size >= SECTION:
            return True
        return self._size + size > LARGEST or self._size >= ENOUGH

    def _take(self, start: int, lines: list[str], size: int) -> None:
        if not self._lines:
            self._start, self._at = start, tuple(text for _, text in self._heading)
            self._day = next((day for text in reversed(self._at) if (day := date_in(text))), self.day)
        self._lines += lines
        self._size += size

    def _cut(self, start: int, lines: list[str]) -> None:
        """A block that is larger than a chunk: on line ends, and a line that is larger still inside it."""
        for number, line in enumerate(lines, start):
            size = _size(line)
            if self._size and self._size + size > LARGEST:
                self.flush()
            if size <= LARGEST:
                self._take(number, [line], size)
                continue
            for piece in _pieces(line):
                self._take(number, [piece], LARGEST)
                self.flush()


def _size(line: str) -> int:
    """Characters, those of Chinese and the like twice: they cost a model more, and say more."""
    return len(line) + 1 if line.isascii() else (len(line) + len(line.encode(errors="replace"))) // 2 + 1


def _pieces(line: str) -> Iterator[str]:
    """A long line, cut at the ends of sentences or words where there are any."""
    width = LARGEST if line.isascii() else LARGEST // 2
    at = 0
    while at < len(line):
        end = at + width
        if end < len(line):
            breaks = [match.end() for match in _BREAK.finditer(line, at + width // 2, end)]
            end = breaks[-1] if breaks else end
        yield line[at:end]
        at = end


def _block_starts(lines: list[str]) -> Iterator[int]:
    """Where headings, list items, paragraphs and fenced blocks begin. A heading takes the block below along."""
    fence = "---" if lines[0].rstrip() == "---" and "---" in lines[1:_FRONT_MATTER] else ""
    bound = blank = not fence
    yield 0
    for number, line in enumerate(lines[1:] if fence else lines, 1 if fence else 0):
        text = line.strip()
        if fence:
            if text.startswith(fence) and not text.strip(fence[0]):
                fence, blank = "", True
            continue
        if not text:
            blank = True
            continue
        heading = _heading_at(lines, number)
        opened = _FENCE.match(line) if text[0] in "`~" else None
        if number and (heading or (not bound and (blank or opened or _ITEM.match(line)))):
            yield number
        fence = opened.group(1) if opened else ""
        bound, blank = heading is not None, False


def _heading_at(lines: list[str], number: int) -> tuple[int, str] | None:
    """(level, text) of the heading that begins on a line: `# …`, or a line that the next one underlines."""
    line = lines[number]
    marked = _HEADING.match(line) if "#" in line[:4] else None
    if marked:
        return len(marked.group(1)), (marked.group(2) or "").strip()
    if number + 1 == len(lines) or lines[number + 1].strip()[:1] not in ("=", "-"):
        return None
    below = _UNDERLINE.match(lines[number + 1])
    if below is None or not line.strip() or _ITEM.match(line) or line.lstrip()[0] in "|>`~-=":
        return None
    return (1 if below.group(1)[0] == "=" else 2), line.strip()
