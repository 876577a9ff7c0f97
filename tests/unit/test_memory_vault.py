"""Notes: what is written is there whole, once, and whoever writes in between keeps what they wrote."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qworkspace.base.clock import SimulatedClock
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import (
    Conflict,
    InvalidInput,
    InvalidPath,
    NotFound,
    StorageError,
    TooLarge,
    VersionMismatch,
)
from qworkspace.memory.names import Names
from tests.support.disks import SmallDisk, why_not
from tests.support.vaults import PERSON, TOOL, Opened, opened

NOTE = "MEMORY.md"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened(tmp_path, clock=SimulatedClock(datetime(2026, 3, 31, 23, 30, tzinfo=UTC))) as place:
        yield place


async def test_lines_are_added_whole_and_the_last_line_is_ended_first(here: Opened) -> None:
    (here.root / NOTE).write_text("# Memory\nno end")
    await here.vault.append(NOTE, ["- one", "", "- two"], by=TOOL)
    await here.vault.append(NOTE, "- three\n", by=TOOL)
    assert here.text(NOTE) == "# Memory\nno end\n- one\n\n- two\n- three\n"
    assert here.changed == [NOTE, NOTE]


async def test_a_key_adds_once(here: Opened) -> None:
    first = await here.vault.append(here.vault.today(), "- fact", by=TOOL, key="task-1")
    again = await here.vault.append(here.vault.today(), "- fact", by=TOOL, key="task-1")
    assert (first.id, first.repeated, again.id, again.repeated) == (again.id, False, first.id, True)
    assert here.text("memory/2026-03-31.md") == "- fact\n"


async def test_nothing_to_add_is_refused(here: Opened) -> None:
    with pytest.raises(InvalidInput, match="no text"):
        await here.vault.append(NOTE, "\n \n", by=TOOL)
    assert here.bytes(NOTE) is None


async def test_bytes_that_are_not_edited_stay(here: Opened) -> None:
    before = b"\xef\xbb\xbf# A\r\n\r\n- caf\xe9 one\r\n- two"
    (here.root / NOTE).write_bytes(before)
    await here.vault.append(NOTE, "- three", by=TOOL)
    assert here.bytes(NOTE) == before + b"\r\n- three\r\n"
    await here.vault.edit(NOTE, lambda text: text.replace("two", "2"), by=TOOL)
    assert here.bytes(NOTE) == before.replace(b"two", b"2") + b"\r\n- three\r\n"
    assert "caf\ufffd one" in (await here.vault.read(NOTE)).text


async def test_a_version_guards_a_write(here: Opened) -> None:
    await here.vault.write(NOTE, "one\n", by=PERSON, expected="")
    note = await here.vault.read("memory")
    assert (note.name, note.text, note.lines) == (NOTE, "one\n", 1)
    (here.root / NOTE).write_text("somebody else's\n")
    with pytest.raises(VersionMismatch):
        await here.vault.write(NOTE, "two\n", by=PERSON, expected=note.version)
    assert here.text(NOTE) == "somebody else's\n"
    with pytest.raises(VersionMismatch):
        await here.vault.write(NOTE, "two\n", by=PERSON, expected="")


async def test_an_edit_begins_again_when_the_note_has_changed_meanwhile(here: Opened) -> None:
    path = here.root / NOTE
    path.write_text("- a\n")
    calls = 0

    def edit(text: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:  # an editor saves at the worst moment, by replacing the file
            draft = here.root / "draft"
            draft.write_text(text + "- person's\n")
            draft.replace(path)
        return text.replace("- a", "- ~~a~~")

    change = await here.vault.edit(NOTE, edit, by=TOOL)
    assert here.text(NOTE) == "- ~~a~~\n- person's\n"
    assert (calls, sorted(os.listdir(here.root))) == (2, [".state", NOTE])
    await here.vault.undo(change.id)
    assert here.text(NOTE) == "- a\n- person's\n"


async def test_a_blind_write_keeps_what_was_added_at_that_moment_and_an_expecting_one_gives_way(here: Opened) -> None:
    path = here.root / NOTE
    path.write_text("- a\n")

    class Late(str):
        """A text during whose making somebody appends to the note."""

        def replace(self, *args: object) -> str:
            with path.open("a") as file:
                file.write("- late\n")
            return str.__str__(self)

    version = (await here.vault.read(NOTE)).version
    path.write_bytes(b"- a\r\n")
    await here.vault.write(NOTE, Late("- a\n- b\n"), by=TOOL)
    assert "- late" in here.text(NOTE)
    assert "- b" in here.text(NOTE)
    assert version != (await here.vault.read(NOTE)).version


async def test_what_is_written_late_to_the_displaced_file_is_brought_in(here: Opened) -> None:
    (here.root / NOTE).write_text("- a\n")
    with (here.root / NOTE).open("a") as slow:
        await here.vault.edit(NOTE, str.upper, by=TOOL)
        slow.write("- slow\n")
        slow.flush()
        await here.vault.look_again()
    assert here.text(NOTE) == "- A\n- slow\n"


async def test_a_line_that_an_old_buffer_swallows_comes_back_once(here: Opened) -> None:
    (here.root / NOTE).write_text("- a\n")
    await here.vault.append(NOTE, "- fact", by=TOOL)
    (here.root / NOTE).write_text("- a\n- person's\n")
    await here.vault.look_again()
    await here.vault.look_again()
    assert here.text(NOTE) == "- a\n- person's\n- fact\n"


async def test_a_program_that_saves_an_old_version_again_and_again_is_a_problem_until_a_line_lasts(
    here: Opened,
) -> None:
    assert isinstance(here.clock, SimulatedClock)
    await here.vault.append(NOTE, "- one", by=TOOL)
    while not here.problems.of():
        (here.root / NOTE).write_text("- old\n")
        await here.vault.look_again()
    assert "keeps saving an old version of 'MEMORY.md'" in here.problems.of()[0].message
    await here.vault.append(NOTE, "- two", by=TOOL)
    await here.clock.advance(2.5)
    await here.vault.look_again()
    assert here.problems.of() == []


async def test_the_next_line_brings_a_swallowed_one_back(here: Opened) -> None:
    await here.vault.append(NOTE, "- one", by=TOOL)
    (here.root / NOTE).write_text("- person's\n")
    await here.vault.append(NOTE, "- two", by=TOOL)
    assert here.text(NOTE) == "- person's\n- one\n- two\n"


async def test_a_line_that_is_removed_later_stays_removed(here: Opened) -> None:
    assert isinstance(here.clock, SimulatedClock)
    await here.vault.append(NOTE, ["- one", "- two"], by=TOOL)
    await here.vault.look_again()
    await here.clock.advance(2.5)
    await here.vault.look_again()
    (here.root / NOTE).write_text("- two\n")
    await here.vault.look_again()
    await here.vault.append(NOTE, "- three", by=TOOL)
    assert here.text(NOTE) == "- two\n- three\n"


async def test_what_the_daemon_itself_removes_is_not_put_back(here: Opened) -> None:
    await here.vault.append(NOTE, ["- one", "- two"], by=TOOL)
    await here.vault.edit(NOTE, lambda text: text.replace("- one\n", "- ~~one~~\n"), by=TOOL)
    await here.vault.look_again()
    await here.vault.append(NOTE, "- three", by=TOOL)
    assert here.text(NOTE) == "- ~~one~~\n- two\n- three\n"
    await here.vault.delete(NOTE, by=PERSON)
    await here.vault.look_again()
    assert here.bytes(NOTE) is None


async def test_a_section_is_replaced_or_added(here: Opened) -> None:
    (here.root / NOTE).write_text("# M\n\n## Likes\n- tea\n\n```\n## no heading\n```\n### more\n- x\n\n## Other\n- y\n")
    await here.vault.replace_section(NOTE, "likes", "## Likes\n- coffee", by=TOOL)
    assert here.text(NOTE) == "# M\n\n## Likes\n\n- coffee\n\n## Other\n- y\n"
    await here.vault.replace_section(NOTE, "New", "- z", by=TOOL)
    assert here.text(NOTE).endswith("## Other\n- y\n\n## New\n\n- z\n")


async def test_a_note_that_is_removed_while_it_is_being_changed_stays(here: Opened) -> None:
    with pytest.raises(NotFound):
        await here.vault.delete(NOTE, by=PERSON)
    (here.root / NOTE).write_text("x\n")
    note = await here.vault.read(NOTE)
    (here.root / NOTE).write_text("y\n")
    with pytest.raises(Conflict):
        await here.vault.delete(NOTE, by=PERSON, expected=note.version)
    assert here.text(NOTE) == "y\n"


async def test_large_notes(here: Opened) -> None:
    line = "记忆" * 20 + "\n"
    text = line * (5_000_000 // len(line.encode()))
    await here.vault.write(NOTE, text, by=PERSON)
    await here.vault.append(NOTE, "- more", by=TOOL)
    await here.vault.edit(NOTE, lambda old: old.replace("- more", "- ~~more~~"), by=TOOL)
    assert here.text(NOTE) == text + "- ~~more~~\n"
    with pytest.raises(TooLarge, match="20 MB"):
        await here.vault.append(NOTE, "x" * 16_000_000, by=TOOL)
    assert here.text(NOTE) == text + "- ~~more~~\n"
    (here.root / "B.md").write_bytes(b"x" * 20_000_001)
    with pytest.raises(TooLarge, match="split"):
        await here.vault.read("B.md")


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
async def test_a_full_disk_changes_nothing_and_is_over_when_there_is_room(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        async with opened(disk.place) as here:
            await here.vault.append(NOTE, "- one", by=TOOL)
            disk.fill()
            for text in ("- two", "x" * 200_000):
                with pytest.raises(StorageError, match="full"):
                    await here.vault.append(NOTE, text, by=TOOL, key=text[:5])
                with pytest.raises(StorageError, match="full"):
                    await here.vault.write(NOTE, text, by=TOOL)
            assert here.text(NOTE) == "- one\n"
            disk.free()
            await here.vault.append(NOTE, "- two", by=TOOL, key="- two")
            assert here.text(NOTE) == "- one\n- two\n"
            assert [p.name for p in disk.place.iterdir() if p.name.endswith(".tmp")] == []


def _outside(place: Path) -> tuple[Path, Path]:
    """A workspace with links that lead out, and the directory outside."""
    root, outside = place / "home" / "a", place / "elsewhere"
    for path in (root / "memory" / "sub", root / "digest", root / ".state", root / "skills" / "s", outside / "deep"):
        path.mkdir(parents=True)
    for secret in (root / ".state/x.md", root / "skills/s/SKILL.md", root / "agent.json", outside / "deep/o.md"):
        secret.write_text("secret")
    (place / "home" / "secrets.json").write_text("secret")
    (root / "memory/fine.md").write_text("fine")
    links: dict[str, str | Path] = {
        "memory/out.md": outside / "deep/o.md",
        "memory/dir": outside / "deep",
        "memory/state.md": root / ".state/x.md",
        "memory/agent.md": root / "agent.json",
        "memory/skill.md": root / "skills/s/SKILL.md",
        "memory/loop.md": "loop.md",
        "memory/home": place / "home",
        "digest/in.md": "../memory/fine.md",
        "STATE.md": root / ".state/x.md",
    }
    for link, target in links.items():
        (root / link).symlink_to(target)
    os.mkfifo(root / "memory/pipe.md")
    return root, outside


# fmt: off
NASTY = st.sampled_from([
    "..", ".", "", "memory", "digest", "out.md", "out", "dir", "o.md", "o", "home", "state", "loop", "agent", "pipe",
    "a", "skill", "secrets.json", "config.json", "agent.json", "jobs.json", ".state", ".STATE", ".state ", "skills",
    "Skills", "s", "SKILL", "plugins", "x.md", "…", "C:", "con", "\\", "..\\..", "\0", "%2e%2e", "é", "e\u0301",
    "STATE", "\u202e", "\ud800", "x" * 256, "`MEMORY`", "[[MEMORY]]", '"memory/fine"', "/etc/passwd", "~", "vault.lock",
    "a\nb",    ".state\u200b", "ｓkills", "file://x",
])
# fmt: on
NAMES = st.one_of(st.lists(NASTY, max_size=4).map("/".join), st.text(max_size=40))


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _outside(tmp_path_factory.mktemp("trap"))


@settings(max_examples=150)
@given(NAMES)
@example("memory/dir/o")
@example("memory/home/secrets.json")
@example("memory/../../secrets.json")
@example(".state/vault.lock")
def test_whatever_name_a_model_makes_up_it_stays_in_the_open_places(trap: tuple[Path, Path], given_name: str) -> None:
    root, _ = trap
    names = Names(root, MemoryConfig())
    try:
        name = names.name(given_name)
    except InvalidPath:
        return
    path = names.resolve(name)
    inside = path.relative_to(root.resolve())
    assert inside.parts[0] in ("memory", "digest") or len(inside.parts) == 1
    assert path.suffix.lower() == ".md"
    assert not any(part.startswith(".") for part in inside.parts)
    assert not path.exists() or path.read_text() == "fine" if not path.is_fifo() else True
    assert names.name(name) == name


async def test_links_out_are_refused_reported_and_not_listed(tmp_path: Path) -> None:
    root, outside = _outside(tmp_path)
    async with opened(root) as here:
        assert [note.name for note in await here.vault.list()] == ["digest/in.md", "memory/fine.md"]
        told = {problem.key.split("/", 2)[2]: problem.message for problem in here.problems.of("a")}
        assert told.keys() == {
            *("memory/out.md", "memory/dir", "memory/state.md", "memory/agent.md", "memory/skill.md"),
            *("memory/loop.md", "memory/home", "memory/pipe.md", "STATE.md"),
        }
        assert "allowed_roots" in told["memory/out.md"]
        for name in ("memory/out", "memory/dir/new", "STATE", "memory/pipe"):
            with pytest.raises(InvalidPath):
                await here.vault.append(name, "x", by=TOOL)
        for name in told:
            (root / name).unlink()
        await here.vault.list()
        assert here.problems.of("a") == []
    assert (outside / "deep/o.md").read_text() == "secret"


async def test_allowed_roots_open_more_on_purpose(tmp_path: Path) -> None:
    root, outside = _outside(tmp_path)
    async with opened(root, allowed_roots=[str(outside)]) as here:
        await here.vault.append("memory/dir/o", "- more", by=TOOL)
        assert (outside / "deep/o.md").read_text() == "secret\n- more\n"
        assert (await here.vault.read("memory/out.md")).text == "secret\n- more\n"
        assert {source.name for source in await here.threads.run(here.vault.sources)} >= {"memory/out.md"}
        with pytest.raises(InvalidPath):
            await here.vault.read("memory/home/secrets.json")


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [
        ("memory", "MEMORY.md"),
        ("profile.md", "PROFILE.md"),
        ("`MEMORY.md`", "MEMORY.md"),
        ("[[MEMORY]]", "MEMORY.md"),
        ("2026-01-02", "memory/2026-01-02.md"),
        ("./memory//x", "memory/x.md"),
        ("memory\\sub\\x", "memory/sub/x.md"),
        ("digest/Ünïcode 日本", "digest/Ünïcode 日本.md"),
        ("notes.txt", "notes.txt.md"),
    ],
)
def test_what_models_write_for_a_name_is_understood(tmp_path: Path, given_name: str, meant: str) -> None:
    assert Names(tmp_path, MemoryConfig()).name(given_name) == meant


async def test_names_in_all_scripts_are_listed_as_they_can_be_read(here: Opened) -> None:
    (here.root / "memory").mkdir()
    for name in ("日本語", "العربية", "e\u0301", "é", "😀", " lead", "x" * 252, "a:b?*", "'q'", "back\\slash"):
        (here.root / "memory" / f"{name}.md").write_text(name)
    listed = [note.name for note in await here.vault.list()]
    assert len(listed) == 9
    for name in listed:
        assert (await here.vault.read(name)).text == name.removeprefix("memory/").removesuffix(".md")
    assert len(here.problems.of("a")) == 1


async def test_what_goes_on_at_once_takes_turns_and_is_there_once_although_a_caller_goes(here: Opened) -> None:
    tasks = [asyncio.ensure_future(here.vault.append(NOTE, f"- {number}", by=TOOL)) for number in range(8)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.wait(tasks)
    lines = here.text(NOTE).splitlines()
    assert sorted({*lines, "- 3"}) == [f"- {number}" for number in range(8)]
    assert len(lines) == len(set(lines))
