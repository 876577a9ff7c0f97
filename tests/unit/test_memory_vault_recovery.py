"""What a crash leaves between two steps: a note is before or after the change, a person's save in between stays."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qworkspace.memory.history import Row
from qworkspace.memory.notes import Author, Change, Operation
from qworkspace.memory.recovery import aside_of, settle
from tests.support.vaults import TOOL, opened

BEFORE, AFTER, PERSON = b"- a\n- b\n", b"- a\n- ~~b~~\n", b"- a\n- b\n- person's\n"
MERGED = b"- a\n- ~~b~~\n- person's\n"


def _row(
    operation: Operation, before: bytes | None, after: bytes | None, *, number: int = 1, attempt: bytes = b""
) -> Row:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    change = Change(f"chg_{number}", "group", now, Author("tool"), f"{number}.md", operation, "pending")
    return Row(change, before, after, seen={"attempt": zlib.crc32(attempt)} if attempt else {})


@dataclass
class Left:
    """What is there after a crash, and what has to be there once it is settled."""

    note: bytes | None
    aside: bytes | None
    expected: bytes | None
    took_place: bool
    before: bytes | None = BEFORE
    after: bytes | None = AFTER
    attempt: bytes = field(default=b"")


CASES = {
    "nothing was done": Left(BEFORE, None, BEFORE, False),
    "a torn draft": Left(BEFORE, AFTER[:5], BEFORE, False),
    "a draft": Left(BEFORE, AFTER, BEFORE, False),
    "exchanged": Left(AFTER, BEFORE, AFTER, True),
    "done": Left(AFTER, None, AFTER, True),
    "exchanged with a person's save": Left(AFTER, PERSON, MERGED, True),
    "exchanged with a person's save, which was seen": Left(AFTER, PERSON, MERGED, True, PERSON, MERGED, AFTER),
    "exchanged, then a person's save": Left(MERGED, BEFORE, MERGED, True),
    "a draft, then a person's save": Left(PERSON, AFTER, PERSON, False),
    "done, then a person's save": Left(MERGED, None, MERGED, True),
    "not done, then a person's save": Left(PERSON, None, PERSON, False),
    "made": Left(AFTER, None, AFTER, True, None),
    "not made, a draft": Left(None, AFTER, None, False, None),
    "removed": Left(None, BEFORE, None, True, BEFORE, None),
    "removed with a person's save": Left(None, PERSON, PERSON, False, BEFORE, None),
    "not removed": Left(BEFORE, None, BEFORE, False, BEFORE, None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_left_is_settled(tmp_path: Path, case: str) -> None:
    left = CASES[case]
    row = _row("write" if left.after is not None else "delete", left.before, left.after, attempt=left.attempt)
    note = tmp_path / "1.md"
    for path, content in ((note, left.note), (aside_of(note, "chg_1"), left.aside)):
        if content is not None:
            path.write_bytes(content)
    assert settle([(row, note)]) == [left.took_place]
    assert (note.read_bytes() if note.exists() else None) == left.expected
    assert [path.name for path in tmp_path.iterdir()] == (["1.md"] if left.expected is not None else [])


def test_an_undo_of_a_group_is_finished_once_it_has_begun(tmp_path: Path) -> None:
    rows = [(_row("undo", BEFORE, AFTER, number=number), tmp_path / f"{number}.md") for number in (1, 2, 3)]
    for _, path in rows:
        path.write_bytes(BEFORE)
    assert settle(rows) == [False, False, False]
    rows[1][1].write_bytes(AFTER)
    assert settle(rows) == [True, True, True]
    assert [path.read_bytes() for _, path in rows] == [AFTER, AFTER, AFTER]


@pytest.mark.may_block  # 20 MB are written by the test itself
async def test_a_note_that_cannot_be_settled_stops_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        for name in ("A.md", "B.md", "C.md"):
            await here.vault.append(name, "- one", by=TOOL)
        pending = "UPDATE vault_change SET state = 'pending', at = '2025-12-31T00:00:00+00:00'"
        await here.vault.history.db.write(lambda db: db.execute(pending).rowcount)
    (tmp_path / "A.md").unlink()
    (tmp_path / "A.md").symlink_to("/etc/hostname")
    (tmp_path / "B.md").write_bytes(b"x" * 20_000_001)
    async with opened(tmp_path) as here:
        await here.vault.append("C.md", "- two", by=TOOL)
        assert here.text("C.md") == "- one\n- two\n"
        assert [change.path for change in (await here.vault.history.list()).changes] == ["C.md", "C.md"]
