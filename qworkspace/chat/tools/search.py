"""Walking and searching directories, bounded in time and size. All of it blocks and runs in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from qworkspace.base.clock import Clock
from qworkspace.chat.tools.text import LOOKED_AT
from qworkspace.errors import InvalidInput, QworkspaceError
from qworkspace.plugins.extensions import FileEntry, FileReader

T = TypeVar("T")

SECONDS = 10.0
ENTRIES = 50_000
FILE_BYTES = 20_000_000
LINE_CHARS = 300
PATTERN_MEMORY = 1 << 20
NOISE = frozenset({".git", "node_modules", "__pycache__", ".venv", ".outputs", ".mypy_cache", ".ruff_cache"})


class Budget:
    """Time for one search. It is over when the time is, or when nobody waits for the answer any more."""

    def __init__(self, clock: Clock, seconds: float = SECONDS) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    @property
    def over(self) -> bool:
        return self._cancelled.is_set() or self._clock.monotonic() > self._end


async def within(budget: Budget, work: Callable[[], T]) -> T:
    """The result of `work` in a thread, which ends soon after its waiter is cancelled."""
    try:
        return await asyncio.to_thread(work)
    finally:
        budget.cancel()


@dataclass(slots=True)
class Walk:
    """Files and directories below a place, by name, parents first; links are shown and not followed.

    `stopped` says after the walk that it did not see everything.
    """

    reading: FileReader
    budget: Budget
    depth: int = 50
    seen: int = 0
    stopped: bool = False

    def below(self, directory: str, depth: int = 1) -> Iterator[tuple[str, FileEntry]]:
        """(path relative to the workspace, entry) of everything below `directory`."""
        for entry in self.reading.entries(directory):
            self.seen += 1
            if self.budget.over or self.seen > ENTRIES:
                self.stopped = True
                return
            path = entry.name if directory == "." else f"{directory}/{entry.name}"
            yield path, entry
            if entry.kind == "directory" and depth < self.depth and entry.name not in NOISE:
                yield from self._inside(path, depth + 1)

    def _inside(self, path: str, depth: int) -> Iterator[tuple[str, FileEntry]]:
        try:
            yield from self.below(path, depth)
        except QworkspaceError:
            return  # a directory that may not be read, has an odd name, or vanished: the others go on


@dataclass(slots=True)
class Found:
    """What a search found: `path:line: text` each, and what it did not look at."""

    matches: list[str] = field(default_factory=list)
    files: int = 0
    binary: int = 0
    large: int = 0
    more: bool = False


def compiled(pattern: str, *, literal: bool, ignore_case: bool) -> Any:
    """The pattern for `search`. It is matched line by line, in a time that grows with the text only."""
    # not at the top: a compiled extension of 1.6 MB that only this tool needs
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.max_mem = PATTERN_MEMORY
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(b"(?m)" + (re2.escape(pattern) if literal else pattern).encode(), options=options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args and isinstance(error.args[0], bytes) else error
        raise InvalidInput(
            f"not a pattern: {reason}. The syntax is RE2's (no look-around, no back-references); "
            "literal=true searches for the text itself"
        ) from None


def search(walk: Walk, place: str, pattern: Any, *, glob: str | None, limit: int) -> Found:
    """The matching lines of the file `place`, or of the files below it whose name or path fits `glob`."""
    found = Found()
    for path in _files(walk, place, glob):
        if walk.budget.over:
            walk.stopped = True
        if walk.stopped or found.more:
            break
        try:
            data = _content(walk.reading, path)
        except QworkspaceError:
            continue  # closed to tools, or gone meanwhile
        if data is None:
            found.large += 1
        elif b"\0" in data[:LOOKED_AT]:
            found.binary += 1
        else:
            found.files += 1
            _search_data(data, path, pattern, found, limit)
    return found


def _files(walk: Walk, place: str, glob: str | None) -> Iterator[str]:
    try:
        for path, entry in walk.below(place):
            name = path if glob is not None and "/" in glob else entry.name
            if entry.kind == "file" and (glob is None or fnmatchcase(name, glob)):
                yield path
    except InvalidInput:  # not a directory
        yield place


def _content(reading: FileReader, path: str) -> bytes | None:
    """The file's bytes; None when it is too large to be searched."""
    with os.fdopen(reading.open(path), "rb") as file:
        data = file.read(FILE_BYTES + 1)
    return data.replace(b"\r\n", b"\n") if len(data) <= FILE_BYTES else None


def _search_data(data: bytes, path: str, pattern: Any, found: Found, limit: int) -> None:
    line, counted, position = 1, 0, 0
    while position <= len(data) and (match := pattern.search(data, position)) is not None:
        if match.start() >= len(data) and data.endswith(b"\n"):
            return  # behind the last line end there is no line
        if len(found.matches) >= limit:
            found.more = True
            return
        line += data.count(b"\n", counted, match.start())
        counted = match.start()
        begin = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.start())
        end = len(data) if end < 0 else end
        found.matches.append(f"{path}:{line}: {_excerpt(data[begin:end], match.start() - begin)}")
        position = end + 1


def _excerpt(line: bytes, at: int) -> str:
    """The line, or of a long one the part around the match."""
    if len(line) <= LINE_CHARS:
        return line.decode("utf-8", "replace")
    begin = max(0, at - LINE_CHARS // 3)
    text = line[begin : begin + LINE_CHARS].decode("utf-8", "replace").strip("\ufffd")
    return f"{'...' if begin else ''}{text}{'...' if begin + LINE_CHARS < len(line) else ''}"
