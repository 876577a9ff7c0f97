"""What the files that people edit hold at a moment, and which of them differ from an earlier moment.

Content decides: a file is read again when its size, times or inode have changed, and differs when its bytes do.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qworkspace.config.filecache import Signature, signature_of
from qworkspace.config.memory import MemoryConfig

LARGEST = 10_000_000
"""Of a larger file only size and times count, in bytes."""

Shape = tuple[tuple[str, tuple[str, ...]], ...]
"""Directories relative to the root and the names that matter in them; nothing below them is looked at."""

HOME_SHAPE: Shape = (("", ("config.json", "secrets.json")), ("plugins", ()), ("plugins/*", ("*.py", "*.json")))


def agent_shape(memory: MemoryConfig) -> Shape:
    """What matters in a workspace: configuration, notes with one level of directories, documents, plugins."""
    notes = dict.fromkeys((memory.daily_dir, memory.digest_dir))
    return (
        ("", ("agent.json", "jobs.json", "interests.yaml", "*.md")),
        *((place, ("*.md",)) for directory in notes for place in (directory, f"{directory}/*")),
        (memory.resource_dir, ("*",)),
        ("drivers", ("*.json",)),
        ("skills", ()),
        ("skills/*", ("SKILL.md",)),
        ("plugins", ()),
        ("plugins/*", ("*.py", "*.json")),
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """One file: what the file system says of it, and a digest of its bytes (empty: it could not be read).

    Without a signature it had changed too lately to tell a later edit by that: it is read again.
    """

    signature: Signature | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by relative name, and the directories that have to be watched with their inodes."""

    files: Mapping[str, Mark] = field(default_factory=dict)
    directories: Mapping[str, int] = field(default_factory=dict)


def look(root: Path, shape: Shape, before: Snapshot) -> Snapshot:
    """The present state below `root`. Blocking; reads only what may have changed since `before`."""
    files: dict[str, Mark] = {}
    directories: dict[str, int] = {}
    for pattern, names in shape:
        for relative in _directories(root, pattern):
            path = root / relative if relative else root
            try:
                directories[str(path)] = path.stat().st_ino
                entries = list(os.scandir(path)) if names else []
            except OSError:
                directories.pop(str(path), None)
                continue
            for entry in entries:
                if any(fnmatch.fnmatchcase(entry.name, name) for name in names):
                    name = f"{relative}/{entry.name}" if relative else entry.name
                    _note(name, Path(entry.path), before, files, directories)
    return Snapshot(files, directories)


def matters(root: Path, shape: Shape, path: Path) -> bool:
    """Whether an event on `path` can change what `look` finds: one of the files, or a directory on the way to them.

    Paths outside of `root` are where links lead to, and matter.
    """
    if not path.is_relative_to(root):
        return True
    relative = path.relative_to(root).as_posix()
    folder, _, name = relative.rpartition("/")
    for pattern, names in shape:
        if _is_directory(relative, pattern or ".") or pattern.startswith(f"{relative}/"):
            return True
        if _is_directory(folder, pattern) and any(fnmatch.fnmatchcase(name, wanted) for wanted in names):
            return True
    return False


def _is_directory(folder: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(folder, pattern) and folder.count("/") == pattern.count("/")


def differences(before: Snapshot, after: Snapshot) -> set[str]:
    """Names whose content is another, that are new, or that are gone."""
    names = before.files.keys() | after.files.keys()
    return {name for name in names if _digest(before, name) != _digest(after, name)}


def _digest(snapshot: Snapshot, name: str) -> bytes | None:
    mark = snapshot.files.get(name)
    return mark.digest if mark is not None else None


def _directories(root: Path, pattern: str) -> Iterator[str]:
    """`x/*` stands for each directory in `x`; links are followed by name only where they lead to a directory."""
    if not pattern.endswith("/*"):
        yield pattern
        return
    parent = pattern.removesuffix("/*")
    try:
        entries = sorted(os.scandir(root / parent), key=lambda entry: entry.name)
    except OSError:
        return
    yield from (f"{parent}/{entry.name}" for entry in entries if _leads_to_directory(entry))


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _note(name: str, path: Path, before: Snapshot, files: dict[str, Mark], directories: dict[str, int]) -> None:
    try:
        facts = path.stat()
        if path.is_symlink():  # edits happen where it leads to
            place = path.resolve().parent
            directories.setdefault(str(place), place.stat().st_ino)
    except OSError:
        return
    if not stat.S_ISREG(facts.st_mode):
        return
    signature = signature_of(facts)
    known = before.files.get(name)
    if known is not None and known.signature is not None and known.signature == signature and known.digest:
        files[name] = known
        return
    files[name] = Mark(signature, _content(path, facts))


def _content(path: Path, facts: os.stat_result) -> bytes:
    if facts.st_size > LARGEST:
        return repr((facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)).encode()
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
    except OSError:
        return b""
