"""What a killed process has left of a change: it is finished or rolled back, so that a note is before or after it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from qworkspace.base.files import storing
from qworkspace.memory.appending import Fresh, block_of, expected_of, missing_of, torn_at
from qworkspace.memory.history import Row
from qworkspace.memory.merging import merge
from qworkspace.memory.notefile import Displaced, append_block, put, read_note


def aside_of(path: Path, change_id: str) -> Path:
    """The hidden file through which that change of the note goes."""
    return path.parent / f".{change_id}.tmp"


def settle(rows: Sequence[tuple[Row, Path]]) -> list[bool]:
    """Whether each of the changes has taken place; afterwards each has wholly, or not at all. Blocking.

    The changes of one undo belong together: when one has taken place, all do.
    """
    results = [_settle(row, path) for row, path in rows]
    begun = {row.change.group for (row, _), done in zip(rows, results, strict=True) if done and _is_undo(row)}
    for number, (row, path) in enumerate(rows):
        if not results[number] and _is_undo(row) and row.change.group in begun and read_note(path) == row.before:
            close_all(bring(path, row.before, row.after, aside_of(path, row.change.id)))
            results[number] = True
    return results


def bring(path: Path, present: bytes | None, new: bytes | None, aside: Path) -> list[Displaced]:
    """Make the note `new`; what somebody has made of `present` meanwhile is merged. What was displaced is open."""
    displaced = []
    while True:
        old = put(path, present, new, aside)
        displaced.append(old)
        if old.data == present:
            old.forget_name()
            return displaced
        held = old.data if present is None else new
        merged = merge(present or b"", new or b"", old.data or b"", union=True)
        present, new = held, merged
        old.forget_name()
        if present == new:
            return displaced


def close_all(displaced: Sequence[Displaced]) -> None:
    for old in displaced:
        old.close()


def _is_undo(row: Row) -> bool:
    return row.change.operation == "undo"


def _settle(row: Row, path: Path) -> bool:
    with storing(path):
        if row.change.operation == "append":
            return _settle_append(row, path)
        aside = aside_of(path, row.change.id)
        try:
            return _settle_put(row, path, aside)
        finally:
            with suppress(NotADirectoryError):  # nothing was ever there
                aside.unlink(missing_ok=True)


def _settle_append(row: Row, path: Path) -> bool:
    data, block = read_note(path), row.after or b""
    if data is None:
        return False
    if row.before is None and not data:
        path.unlink()  # made for this append
        return False
    if zlib.crc32(data[: row.place]) == row.crc:
        if data[row.place :].startswith(block):
            return True
        torn = torn_at(data, block, row.place)
        if torn:
            _complete(path, data, row.place + torn, block[torn:], row)
            return True
    expected = expected_of(block, row.seen)
    lacking = missing_of(data, [Fresh(row.path, row.seq, 0.0, dict(expected))])
    whole = sum(expected.values()) - sum(row.seen.values())
    if lacking and len(lacking) < whole:
        append_block(path, block_of(lacking, data).data)
    return len(lacking) < whole


def _complete(path: Path, data: bytes, at: int, rest: bytes, row: Row) -> None:
    """Write the rest of a torn block; it may be that somebody has added to the note since."""
    if at == len(data):
        append_block(path, rest)
    else:
        close_all(bring(path, data, data[:at] + rest + data[at:], aside_of(path, row.change.id)))


def _settle_put(row: Row, path: Path, aside: Path) -> bool:
    present, left = read_note(path), read_note(aside)
    before, after = row.before, row.after
    if "attempt" in row.seen and present != after and zlib.crc32(present or b"") == row.seen["attempt"]:
        aside.unlink(missing_ok=True)
        close_all(bring(path, present, after, aside))
        return True
    if present == after:
        return _settle_displaced(row, path, aside, left)
    if present == before:
        return False
    if left is None:
        return merge(before or b"", after or b"", present or b"", union=True) == (present or b"")
    if after is not None and after.startswith(left):
        return False  # the draft, perhaps torn: it has not come to the exchange
    if left != before:
        _merge_in(path, present, before, left, aside)
    return True


def _settle_displaced(row: Row, path: Path, aside: Path, left: bytes | None) -> bool:
    """The change is there. What it displaced, should a person have written it in between, is merged."""
    if left is None or left in (row.before, row.after):
        return True
    if row.after is None:
        aside.replace(path)  # changed at the moment of its removal: it stays
        return False
    _merge_in(path, row.after, row.before, left, aside)
    return True


def _merge_in(path: Path, present: bytes | None, before: bytes | None, left: bytes, aside: Path) -> None:
    merged = merge(before or b"", present or b"", left, union=True)
    draft = aside.with_name(f"{aside.name}.merged.tmp")
    close_all(bring(path, present, merged, draft))
