"""A damaged SQLite file: its bytes are kept aside, and every row that can be read moves to a new file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from qworkspace.base.database import connect, explain, migrate, steps_done
from qworkspace.base.files import storing, sync_directory

PROBES = 50_000  # single rows looked for between the two ends of what can be read in order
BLIND_PROBES = 5_000  # the same where nothing tells how many rows there were
_COMPANIONS = ("", "-wal", "-shm")
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
            with _readable(scratch, new) as old:
                for table in _tables(new):
                    _move(old, new, table, rescued)
            for statement in adopt:
                new.execute(statement)
            _leave_out_orphans(new)
            new.execute("COMMIT")
    except sqlite3.Error as error:
        raise explain(error, fresh) from error


def _as_far(migrations: Mapping[str, Sequence[str]], scratch: Path) -> Mapping[str, Sequence[str]]:
    """The steps that the damaged file had, so that later ones find their rows; all when it does not tell."""
    try:
        with closing(sqlite3.connect(scratch)) as old:
            done = steps_done(old)
    except sqlite3.Error:
        return migrations
    return {name: steps[: done.get(name, 0)] for name, steps in migrations.items()} if done else migrations


@contextmanager
def _readable(scratch: Path, new: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """The damaged copy, opened. When not even its first page can be read, it gets that of a new file.

    The tables of a file that was made by the same steps begin on the same pages.
    """
    old = sqlite3.connect(scratch)
    try:
        try:
            old.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            old.close()
            _transplant_first_page(scratch, new)
            old = sqlite3.connect(scratch)
        old.text_factory = lambda data: data.decode("utf-8", "replace")
        yield old
    finally:
        old.close()


def _transplant_first_page(scratch: Path, new: sqlite3.Connection) -> None:
    new.execute("COMMIT")
    new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    new.execute("BEGIN")
    size = new.execute("PRAGMA page_size").fetchone()[0]
    file_of_new = Path(new.execute("PRAGMA database_list").fetchone()[2])
    page = bytearray(file_of_new.read_bytes()[:size])
    page[28:32] = max(1, scratch.stat().st_size // size).to_bytes(4, "big")  # pages in the file
    with scratch.open("rb+") as file:
        file.write(page)


def _tables(new: sqlite3.Connection) -> list[str]:
    rows = new.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        " AND name != 'schema_steps' ORDER BY rowid"
    )
    return [name for (name,) in rows]


def _move(old: sqlite3.Connection, new: sqlite3.Connection, table: str, rescued: Rescued) -> None:
    columns = [name for _, name, *_ in new.execute(f"PRAGMA table_info({table})")]
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    saved = 0
    for row in _rows(old, table, columns, lambda: rescued.gaps.add(table)):
        try:
            saved += new.execute(insert, row).rowcount
        except sqlite3.IntegrityError:
            rescued.gaps.add(table)  # the damage has put something else into a column
    rescued.rows[table] = saved


def _rows(db: sqlite3.Connection, table: str, columns: Sequence[str], on_gap: Callable[[], None]) -> Iterator[Row]:
    """All rows when the table is sound; else those before the damage, those behind it, and single ones in between."""
    select = f"SELECT rowid, {', '.join(columns)} FROM {table}"
    low, high = 0, None
    try:
        for rowid, *row in db.execute(f"{select} ORDER BY rowid"):
            low = rowid
            yield tuple(row)
        return
    except sqlite3.Error:
        on_gap()
    try:
        for rowid, *row in db.execute(f"{select} WHERE rowid > ? ORDER BY rowid DESC", (low,)):
            high = rowid
            yield tuple(row)
        return
    except sqlite3.Error:
        pass  # the other edge of the damage
    end = min(low + PROBES, high) if high is not None else low + BLIND_PROBES
    for rowid in range(low + 1, end):
        try:
            found = db.execute(f"{select} WHERE rowid = ?", (rowid,)).fetchone()
        except sqlite3.Error:
            continue
        if found is not None:
            yield tuple(found[1:])


def _leave_out_orphans(new: sqlite3.Connection) -> None:
    while True:
        orphans = [(table, rowid) for table, rowid, *_ in new.execute("PRAGMA foreign_key_check")]
        if not orphans:
            return
        for table, rowid in orphans:
            new.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
