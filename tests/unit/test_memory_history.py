"""Undo: the bytes of before come back, later changes stay, and what cannot be taken back says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.base.clock import SimulatedClock
from qworkspace.errors import Conflict, NotFound
from qworkspace.memory import history
from qworkspace.memory.marks import fact_line, strike
from qworkspace.memory.merging import hunks, lines_of, merge
from qworkspace.memory.notes import Author
from qworkspace.memory.vault import AgentMdManager
from tests.support.vaults import PERSON, TOOL, Opened, opened

NOTE = "MEMORY.md"
DREAM = Author("dream", group="dream_1")


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened(tmp_path) as place:
        yield place


async def _settled(here: Opened) -> None:
    """A person's saves from now on are not taken for those of an old buffer."""
    assert isinstance(here.clock, SimulatedClock)
    await here.clock.advance(3)
    await here.vault.look_again()


async def test_the_bytes_of_before_come_back_one_by_one(here: Opened) -> None:
    vault = here.vault
    (here.root / NOTE).write_bytes(b"\xff no end")
    seen = [here.bytes(NOTE)]
    await vault.append(NOTE, "- one", by=TOOL)
    seen.append(here.bytes(NOTE))
    await vault.write(NOTE, "all new\n", by=PERSON)
    seen.append(here.bytes(NOTE))
    await vault.delete(NOTE, by=PERSON)
    for expected in reversed(seen):
        await vault.undo()
        assert here.bytes(NOTE) == expected
    with pytest.raises(NotFound, match="nothing is left"):
        await vault.undo()


async def test_an_undo_is_undone_like_any_change(here: Opened) -> None:
    change = await here.vault.append(NOTE, "- one", by=TOOL)
    (undone,) = await here.vault.undo(change.id)
    assert here.bytes(NOTE) is None
    with pytest.raises(Conflict, match="undone already"):
        await here.vault.undo(change.id)
    await here.vault.undo(undone.id)
    assert here.text(NOTE) == "- one\n"
    await here.vault.undo(change.id)
    assert here.bytes(NOTE) is None


async def test_a_group_is_undone_at_once_or_not_at_all(here: Opened) -> None:
    vault = here.vault
    await vault.write(NOTE, "# Old\n- a\n- b\n", by=PERSON)
    before = here.bytes(NOTE)
    await vault.write(NOTE, "# New\n- ab\n", by=DREAM)
    await vault.write("digest/topic.md", "topic\n", by=DREAM)
    await vault.write("interests.yaml", "topics: []\n", by=DREAM)
    await vault.append(NOTE, "- c", by=DREAM)
    (here.root / "digest/topic.md").write_text("person's\n")
    with pytest.raises(Conflict, match=r"digest/topic\.md"):
        await vault.undo("dream_1")
    assert here.text(NOTE) == "# New\n- ab\n- c\n"
    (here.root / "digest/topic.md").write_text("topic\n")
    await vault.undo()
    assert here.bytes(NOTE) == before
    assert [here.bytes("digest/topic.md"), here.bytes("interests.yaml")] == [None, None]


async def test_lines_are_taken_out_of_a_note_that_has_changed_since(here: Opened) -> None:
    first = fact_line("Ann likes tea", "chat-1", "turn_1")
    change = await here.vault.append(NOTE, [first, "- second"], by=TOOL)
    await _settled(here)
    (here.root / NOTE).write_text(f"# Mine\n{strike(first)}\n- mine\n- second\n- mine too\n")
    await here.vault.undo(change.id)
    assert here.text(NOTE) == "# Mine\n- mine\n- mine too\n"


async def test_struck_lines_are_unstruck_although_the_note_has_changed_since(here: Opened) -> None:
    (here.root / NOTE).write_text("- a\n- b\n- c\n")
    change = await here.vault.edit(NOTE, lambda text: text.replace("- b", "- ~~b~~"), by=TOOL)
    (here.root / NOTE).write_text("# Mine\n- A\n- ~~b~~\n- C\n- d\n")
    await here.vault.undo(change.id)
    assert here.text(NOTE) == "# Mine\n- A\n- b\n- C\n- d\n"


