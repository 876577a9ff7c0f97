"""Files as text: how their bytes are read, cut into lines, and edited without touching what was not meant."""

from __future__ import annotations

import codecs
import mimetypes
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidInput

LOOKED_AT = 8_192

Text = Annotated[str, BeforeValidator(lambda value: clean_text(value) if isinstance(value, str) else value)]
"""An argument that a model may have cut within a character: lone surrogates become U+FFFD."""

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_SURROGATE = re.compile("[\ud800-\udfff]")
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x7fELF", "application/x-executable"),
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A decoded file. `text` keeps bytes that are not UTF-8 as lone surrogates, so that they can be written back."""

    text: str
    encoding: str
    mark: bytes

    @property
    def shown(self) -> str:
        """The text for reading: valid UTF-8, lines end with `\\n`."""
        return clean_text(self.text).replace("\r\n", "\n")

    @property
    def damaged(self) -> bool:
        """Whether bytes could not be read as characters."""
        return _SURROGATE.search(self.text) is not None

    def encoded(self, text: str) -> bytes:
        """`text` as bytes of the same file."""
        return self.mark + text.encode(
            self.encoding, "surrogateescape" if self.encoding == "utf-8" else "surrogatepass"
        )


def decoded(data: bytes) -> TextFile:
    """UTF-8 with or without a byte order mark, or UTF-16 with one."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            errors = "surrogateescape" if encoding == "utf-8" else "replace"
            return TextFile(data[len(mark) :].decode(encoding, errors), encoding, mark)
    return TextFile(data.decode("utf-8", "surrogateescape"), "utf-8", b"")


def binary_type(data: bytes, name: str) -> str | None:
    """The media type of data that is no text; None when it is text."""
    head = data[:LOOKED_AT]
    known = next((type for signature, type in _SIGNATURES if head.startswith(signature)), None)
    if known is not None:
        return known
    if b"\0" not in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of a text. `first` and `last` count from 1; `total` is None when the text is only a part."""

    text: str
    first: int
    last: int
    total: int


def lines_of(text: str, start: int, count: int, limit: int) -> Lines:
    """`count` lines from line `start` on (negative: from the end), as many of them as fit into `limit` characters."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    begin = min(len(lines), start - 1) if start > 0 else max(0, len(lines) + start)
    chosen: list[str] = []
    room = limit
    for line in lines[begin : begin + count]:
        if len(line) >= room:
            if not chosen:
                chosen.append(f"{line[:room]} [... line of {len(line):,} characters, cut]")
            break
        chosen.append(line)
        room -= len(line) + 1
    return Lines("\n".join(chosen), begin + 1, begin + len(chosen), len(lines))


def replaced(data: bytes, old: str, new: str, *, everywhere: bool = False) -> tuple[bytes, list[int]]:
    """`data` with `old` replaced by `new`, and the lines (from 1) where it was.

    Line ends in `old` match any of the file; those in `new` become the file's own. Nothing else changes, not even
    bytes that are no characters. `InvalidInput` unless `old` is there exactly once, or `everywhere` is wanted.
    """
    if not old:
        raise InvalidInput("the text to replace is empty")
    file = decoded(data)
    if file.encoded(file.text) != data:
        raise InvalidInput(f"the file is not valid {file.encoding.upper()}; it cannot be edited without damage")
    ends = _line_ends(file.text)
    text = file.text.replace("\r\n", "\n")
    old, new = clean_text(old).replace("\r\n", "\n"), clean_text(new).replace("\r\n", "\n")
    places = _places(text, old)
    if not places:
        raise InvalidInput(f"the text to replace is not there{_hint(text, old)}")
    lines = [text.count("\n", 0, place) + 1 for place in places[:20]]
    if len(places) > 1 and not everywhere:
        where = ", ".join(map(str, lines)) + (", ..." if len(places) > 20 else "")
        raise InvalidInput(
            f"the text to replace is there {len(places)} times (lines {where}); give more of it, or all=true"
        )
    if 2 * len(ends) > text.count("\n"):
        new = new.replace("\n", "\r\n")
    return file.encoded(_put(file.text, _apart(places, len(old)), len(old), new, ends)), lines


def _line_ends(text: str) -> list[int]:
    """Where each `\\r\\n` of `text` would be if all of them were `\\n`."""
    found: list[int] = []
    position = text.find("\r\n")
    while position >= 0:
        found.append(position - len(found))
        position = text.find("\r\n", position + 2)
    return found


def _places(text: str, old: str) -> list[int]:
    found: list[int] = []
    position = text.find(old)
    while position >= 0:
        found.append(position)
        position = text.find(old, position + 1)
    return found


def _apart(places: list[int], length: int) -> list[int]:
    """The places that do not overlap an earlier one."""
    found: list[int] = []
    for place in places:
        if not found or place >= found[-1] + length:
            found.append(place)
    return found


def _put(original: str, places: list[int], length: int, new: str, ends: list[int]) -> str:
    """`original` with `new` at the places, which count each of its `\\r\\n` (at `ends`) as one character."""
    parts, position = [], 0
    for place in places:
        start, stop = (index + bisect_left(ends, index) for index in (place, place + length))
        parts += [original[position:start], new]
        position = stop
    return "".join([*parts, original[position:]])


def _hint(text: str, old: str) -> str:
    """Where something alike is: the same lines but for white space, or at least the first of them."""
    wanted = [line.strip() for line in old.strip().split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number : number + len(wanted)] == wanted:
            return f"; line {number + 1} differs from it in white space only"
    if wanted[0] in lines:
        return f"; its first line is line {lines.index(wanted[0]) + 1}, what follows differs"
    return "; read the file again"
