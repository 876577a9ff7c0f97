"""What a note becomes when a change is taken back, although others have come after it."""

from __future__ import annotations

from collections.abc import Sequence

from qworkspace.errors import Conflict
from qworkspace.memory.appending import lines_in
from qworkspace.memory.history import Row
from qworkspace.memory.marks import strike
from qworkspace.memory.merging import hunks, lines_of, merge


def taken_back(row: Row, present: bytes | None) -> bytes | None:
    """The bytes of the note without that change; None for no note. `Conflict` when somebody changed the same lines.

    When nothing has come after the change these are the bytes of before. Later changes stay.
    """
    if row.change.operation == "append":
        return _without_block(row, present)
    if present == row.after or present == row.before:
        return row.before
    if present is None or row.after is None:
        raise _conflict(row, "was removed since" if present is None else "was written anew since")
    merged = merge(row.after, row.before or b"", present)
    if merged is None:
        merged = _line_by_line(row, present)
    return None if row.before is None and not merged.strip() else merged


def _without_block(row: Row, present: bytes | None) -> bytes | None:
    block, place = row.after or b"", row.place
    if present is None:
        raise _conflict(row, "was removed since")
    if present[place:].startswith(block):
        rest = present[place + len(block) :]
        end = block[: block.find(b"\n") + 1] if rest and block.startswith((b"\n", b"\r\n")) else b""
        left = present[:place] + end + rest
    else:
        left = _without_lines(row, present, lines_in(block))
    return None if row.before is None and not left.strip() else left


def _without_lines(row: Row, present: bytes, lines: Sequence[bytes]) -> bytes:
    kept = lines_of(present)
    taken = 0
    for line in reversed(lines):
        meant = {line, strike(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")}
        at = next((i for i in range(len(kept) - 1, -1, -1) if kept[i].rstrip() in meant), None)
        if at is not None:
            del kept[at]
            taken += 1
    if not taken:
        raise _conflict(row, "no longer holds what it added")
    return b"".join(kept)


def _line_by_line(row: Row, present: bytes) -> bytes:
    """Each changed passage by itself, where it still stands in the note exactly once."""
    after = lines_of(row.after or b"")
    lines = lines_of(present)
    for hunk in reversed(hunks(after, lines_of(row.before or b""))):
        changed = after[hunk.start : hunk.end]
        found = [i for i in range(len(lines) - len(changed) + 1) if lines[i : i + len(changed)] == changed]
        if not changed or len(found) != 1:
            raise _conflict(row, "has been changed since at the same lines")
        lines[found[0] : found[0] + len(changed)] = hunk.lines
    return b"".join(lines)


def _conflict(row: Row, what: str) -> Conflict:
    change = row.change
    return Conflict(
        f"change {change.id!r} cannot be taken back: {change.path!r} {what}; edit the note by hand, its history shows "
        "what the change did, or undo the later changes of this note first",
        code="undo_conflict",
        path=change.path,
        change=change.id,
    )