async def test_a_change_of_the_same_lines_cannot_be_taken_back(here: Opened) -> None:
    (here.root / NOTE).write_text("- a\n- b\n")
    change = await here.vault.edit(NOTE, lambda text: text.replace("- b", "- bb"), by=TOOL)
    (here.root / NOTE).write_text("- a\n- person's\n")
    with pytest.raises(Conflict, match=r"'MEMORY\.md' has been changed since at the same lines; edit the note by hand"):
        await here.vault.undo(change.id)
    added = await here.vault.append(NOTE, "- x", by=TOOL)
    await _settled(here)
    (here.root / NOTE).write_text("- a\n")
    with pytest.raises(Conflict, match="no longer holds"):
        await here.vault.undo(added.id)
    assert here.text(NOTE) == "- a\n"


async def test_history_is_listed_in_pages_and_shown_as_a_diff(here: Opened) -> None:
    for number in range(5):
        await here.vault.append(NOTE, f"- {number}", by=TOOL)
    await here.vault.write("B.md", "b\n", by=PERSON)
    changed = await here.vault.edit(NOTE, lambda text: text.replace("- 2", "- two"), by=TOOL)
    first = await here.vault.history.list(NOTE, limit=4)
    rest = await here.vault.history.list(NOTE, limit=4, cursor=first.cursor)
    assert [len(first.changes), len(rest.changes), rest.cursor] == [4, 2, ""]
    assert (first.changes[0].by, first.changes[0].added, first.changes[0].removed) == (TOOL, 1, 1)
    assert await here.vault.history.show(changed.id) == (
        "--- MEMORY.md\n+++ MEMORY.md\n@@ -1,5 +1,5 @@\n - 0\n - 1\n-- 2\n+- two\n - 3\n - 4\n"
    )
    with pytest.raises(NotFound):
        await here.vault.history.show("chg_0")


async def test_old_changes_are_forgotten(here: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_CHANGES", 3)
    for number in range(5):
        await here.vault.append(NOTE, f"- {number}", by=TOOL)
    assert await here.vault.history.prune(here.clock.now()) == 2
    assert await here.vault.history.prune(here.clock.now() + timedelta(days=91)) == 3
    assert here.text(NOTE).count("\n") == 5


async def test_a_torn_append_is_finished_or_rolled_back_at_the_next_start(tmp_path: Path) -> None:
    block = "- " + "fact " * 300
    torn = "UPDATE vault_change SET state = 'pending', at = '2025-12-31T00:00:00+00:00'"
    for left, expected in {
        b"": "- old\n",
        (block[:506]).encode(): f"- old\n{block.strip()}\n",
        (block[:506] + "- person's\n").encode(): f"- old\n{block.strip()}\n- person's\n",
        b"- person's\n": "- old\n- person's\n",
    }.items():
        root = tmp_path / str(len(left))
        async with opened(root) as here:
            (root / NOTE).write_text("- old\n")
            await here.vault.append(NOTE, block, by=TOOL, key="k")
            await here.vault.history.db.write(lambda db: db.execute(torn).rowcount)
        (root / NOTE).write_bytes(b"- old\n" + left)
        async with opened(root) as here:
            assert here.text(NOTE) == expected
            await here.vault.append(NOTE, block, by=TOOL, key="k")
            assert here.text(NOTE).count(block.strip()) == 1, left


WORDS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"\n"]), max_size=7).map(b"".join)


@settings(max_examples=80)
@given(WORDS, WORDS, WORDS)
def test_merges_keep_what_both_have_made(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge(base, ours, base) == ours
    assert merge(base, base, theirs) == theirs
    assert merge(base, ours, ours) == ours
    both = merge(base, ours, theirs, union=True)
    assert both is not None
    kept = lines_of(both)
    for hunk in hunks(lines_of(base), lines_of(theirs)):
        assert all(line in kept for line in hunk.lines)
    clean = merge(base, ours, theirs)
    assert clean is None or clean == both


async def test_operations_in_a_row_and_all_of_them_undone(here: Opened) -> None:
    vault: AgentMdManager = here.vault
    ids = []
    for number in range(12):
        if number % 3 == 2:
            ids.append((await vault.edit(NOTE, lambda t: "\n".join(map(strike, t.split("\n"))), by=TOOL)).id)
        else:
            ids.append((await vault.append(NOTE, f"- {number}", by=TOOL)).id)
    for number in (0, 3, 6):  # out of order: others came after them
        await vault.undo(ids[number])
    left = here.text(NOTE)
    assert [f"{number}" in left.replace("10", "") for number in (0, 3, 6)] == [False] * 3
    assert all(f"~~{number}~~" in left for number in (1, 4, 7, 9, 10))
