"""What a vault deals in: notes, who changes them, and the changes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

Section = Literal["working", "daily", "digest"]
AuthorKind = Literal["person", "tool", "auto_memory", "dream", "resource", "api", "import"]
Operation = Literal["append", "write", "delete", "undo"]
ChangeState = Literal["pending", "done", "undone"]

LARGEST = 20_000_000
"""Bytes of a note."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes notes, and from which turn. Changes of one `group` are undone together."""

    kind: AuthorKind
    session_id: str = ""
    turn_id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A note's content: `version` is a hash of its bytes; `lines` is their number."""

    name: str
    text: str
    version: str
    lines: int


@dataclass(frozen=True, slots=True)
class NoteInfo:
    """A note in a listing; `size` in bytes."""

    name: str
    section: Section
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Source:
    """A note's name and the real file behind it."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Listing:
    """The notes of a vault, and what was refused: name -> reason."""

    sources: tuple[Source, ...]
    refused: dict[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one note. `group` is the change's own id unless it belongs to a larger one.

    `undoes` holds the ids (with spaces between) of what this one takes back. `added` and `removed` count lines.
    `repeated` is true when nothing was done because the key was known, or because it would have changed nothing.
    """

    id: str
    group: str
    at: datetime
    by: Author
    path: str
    operation: Operation
    state: ChangeState
    added: int = 0
    removed: int = 0
    undoes: str = ""
    key: str = ""
    repeated: bool = False


def version_of(data: bytes) -> str:
    """The version of a note with these bytes."""
    return hashlib.sha256(data).hexdigest()[:16]
