"""A damaged SQLite file: its bytes are kept aside, and every row that can be read moves to a new file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from qworkspace.base.database import FAILURES, TOLERANT, connect, explain, migrate, steps_done
from qworkspace.base.files import storing, sync_directory
from qworkspace.base.leaves import LeafRow, leaf_rows

_COMPANIONS = ("", "-wal", "-shm")
_TYPES: dict[str, type | tuple[type, ...]] = {"TEXT": str, "INTEGER": int, "REAL": (int, float), "BLOB": bytes}
Row = tuple[Any, ...]


@dataclass(slots=True)
class Rescued:
    """Where the damaged file is now, how many rows of each table were saved, and which tables have gaps."""

    aside: Path
    rows: dict[str, int] = field(default_factory=dict)
    gaps: set[str] = field(default_factory=set)


def rescue(path: Path, migrations: Mapping[str, Sequence[str]], adopt: Sequence[str], now: datetime) -> Rescued:
    """Put a sound file in the place of the damaged one. Nobody may have it open.

    `adopt` are statements that give rescued rows the parents they have lost; rows that still have none are left out.
    A crash at any point leaves the old file or the new one in place, never a mixture.
    """
    with storing(path):
        rescued = Rescued(_set_aside(path, now))
        scratch, fresh = path.with_name(path.name + ".scratch"), path.with_name(path.name + ".fresh")
        try:
            _remove(scratch, fresh)
            _copy(rescued.aside, scratch)
            _fill(fresh, scratch, migrations, adopt, rescued)
            fresh.replace(_finished(path))
        finally:
            _remove(scratch, fresh)
        settle_rescue(path)
    return rescued


def settle_rescue(path: Path) -> None:
    """Put a finished rescue in its place; does nothing when there is none. To be called before the file is opened."""
    finished = _finished(path)
    if finished.exists():
        for companion in _COMPANIONS[1:]:
            Path(f"{path}{companion}").unlink(missing_ok=True)  # they belong to the damaged file and are kept aside
        finished.replace(path)
        sync_directory(path.parent)


def _finished(path: Path) -> Path:
    return path.with_name(path.name + ".rescued")


def _set_aside(path: Path, now: datetime) -> Path:
    stem = f"{path.name}.damaged-{now:%Y%m%dT%H%M%SZ}"
    names = (path.with_name(stem if number == 1 else f"{stem}-{number}") for number in range(1, 1000))
    aside = next(name for name in names if not name.exists())
    try:
        _copy(path, aside)
    except BaseException:
        _remove(aside)
        raise
    sync_directory(path.parent)
    return aside


def _copy(source: Path, target: Path) -> None:
    for companion in _COMPANIONS[:2]:
        if Path(f"{source}{companion}").exists():
            copy = Path(shutil.copyfile(f"{source}{companion}", f"{target}{companion}"))
            copy.chmod(0o600)
            with copy.open("rb+") as file:
                os.fsync(file.fileno())


def _remove(*paths: Path) -> None:
    for path in paths:
        for companion in _COMPANIONS:
            Path(f"{path}{companion}").unlink(missing_ok=True)


def _fill(
    fresh: Path, scratch: Path, migrations: Mapping[str, Sequence[str]], adopt: Sequence[str], rescued: Rescued
) -> None:
    try:
        with closing(connect(fresh)) as new:
            new.execute("PRAGMA foreign_keys=OFF")
            migrate(new, _as_far(migrations, scratch), fresh)
            new.execute("BEGIN")
            _move(scratch, new, rescued)
            for statement in adopt:
                new.execute(statement)
            _leave_out_orphans(new)
            new.execute("COMMIT")
    except FAILURES as error:
        raise explain(error, fresh) from error


def _as_far(migrations: Mapping[str, Sequence[str]], scratch: Path) -> Mapping[str, Sequence[str]]:
    """The steps that the damaged file had, so that later ones find their rows; all when it does not tell."""
    try:
        with closing(sqlite3.connect(scratch)) as old:
            done = steps_done(old)
    except FAILURES:
        return migrations
    return {name: steps[: done.get(name, 0)] for name, steps in migrations.items()} if done else migrations


def _tables(new: sqlite3.Connection) -> list[str]:
    rows = new.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        " AND name != 'schema_steps' ORDER BY rowid"
    )
    return [name for (name,) in rows]


def _move(scratch: Path, new: sqlite3.Connection, rescued: Rescued) -> None:
    """First the rows that the tables still give in order; of those that break off, also what their pages hold."""
    tables = {table: _columns(new, table) for table in _tables(new)}
    with closing(sqlite3.connect(scratch)) as old:
        old.text_factory = TOLERANT
        for table, columns in tables.items():
            rescued.rows[table] = 0
            for row in _rows(old, table, columns, rescued):
                _add(new, table, columns, row, rescued)
        _merge_log(old)
    broken = {table: (tables[table], _types(new, table)) for table in rescued.gaps}
    for found in leaf_rows(scratch) if broken else ():
        for table, (columns, types) in broken.items():
            if len(columns) == len(found.values) and _fits(row := _with_rowid(columns, found), types):
                _add(new, table, columns, row, rescued)


def _columns(new: sqlite3.Connection, table: str) -> dict[str, bool]:
    """Names in order, and whether the column is the table's rowid."""
    rows = new.execute(f"PRAGMA table_info({table})").fetchall()
    keys = sum(key > 0 for *_, key in rows)
    return {name: key == 1 and keys == 1 and kind.upper() == "INTEGER" for _, name, kind, _, _, key in rows}


def _types(new: sqlite3.Connection, table: str) -> list[str]:
    return [kind.upper() for _, _, kind, *_ in new.execute(f"PRAGMA table_info({table})")]


def _fits(row: Row, types: Sequence[str]) -> bool:
    """Whether a row whose table is not known can be of one with such columns, for example none of SQLite's own."""
    pairs = zip(row, types, strict=True)
    return all(value is None or isinstance(value, _TYPES.get(kind, object)) for value, kind in pairs)


def _with_rowid(columns: Mapping[str, bool], found: LeafRow) -> Row:
    return tuple(found.rowid if own else value for own, value in zip(columns.values(), found.values, strict=True))


def _rows(db: sqlite3.Connection, table: str, columns: Iterable[str], rescued: Rescued) -> Iterator[Row]:
    """The rows up to the first damage."""
    try:
        yield from db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid")
    except FAILURES:
        rescued.gaps.add(table)


def _add(new: sqlite3.Connection, table: str, columns: Mapping[str, bool], row: Row, rescued: Rescued) -> None:
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    try:
        rescued.rows[table] += new.execute(insert, row).rowcount
    except sqlite3.IntegrityError:
        rescued.gaps.add(table)  # the damage has put something else into a column


def _merge_log(old: sqlite3.Connection) -> None:
    """Bring the newest pages into the file itself, as far as that goes."""
    with suppress(*FAILURES):
        old.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _leave_out_orphans(new: sqlite3.Connection) -> None:
    while True:
        orphans = [(table, rowid) for table, rowid, *_ in new.execute("PRAGMA foreign_key_check")]
        if not orphans:
            return
        for table, rowid in orphans:
            new.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
