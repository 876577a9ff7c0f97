"""The file of a search index: its tables, and how it is made, opened and thrown away. Everything here blocks."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qworkspace.base.database import COMPANIONS, FAILURES, connect, explain
from qworkspace.base.files import make_directory, storing
from qworkspace.errors import DatabaseDamaged

VERSION = 1
"""Another version is another index: it is rebuilt rather than migrated. Raise it with chunks, tokens or tables."""

READ_SECONDS = 1.0
"""How long a search waits for another program that holds the whole file."""

WRITER = (
    "PRAGMA synchronous=NORMAL",  # a cache: what a power cut takes is made again; kill -9 takes nothing
    "PRAGMA cache_size=-4096",  # KiB; closed when there is nothing to do
    "PRAGMA wal_autocheckpoint=1000",
)

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('rev', 0), ('snapshot_rev', 0), ('embedder', ''), ('embedded_upto', 0);
CREATE TABLE file (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    digest BLOB NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    rev INTEGER NOT NULL
) STRICT;
CREATE INDEX file_rev ON file (rev);
CREATE TABLE chunk (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    file INTEGER NOT NULL,
    ord INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    heading TEXT NOT NULL,
    day INTEGER,
    hash BLOB NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX chunk_file ON chunk (file, ord);
CREATE INDEX chunk_day ON chunk (day) WHERE day IS NOT NULL;
CREATE TABLE gone (file INTEGER PRIMARY KEY, rev INTEGER NOT NULL) STRICT;
CREATE TABLE embedder (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE embedding (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    embedder INTEGER NOT NULL,
    hash BLOB NOT NULL,
    vector BLOB NOT NULL,
    UNIQUE (embedder, hash)
) STRICT;
CREATE TABLE snapshot (part INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
PRAGMA user_version = {VERSION};
"""

Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """What tells this file from another one of that name; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def make(path: Path) -> None:
    """A new, empty index in the place of whatever is there: whole or not at all."""
    make_directory(path.parent)
    draft = path.with_name(f"{path.name}.new")
    with storing(path):
        erase(path)
        erase(draft)
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("PRAGMA synchronous=OFF")
                connection.executescript(SCHEMA)
                connection.execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise explain(error, path) from error
        draft.replace(path)


def erase(path: Path) -> None:
    """Remove the index and what belongs to it. What is not there is not missed."""
    with storing(path):
        for end in ("", *COMPANIONS):
            Path(f"{path}{end}").unlink(missing_ok=True)


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that may write; `DatabaseDamaged` when the file is no index of this version."""
    connection = connect(path)
    try:
        for pragma in WRITER:
            connection.execute(pragma)
        check(connection, path)
    except FAILURES as error:
        connection.close()
        raise explain(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads, and does not wait long."""
    connection = connect(path)
    connection.execute(f"PRAGMA busy_timeout={int(READ_SECONDS * 1000)}")
    connection.execute("PRAGMA cache_size=-1024")
    connection.execute("PRAGMA query_only=ON")
    return connection


def check(connection: sqlite3.Connection, path: Path) -> None:
    """`DatabaseDamaged` unless all tables are there, in this version."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise DatabaseDamaged(f"the search index {str(path)!r} has another version ({version})", path=str(path))
    for table in ("meta", "file", "chunk", "gone", "embedder", "embedding", "snapshot"):
        try:
            connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            explained = explain(error, path)
            if explained is error:  # "no such table"
                raise DatabaseDamaged(f"the search index {str(path)!r} is damaged: {error}", path=str(path)) from error
            raise explained from error


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All of the block or nothing."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def tidy(db: sqlite3.Connection) -> None:
    """Give free pages back to the disk, and keep the log short."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    if free > 64:
        db.execute("PRAGMA incremental_vacuum").fetchall()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
