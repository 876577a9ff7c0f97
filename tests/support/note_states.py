"""What a killed daemon has left of its notes, held against the history in its memory database."""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def copied(path: Path, beside: Path) -> Iterator[sqlite3.Connection]:
    """The database as a copy, whole: opening the daemon's own would change it."""
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for part in path.parent.glob(f"{path.name}*"):
        shutil.copy(part, beside)
    with closing(sqlite3.connect(beside / path.name)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        yield database


def states(database: sqlite3.Connection) -> dict[str, list[bytes | None]]:
    """Of each note that was changed: its bytes after all that is done, then what is pending put on top of that."""
    rows = "SELECT path, operation, state, after FROM vault_change ORDER BY state = 'pending', seq"
    found: dict[str, list[bytes | None]] = {}
    for path, operation, state, packed in database.execute(rows):
        after = None if packed is None else zlib.decompress(packed)
        known = found.setdefault(path, [None])
        if operation == "append":
            after = (known[-1] or b"") + (after or b"")
        if state == "pending":
            known.append(after)
        else:
            known[:] = [after]
    return found


def check_history(database: sqlite3.Connection) -> None:
    """What was to happen once has happened once."""
    keys = [key for (key,) in database.execute("SELECT key FROM vault_change WHERE key <> ''")]
    assert len(keys) == len(set(keys))
    tasks = "SELECT grp FROM vault_change WHERE kind = 'auto_memory' AND operation = 'append'"
    assert [(task, times) for (task,), times in Counter(database.execute(tasks)).items() if times > 1] == []
    known = dict(database.execute("SELECT id, state FROM queue_tasks"))
    assert all(known.get(task, "done") in ("extracted", "done") for (task,) in database.execute(tasks))
