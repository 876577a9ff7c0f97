"""The resource directory: which documents lie there, and their bytes. Everything here blocks: call it in threads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from qworkspace.base.files import real_path
from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidPath
from qworkspace.memory.document_notes import is_made
from qworkspace.memory.resources import LARGEST, Document, Unreadable, is_readable_kind, read_document

DEEPEST = 6
MOST_FILES = 2_000
UNFINISHED = (".tmp", ".part", ".crdownload", ".download", ".swp")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A file in the resource directory. `name` is relative to the workspace, `stamp` changes with its content."""

    name: str
    path: Path
    stamp: str
    size: int
    reason: str = ""
    """Why it is not even opened; empty when it may be."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a document says, and the sha256 of its bytes."""

    document: Document
    digest: str


class Dropbox:
    """The resource directory of one workspace. Nothing outside of it is read, but for the roots that are allowed."""

    def __init__(self, workspace: Path, directory: str, allowed_roots: Sequence[Path]) -> None:
        self._workspace = workspace
        self._directory = workspace / directory
        self._allowed = tuple(allowed_roots)

    def look(self) -> list[Dropped]:
        """The documents, by name; hidden and unfinished files are none."""
        if not self._directory.is_dir():
            return []
        root = real_path(self._directory)
        inside = [root] if root.is_relative_to(real_path(self._workspace)) else []
        inside += map(real_path, self._allowed)
        found = [self._dropped(path, inside) for path in islice(self._files(self._directory, DEEPEST), MOST_FILES)]
        return sorted(found, key=lambda dropped: dropped.name)

    def load(self, dropped: Dropped, elapsed: Callable[[], float]) -> Loaded | None:
        """Read the document; None when it changes meanwhile or has gone. `Unreadable`."""
        if dropped.reason:
            raise Unreadable(dropped.reason)
        try:
            with dropped.path.open("rb") as file:
                data = file.read(LARGEST + 1)
                same = _stamp(os.fstat(file.fileno())) == dropped.stamp
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreadable(f"it cannot be opened: {error.strerror or error}") from error
        if not same:
            return None
        document = read_document(data, dropped.name, elapsed)
        if is_made(document.text):
            raise Unreadable("it is a note that memory has made of a document")
        return Loaded(document, hashlib.sha256(data).hexdigest())

    def _files(self, directory: Path, depth: int) -> Iterator[Path]:
        """Files below, links among them; directories that are links are named, not followed."""
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if entry.name.startswith((".", "~")) or entry.name.lower().endswith(UNFINISHED):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth > 1:
                    yield from self._files(Path(entry.path), depth - 1)
            else:
                yield Path(entry.path)

    def _dropped(self, path: Path, inside: Sequence[Path]) -> Dropped:
        given = path.relative_to(self._workspace).as_posix()
        name = clean_text(given)
        if name != given:  # no note could name it as its source
            return Dropped(name, path, "name", 0, "its name is no text (UTF-8): rename it")
        try:
            real = real_path(path)
            stat = real.stat() if any(real.is_relative_to(root) for root in inside) else path.lstat()
        except (OSError, InvalidPath) as error:
            return Dropped(name, path, "gone", 0, f"it cannot be opened: {error}")
        reason = ""
        if not any(real.is_relative_to(root) for root in inside):
            reason = "it leads out of the resource directory through a symbolic link"
        elif not real.is_file():
            reason = "it is no file"
        elif not is_readable_kind(path):
            reason = f"{path.suffix or 'a file without an ending'} is no text, markdown, HTML or PDF"
        elif stat.st_size > LARGEST:
            reason = f"it has {stat.st_size:,} bytes, more than {LARGEST:,}"
        return Dropped(name, real, _stamp(stat), stat.st_size, reason)


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size}/{stat.st_mtime_ns}/{stat.st_ino}"
