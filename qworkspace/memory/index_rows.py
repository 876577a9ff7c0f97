"""The rows of the index: notes and their chunks. Everything here blocks and works on a connection."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from qworkspace.memory.chunks import Chunk, embedded_text, indexed_text
from qworkspace.memory.contract import Query
from qworkspace.memory.index_notes import Note, Stamp

HEADINGS = "\n"
_ASK = 500  # values in one question
_PASSAGE = (
    "SELECT c.no, f.name, c.start, c.stop, c.heading, c.day, c.text, c.hash FROM chunk c JOIN file f ON f.no = c.file"
)


@dataclass(frozen=True, slots=True)
class Known:
    """What the index knows about a note."""

    no: int
    stamp: Stamp
    digest: bytes
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk with its place."""

    no: int
    path: str
    chunk: Chunk
    hash: bytes

    @property
    def indexed(self) -> str:
        return indexed_text(self.path, self.chunk)

    @property
    def embedded(self) -> str:
        return embedded_text(self.path, self.chunk)

    @property
    def sound(self) -> bool:
        """Whether it is as it was written."""
        return hash_of(self.indexed) == self.hash


@dataclass(frozen=True, slots=True)
class Stored:
    """What storing a note has changed: chunk numbers that went, how many chunks came and how many there are."""

    file_no: int
    removed: tuple[int, ...] = ()
    added: int = 0
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is in the index."""

    files: int
    chunks: int
    embeddings: int


def hash_of(text: str) -> bytes:
    """What an embedding is kept under."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def meta(db: sqlite3.Connection, key: str) -> Any:
    return db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]


def set_meta(db: sqlite3.Connection, key: str, value: str | int) -> None:
    db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))


def counts(db: sqlite3.Connection) -> Counts:
    tables = ("file", "chunk", "embedding")
    return Counts(*(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables))


def known_notes(db: sqlite3.Connection) -> dict[str, Known]:
    """All notes by name."""
    rows = db.execute("SELECT name, no, size, mtime, inode, digest, state, reason FROM file")
    return {row[0]: _known(row) for row in rows}


def known_note(db: sqlite3.Connection, name: str) -> Known | None:
    sql = "SELECT name, no, size, mtime, inode, digest, state, reason FROM file WHERE name = ?"
    row = db.execute(sql, (name,)).fetchone()
    return _known(row) if row is not None else None


def _known(row: Sequence[Any]) -> Known:
    _, no, size, mtime, inode, digest, state, reason = row
    return Known(no, Stamp(size, mtime, inode), digest, state, reason)


def refusals(db: sqlite3.Connection) -> dict[str, str]:
    """Why notes are not, or not wholly, searched; blank ones included."""
    return dict(db.execute("SELECT name, reason FROM file WHERE state <> 'ok' ORDER BY name"))


def touch(db: sqlite3.Connection, known: Known, stamp: Stamp) -> None:
    """The note has the same content and another stamp."""
    values = (stamp.size, stamp.mtime, stamp.inode, known.no)
    db.execute("UPDATE file SET size = ?, mtime = ?, inode = ? WHERE no = ?", values)


def _next_rev(db: sqlite3.Connection) -> int:
    db.execute("UPDATE meta SET value = value + 1 WHERE key = 'rev'")
    return int(meta(db, "rev"))


def store(db: sqlite3.Connection, name: str, note: Note, chunks: Sequence[Chunk]) -> Stored:
    """Put the note's chunks in the place of its old ones; those that are the same keep their numbers."""
    file_no = _store_file(db, name, note, _next_rev(db))
    olds = {no: row for no, *row in db.execute(_OLD, (file_no,))}
    free: dict[bytes, list[int]] = {}
    for no, (*_, hash, _) in reversed(olds.items()):
        free.setdefault(hash, []).append(no)
    added = 0
    for ord, chunk in enumerate(chunks):
        hash = hash_of(indexed_text(name, chunk))
        same = free.get(hash)
        if same:
            no = same.pop()
            if olds[no] != [ord, chunk.start_line, chunk.end_line, hash, chunk.text]:
                db.execute(_MOVE, (ord, chunk.start_line, chunk.end_line, chunk.text, no))
        else:
            db.execute(_ADD, (file_no, ord, *_columns(chunk), hash, chunk.text))
            added += 1
    removed = tuple(no for rest in free.values() for no in rest)
    db.executemany("DELETE FROM chunk WHERE no = ?", ((no,) for no in removed))
    return Stored(file_no, removed, added, len(chunks))


