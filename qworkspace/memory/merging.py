"""Lines: differences, and three-way merges of what two have made of one text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

LONGEST = 20_000
"""Lines that differ in one place; more are taken as one difference, for difflib takes the square of the time."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines `start` to `end` (exclusive) of the base have become `lines`."""

    start: int
    end: int
    lines: tuple[bytes, ...]

    def touches(self, other: Hunk) -> bool:
        """Whether both say something about one line, or insert at one place."""
        if self.start == self.end or other.start == other.end:
            return (
                self.start <= other.end
                and other.start <= self.end
                and (
                    self.start == other.start
                    or self.start < other.start < self.end
                    or other.start < self.start < other.end
                )
            )
        return self.start < other.end and other.start < self.end


def lines_of(data: bytes) -> list[bytes]:
    """The lines with their ends; only the last may have none."""
    return list(_by_newline(data))


def merge(base: bytes, ours: bytes, theirs: bytes, *, union: bool = False) -> bytes | None:
    """Both differences from `base` in one text; None when they say different things about one line.

    With `union` there is always an answer: at such a line theirs stays, and the lines that only ours has follow.
    """
    if ours == theirs or base == theirs:
        return ours
    if base == ours:
        return theirs
    lines = lines_of(base)
    mine, other = hunks(lines, lines_of(ours)), hunks(lines, lines_of(theirs))
    merged = _merged(mine, other, union)
    return None if merged is None else _applied(lines, merged)


def hunks(base: Sequence[bytes], changed: Sequence[bytes]) -> list[Hunk]:
    """What makes `changed` of `base`, in order."""
    head = _same(base, changed)
    tail = _same(base[head:][::-1], changed[head:][::-1])
    a, b = base[head : len(base) - tail], changed[head : len(changed) - tail]
    if len(a) + len(b) > LONGEST or not a or not b:
        return [Hunk(head, head + len(a), tuple(b))] if a or b else []
    codes = SequenceMatcher(None, a, b).get_opcodes()
    return [Hunk(head + i, head + j, tuple(b[k:m])) for tag, i, j, k, m in codes if tag != "equal"]


def counted(before: bytes | None, after: bytes | None) -> tuple[int, int]:
    """(lines added, lines removed), whatever their places."""
    old, new = _differing(before or b"", after or b"")
    was, now = Counter(lines_of(old)), Counter(lines_of(new))
    return (now - was).total(), (was - now).total()


def _differing(a: bytes, b: bytes) -> tuple[bytes, bytes]:
    """The two without the lines at the beginning that are the same, and without the same end."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # halving compares each byte twice, in C; a loop over the lines of a large note is slow
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    start = a.rfind(b"\n", 0, low) + 1
    a, b = a[start:], b[start:]
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        same = a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]
        low, high = (middle, high) if same else (low, middle - 1)
    end = a.find(b"\n", len(a) - low) + 1
    cut = len(a) - end if end and low else 0
    return a[: len(a) - cut], b[: len(b) - cut]


def unified(name: str, before: bytes | None, after: bytes | None, *, context: int = 3) -> str:
    """What has changed in the note, as `diff -u` shows it; empty when nothing has."""
    old, new = lines_of(before or b""), lines_of(after or b"")
    found = hunks(old, new)
    if not found:
        return ""
    text = [f"--- {name if before is not None else '/dev/null'}", f"+++ {name if after is not None else '/dev/null'}"]
    shift = 0
    for group in _grouped(found, context * 2):
        start, end = max(0, group[0].start - context), min(len(old), group[-1].end + context)
        body = _body(old, group, start, end)
        plus = sum(line[0] in " +" for line in body)
        minus = end - start
        text.append(f"@@ -{start + bool(minus)},{minus} +{start + shift + bool(plus)},{plus} @@")
        text += body
        shift += plus - minus
    return "\n".join(text) + "\n"


def _grouped(found: Sequence[Hunk], near: int) -> Iterator[list[Hunk]]:
    group = [found[0]]
    for hunk in found[1:]:
        if hunk.start - group[-1].end > near:
            yield group
            group = []
        group.append(hunk)
    yield group


def _body(old: Sequence[bytes], group: Sequence[Hunk], start: int, end: int) -> list[str]:
    body = []
    for hunk in group:
        body += [f" {_shown(line)}" for line in old[start : hunk.start]]
        body += [f"-{_shown(line)}" for line in old[hunk.start : hunk.end]]
        body += [f"+{_shown(line)}" for line in hunk.lines]
        start = hunk.end
    return body + [f" {_shown(line)}" for line in old[start:end]]


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")


def _by_newline(data: bytes) -> Iterator[bytes]:
    pieces = data.split(b"\n")
    yield from (piece + b"\n" for piece in pieces[:-1])
    if pieces[-1]:
        yield pieces[-1]


def _same(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """How many lines at the beginning are the same."""
    most = min(len(a), len(b))
    return next((i for i in range(most) if a[i] != b[i]), most)


def _merged(mine: list[Hunk], theirs: list[Hunk], union: bool) -> list[Hunk] | None:
    result = []
    for hunk in mine:
        against = [other for other in theirs if hunk.touches(other)]
        if hunk in against:
            continue
        if against and not union:
            return None
        if not against:
            result.append(hunk)
        elif hunk.lines:
            said = {line for other in against for line in other.lines}
            place = max(other.end for other in against)
            result.append(Hunk(place, place, tuple(line for line in hunk.lines if line not in said)))
    return sorted([*theirs, *result], key=lambda hunk: (hunk.start, hunk.end))


def _applied(lines: Sequence[bytes], merged: Sequence[Hunk]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for hunk in merged:
        pieces += lines[at : hunk.start]
        pieces += hunk.lines
        at = max(at, hunk.end)
    pieces += lines[at:]
    whole = [piece if piece.endswith(b"\n") else piece + b"\n" for piece in pieces[:-1] if piece]
    return b"".join([*whole, *pieces[-1:]])
