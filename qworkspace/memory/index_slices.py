"""Notes into rows, a few at a time: what has changed, and its chunks. Everything here blocks."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qworkspace.memory.chunks import Chunk, chunks_of
from qworkspace.memory.index_notes import UNKNOWN, Note, read_note, stamp_of
from qworkspace.memory.index_rows import Known, Stored, known_note, known_notes, remove, store, touch
from qworkspace.memory.index_schema import transaction
from qworkspace.memory.notes import Source

logger = logging.getLogger(__name__)

SLICE_NOTES = 64
SLICE_BYTES = 250_000
"""Of text that is cut into chunks before others have their turn: about a fifth of a second."""

Places = Mapping[str, Path | None]
"""Names of notes and where they are; None: gone."""


@dataclass(slots=True)
class Slice:
    """What came of some notes: `done` names, rows that changed, and why a note is refused (empty: no longer)."""

    done: list[str] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    came: int = 0
    bytes: int = 0


def compare(db: sqlite3.Connection, sources: Sequence[Source]) -> Places:
    """What has to be looked at: notes whose stamp differs, that could not be read, or that are gone."""
    known = known_notes(db)
    todo: dict[str, Path | None] = {
        source.name: source.path for source in sources if not _is_same(known.get(source.name), source.path)
    }
    here = {source.name for source in sources}
    return todo | dict.fromkeys(name for name in known if name not in here)


def _is_same(known: Known | None, path: Path) -> bool:
    return known is not None and known.stamp.mtime != UNKNOWN and known.stamp == stamp_of(path)


def locate(
    db: sqlite3.Connection, workspace: Path, names: Collection[str], sources: Callable[[], Sequence[Source]]
) -> Places:
    """Where these notes are. A note that is known, with no link on its way, needs no listing of the whole vault."""
    root = Path(os.path.realpath(workspace))
    places: dict[str, Path | None] = {}
    for name in names:
        path = root.joinpath(*name.split("/"))
        if known_note(db, name) is not None and Path(os.path.realpath(path)) == path:
            places[name] = path
    if len(places) < len(names):
        listed = {source.name: source.path for source in sources()}
        places |= {name: listed.get(name) for name in names if name not in places}
    return places


def take(db: sqlite3.Connection, places: Places, now: float) -> Slice:
    """Bring some of these notes up to date, each in a transaction of its own; `Slice.done` says which."""
    result = Slice()
    for name, path in places.items():
        _take(db, name, path, now, result)
        result.done.append(name)
        if len(result.done) >= SLICE_NOTES or result.bytes >= SLICE_BYTES:
            break
    return result


def _take(db: sqlite3.Connection, name: str, path: Path | None, now: float, result: Slice) -> None:
    note = read_note(path, now) if path is not None else None
    known = known_note(db, name)
    if note is None:
        _remove(db, name, result)
    elif known is not None and (known.digest, known.state, known.reason) == (note.digest, note.state, note.reason):
        if known.stamp != note.stamp:
            touch(db, known, note.stamp)
    else:
        result.came += known is None
        _store(db, name, note, result)


def _remove(db: sqlite3.Connection, name: str, result: Slice) -> None:
    with transaction(db):
        stored = remove(db, name)
    if stored is not None:
        result.stored.append(stored)
        result.refused[name] = ""
        result.came -= 1


def _store(db: sqlite3.Connection, name: str, note: Note, result: Slice) -> None:
    note, chunks = _chunked(name, note)
    with transaction(db):
        result.stored.append(store(db, name, note, chunks))
    result.refused[name] = note.reason
    result.bytes += len(note.text)


def _chunked(name: str, note: Note) -> tuple[Note, list[Chunk]]:
    if not note.text:
        return note, []
    try:
        return note, chunks_of(name, note.text)
    except Exception as error:  # one strange note must not keep the others out
        logger.exception("note %r cannot be cut into passages", name)
        return Note(note.stamp, note.digest, "", "skipped", f"it cannot be cut into passages: {error}"), []