_OLD = "SELECT no, ord, start, stop, hash, text FROM chunk WHERE file = ? ORDER BY ord"
_MOVE = "UPDATE chunk SET ord = ?, start = ?, stop = ?, text = ? WHERE no = ?"
_ADD = "INSERT INTO chunk (file, ord, start, stop, heading, day, hash, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_FILE = (
    "INSERT INTO file (name, size, mtime, inode, digest, state, reason, rev) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET size = excluded.size, mtime = excluded.mtime, inode = excluded.inode,"
    " digest = excluded.digest, state = excluded.state, reason = excluded.reason, rev = excluded.rev RETURNING no"
)


def _store_file(db: sqlite3.Connection, name: str, note: Note, rev: int) -> int:
    stamp = note.stamp
    row = (name, stamp.size, stamp.mtime, stamp.inode, note.digest, note.state, note.reason, rev)
    return int(db.execute(_FILE, row).fetchone()[0])


def _columns(chunk: Chunk) -> tuple[int, int, str, int | None]:
    day = chunk.date.toordinal() if chunk.date is not None else None
    return chunk.start_line, chunk.end_line, HEADINGS.join(chunk.heading), day


def remove(db: sqlite3.Connection, name: str) -> Stored | None:
    """Take the note out; None when it is not there."""
    known = known_note(db, name)
    if known is None:
        return None
    nos = tuple(no for (no,) in db.execute("SELECT no FROM chunk WHERE file = ?", (known.no,)))
    db.execute("DELETE FROM chunk WHERE file = ?", (known.no,))
    db.execute("DELETE FROM file WHERE no = ?", (known.no,))
    db.execute("INSERT OR REPLACE INTO gone VALUES (?, ?)", (known.no, _next_rev(db)))
    return Stored(known.no, nos)


def passages(db: sqlite3.Connection, nos: Sequence[int]) -> dict[int, Passage]:
    """The chunks with these numbers; those that went meanwhile are missing."""
    found = {}
    for begin in range(0, len(nos), _ASK):
        asked = [int(no) for no in nos[begin : begin + _ASK]]
        marks = ",".join("?" * len(asked))
        for row in db.execute(f"{_PASSAGE} WHERE c.no IN ({marks})", asked):
            found[row[0]] = _passage(row)
    return found


def passages_of(db: sqlite3.Connection, file_no: int, from_ord: int, limit: int) -> list[Passage]:
    """Chunks of a note in their order, from one on."""
    sql = f"{_PASSAGE} WHERE c.file = ? AND c.ord >= ? ORDER BY c.ord LIMIT ?"
    return [_passage(row) for row in db.execute(sql, (file_no, from_ord, limit))]


def _passage(row: Sequence[Any]) -> Passage:
    no, name, start, stop, heading, day, text, hash = row
    headings = tuple(heading.split(HEADINGS)) if heading else ()
    return Passage(no, name, Chunk(start, stop, headings, date.fromordinal(day) if day else None, text), hash)


def allowed(db: sqlite3.Connection, query: Query) -> list[int] | None:
    """The numbers of the chunks that the filters of a query leave; None when there are no filters."""
    conditions: list[str] = []
    values: list[str | int] = []
    if query.path_prefix:
        conditions.append("file IN (SELECT no FROM file WHERE substr(name, 1, ?) = ?)")
        values += [len(query.path_prefix), query.path_prefix]
    if query.since is not None:
        conditions.append("day >= ?")
        values.append(query.since.toordinal())
    if query.until is not None:
        conditions.append("day <= ?")
        values.append(query.until.toordinal())
    if not conditions:
        return None
    return [no for (no,) in db.execute(f"SELECT no FROM chunk WHERE {' AND '.join(conditions)}", values)]


def changed_since(db: sqlite3.Connection, rev: int) -> tuple[list[int], list[int]]:
    """(files that changed, files that went) after that revision."""
    changed = [no for (no,) in db.execute("SELECT no FROM file WHERE rev > ? ORDER BY rev", (rev,))]
    gone = [no for (no,) in db.execute("SELECT file FROM gone WHERE rev > ?", (rev,))]
    return changed, gone


SNAPSHOT_PART = 1 << 20


def save_snapshot(db: sqlite3.Connection, data: bytes, rev: int) -> None:
    """Keep the keyword index as it was at that revision."""
    db.execute("DELETE FROM snapshot")
    view = memoryview(data)
    parts = range(0, len(data), SNAPSHOT_PART)
    db.executemany("INSERT INTO snapshot (data) VALUES (?)", ((view[at : at + SNAPSHOT_PART],) for at in parts))
    set_meta(db, "snapshot_rev", rev)
    db.execute("DELETE FROM gone WHERE rev <= ?", (rev,))


def snapshot(db: sqlite3.Connection) -> tuple[bytes, int]:
    """(bytes, revision) of the kept keyword index; no bytes when there is none."""
    data = b"".join(part for (part,) in db.execute("SELECT data FROM snapshot ORDER BY part"))
    return data, int(meta(db, "snapshot_rev"))
