"""Which places of a workspace and its home are open, shown, controlled or closed to tools."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path

from qworkspace.errors import Denied

OPEN_DIRECTORIES = ("files", "memory", "digest")
OPEN_FILES = ("AGENTS.md", "SOUL.md", "PROFILE.md", "MEMORY.md", "HEARTBEAT.md")
CONTROL = ("agent.json", "jobs.json", "drivers", "plugins", "skills")
STATE = ".state"
SCANNED_ENTRIES = 50_000

Identity = tuple[int, int]


class Place(IntEnum):
    """What tools may do there; of several that apply the greatest holds."""

    OPEN = 0
    """read and written"""
    SHOWN = 1
    """read"""
    CONTROL = 2
    """read; written when a person allows it"""
    CLOSED = 3
    """nothing, ever"""


def place_of(parts: Sequence[str]) -> Place:
    """The place of a path given by its components from the workspace on.

    Control files and the state are recognised in any spelling that some file system takes for the same name.
    """
    first = folded(parts[0]) if parts else ""
    if first == STATE:
        return Place.CLOSED
    if first in CONTROL:
        return Place.CONTROL
    if len(parts) > 1 and parts[0] in OPEN_DIRECTORIES:
        return Place.OPEN
    return Place.OPEN if len(parts) == 1 and parts[0] in OPEN_FILES else Place.SHOWN


def folded(name: str) -> str:
    """`name` as the most forgiving file system compares it: no case, one form of each character, nothing invisible."""
    if name.isascii():
        return name.lower().rstrip(". ")
    visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold()).rstrip(". ")


class Protected:
    """What tools never touch, or only with a person's word, as paths and as identities on the disk.

    `others()` gives the directories, symlinks followed, of agents that live outside of the home's `workspaces/`.
    """

    def __init__(self, workspace: Path, home: Path, others: Callable[[], Iterable[Path]]) -> None:
        self._workspace = workspace
        self._others = others
        self._own = [workspace / STATE, home / ".daemon", home / "secrets.json", home / "config.json"]
        self._neighbours = home / "workspaces"
        self._control = [workspace / name for name in CONTROL]
        self._folded = _folded_parts(workspace)
        self._folded_closed = [_folded_parts(path) for path in (*self._own, self._neighbours)]

    def place_of_path(self, path: Path) -> Place:
        """The place of an absolute path whose symlinks were followed; outside of workspace and home it is SHOWN."""
        parts = _folded_parts(path)
        inside = _begins(parts, self._folded)
        for closed in [*self._folded_closed, *map(_folded_parts, self._others())]:
            if inside and not _begins(closed, self._folded):
                continue  # it holds this workspace, or lies beside it
            if _begins(parts, closed):
                return Place.CLOSED
        return place_of(path.parts[len(self._workspace.parts) :]) if inside else Place.SHOWN

    def place_of_pattern(self, pattern: Path) -> Place:
        """The greatest place among the protected roots that the shell pattern may name, or lead into."""
        closed = any(_may_name(pattern, root) for root in self._own)
        control = any(_may_name(pattern, root) for root in self._control)
        return Place.CLOSED if closed else Place.CONTROL if control else Place.SHOWN

    def roots(self) -> dict[Identity, Place]:
        """The identities of the closed and controlled places themselves, wherever else they may be mounted."""
        found = dict.fromkeys(_identities(self._control), Place.CONTROL)
        return found | dict.fromkeys(_identities(self._own), Place.CLOSED)

    def files(self) -> dict[Identity, Place]:
        """The identity of every protected file, for telling whether one with several names is one of them.

        `Denied` when there are too many to look at.
        """
        found = dict.fromkeys(self._below(self._control), Place.CONTROL)
        return found | dict.fromkeys(self._below(self._closed()), Place.CLOSED)

    def _closed(self) -> list[Path]:
        return [*self._own, self._neighbours, *self._others()]

    def _below(self, roots: Iterable[Path]) -> Iterator[Identity]:
        """The files that are `roots` or lie below them; this workspace does not count as below another directory."""
        count = 0
        for root in roots:
            yield from _identities([root])
            for directory, directories, names in os.walk(root):
                here = Path(directory)
                directories[:] = [name for name in directories if here / name != self._workspace]
                count += len(names)
                if count > SCANNED_ENTRIES:
                    raise Denied("it has several names, and there are too many protected files to compare it with")
                yield from _identities((here / name for name in names), follow=False)


def _folded_parts(path: Path) -> tuple[str, ...]:
    return tuple(folded(part) for part in path.parts)


def _begins(parts: tuple[str, ...], first: tuple[str, ...]) -> bool:
    return parts[: len(first)] == first


def _may_name(pattern: Path, root: Path) -> bool:
    if len(pattern.parts) < len(root.parts):
        return False
    return all(
        fnmatchcase(theirs, ours) and (ours[:1] == "." or theirs[:1] != ".")
        for ours, theirs in zip(pattern.parts, root.parts, strict=False)
    )


def _identities(paths: Iterable[Path], *, follow: bool = True) -> Iterator[Identity]:
    for path in paths:
        try:
            status = path.stat(follow_symlinks=follow)
        except OSError:
            continue  # not there
        yield status.st_dev, status.st_ino
