"""What tools may touch: no name, link or race leads them out of their places."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.tools.places import Place, Protected
from qworkspace.errors import Conflict, Denied, InvalidInput, InvalidPath, NotFound, QworkspaceError, StorageError
from tests.support.fenced import CLOSED, CONTROL, make_home, protected_state, text_of

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="links and modes of POSIX")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


@pytest.fixture
def fence(workspace: Path) -> Fence:
    return Fence(workspace, workspace.parent.parent)


async def test_open_places_are_read_and_written(fence: Fence, workspace: Path):
    assert await fence.write("files/new/deep/b.txt", b"hello") is True
    assert await fence.write("AGENTS.md", b"lesson") is False
    assert await text_of(fence, "./files//new/deep/b.txt") == "hello"
    assert await text_of(fence, str(workspace / "AGENTS.md")) == "lesson"
    assert await fence.names("files/new") == ["deep"]


@pytest.mark.parametrize(
    "name", ["notes.txt", "interests.yaml", "resources/x.pdf", "Files/x", "agents.md", "files", "."]
)
async def test_other_places_of_the_workspace_are_not_written(fence: Fence, name: str):
    with pytest.raises(Denied, match="files/"):
        await fence.write(name, b"x", control=True)
    assert fence.judge(name, "write").hard


@pytest.mark.parametrize("name", [*CONTROL, "AGENT.json", "Skills/x/y", "plug\u200bins/x", "drivers", "ſkills/x"])
async def test_control_files_always_ask_and_are_written_only_when_asked(fence: Fence, workspace: Path, name: str):
    assert fence.judge(name, "write").decision == "ask"
    with pytest.raises(Denied, match="person"):
        await fence.write(name, b"x")
    assert fence.judge(name, "read").decision == "allow"


async def test_an_allowed_control_file_is_written(fence: Fence, workspace: Path):
    assert await fence.write("agent.json", b"{}", control=True) is False
    assert (workspace / "agent.json").read_text() == "{}"


@pytest.mark.parametrize("name", [*CLOSED, ".state", ".STATE/sessions.db", ".ſtate/x", ".st\u200bate/x"])
async def test_the_state_is_closed(fence: Fence, name: str):
    for effect in ("read", "write"):
        verdict = fence.judge(name, effect)
        assert (verdict.decision, verdict.hard) == ("deny", True)
    with pytest.raises(Denied):
        await fence.read(name, limit=100)
    with pytest.raises(Denied):
        await fence.write(name, b"x", control=True)


@pytest.mark.parametrize(
    "name",
    [
        "files/../agent.json",
        "../other/MEMORY.md",
        "/etc/passwd",
        "files/\x00",
        "files\\..\\agent.json",
        "C:/x",
        "",
        "~/x/..",
    ],
)
async def test_what_is_no_name_here_is_refused(fence: Fence, name: str):
    with pytest.raises(InvalidPath):
        await fence.read(name, limit=100)
    with pytest.raises(InvalidPath):
        await fence.write(name, b"x", control=True)
    assert fence.judge(name, "read").decision == "deny"


@posix_only
@pytest.mark.parametrize(
    "target", ["../.state/sessions.db", "../../../secrets.json", "../../other/MEMORY.md", "/etc/passwd"]
)
async def test_symlinks_to_what_is_closed_are_neither_read_nor_written(fence: Fence, workspace: Path, target: str):
    (workspace / "files" / "link").symlink_to(target)
    before = protected_state(workspace)
    for call in (fence.read("files/link", limit=100), fence.write("files/link", b"x", control=True)):
        with pytest.raises((Denied, InvalidPath)):
            await call
    assert protected_state(workspace) == before


@posix_only
@pytest.mark.parametrize("directory", ["../.state", "../skills", "../../other", "../../../.daemon"])
async def test_symlinked_directories_do_not_open_what_they_lead_to(fence: Fence, workspace: Path, directory: str):
    (workspace / "files" / "door").symlink_to(directory)
    with pytest.raises((Denied, InvalidPath)):
        await fence.write("files/door/new.txt", b"x", control=True)
    assert not (workspace / "files" / directory / "new.txt").exists()


@posix_only
async def test_a_link_to_a_control_file_is_not_written_even_when_allowed(fence: Fence, workspace: Path):
    (workspace / "files" / "harmless.txt").symlink_to("../agent.json")
    verdict = fence.judge("files/harmless.txt", "write")
    assert (verdict.decision, verdict.hard) == ("deny", True)
    assert "agent.json" in verdict.reason
    with pytest.raises(Denied):
        await fence.write("files/harmless.txt", b"x", control=True)
    assert (workspace / "agent.json").read_text() == "original"


@posix_only
async def test_links_inside_the_open_places_are_followed(fence: Fence, workspace: Path):
    (workspace / "files" / "today.md").symlink_to("../memory/2026-01-01.md")
    assert await text_of(fence, "files/today.md") == "original"
    await fence.write("files/today.md", b"more")
    assert (workspace / "memory/2026-01-01.md").read_text() == "more"
    assert (workspace / "files" / "today.md").is_symlink()


@posix_only
@pytest.mark.parametrize("name", ["secrets.json", "config.json", ".daemon/home.db", "workspaces/other/MEMORY.md"])
async def test_hard_links_to_what_is_closed_are_found(fence: Fence, workspace: Path, name: str):
    os.link(workspace.parent.parent / name, workspace / "files" / "copy.txt")
    before = protected_state(workspace)
    with pytest.raises(Denied):
        await fence.read("files/copy.txt", limit=100)
    with pytest.raises(Denied):
        await fence.write("files/copy.txt", b"x")
    assert protected_state(workspace) == before


@posix_only
@pytest.mark.parametrize("name", CONTROL)
async def test_hard_links_to_control_files_are_read_but_not_written(fence: Fence, workspace: Path, name: str):
    os.link(workspace / name, workspace / "files" / "copy.txt")
    assert await text_of(fence, "files/copy.txt") == "original"
    with pytest.raises(Denied):
        await fence.write("files/copy.txt", b"x", control=True)
    assert (workspace / name).read_text() == "original"


@posix_only
async def test_writing_a_file_with_several_names_leaves_the_others_alone(fence: Fence, workspace: Path):
    outside = workspace.parent.parent.parent / "outside.txt"
    outside.write_text("theirs")
    os.link(outside, workspace / "files" / "b.txt")
    await fence.write("files/b.txt", b"mine")
    assert (outside.read_text(), await text_of(fence, "files/b.txt")) == ("theirs", "mine")


@posix_only
async def test_a_pipe_is_refused_at_once(fence: Fence, workspace: Path):
    os.mkfifo(workspace / "files" / "pipe")
    async with asyncio.timeout(5):
        with pytest.raises(InvalidInput, match="no regular file"):
            await fence.read("files/pipe", limit=100)
        with pytest.raises(InvalidInput, match="no regular file"):
            await fence.write("files/pipe", b"x")


@posix_only
async def test_a_mounted_or_renamed_state_directory_is_known_by_its_identity(fence: Fence, workspace: Path):
    protected = Protected(workspace, workspace.parent.parent, tuple)
    status = (workspace / ".state").stat()
    assert protected.roots()[status.st_dev, status.st_ino] is Place.CLOSED


@posix_only
async def test_swapping_a_directory_for_a_link_leads_nowhere(fence: Fence, workspace: Path):
    """Another process swaps `files/d` between a directory and a link to skills/ while the tool writes into it."""
    door, stop = workspace / "files/d", threading.Event()

    def swap() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            with suppress(OSError):  # the tool makes the directory too
                door.mkdir() if number % 2 else door.symlink_to("../skills")
            with suppress(OSError):
                door.rename(workspace / "memory" / f"junk{number}")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(150):
            try:
                await fence.write(f"files/d/{number}.txt", b"x")
            except QworkspaceError:
                continue
    finally:
        stop.set()
        thread.join()
    assert sorted(os.listdir(workspace / "skills")) == ["s"]


async def test_an_edit_is_made_again_when_somebody_changed_the_file_meanwhile(fence: Fence, workspace: Path):
    seen: list[bytes | None] = []

    def edit(data: bytes | None) -> bytes:
        if not seen:
            (workspace / "files/a.txt").write_text("by a person, longer")
        seen.append(data)
        return (data or b"") + b" and me"

    assert await fence.change("files/a.txt", edit) is False
    assert (workspace / "files/a.txt").read_text() == "by a person, longer and me"
    assert seen == [b"original", b"by a person, longer"]


async def test_an_edit_gives_up_when_the_file_never_rests(fence: Fence, workspace: Path):
    count = iter(range(100))

    def edit(data: bytes | None) -> bytes:
        (workspace / "files/a.txt").write_text("x" * (next(count) + 1))
        return b"mine"

    with pytest.raises(Conflict, match="keeps being changed"):
        await fence.change("files/a.txt", edit)
    assert "mine" not in (workspace / "files/a.txt").read_text()


async def test_parallel_edits_of_one_file_all_count(fence: Fence):
    await fence.write("files/n.txt", b"")
    await asyncio.gather(*(fence.change("files/n.txt", lambda data: (data or b"") + b"x") for _ in range(20)))
    assert await text_of(fence, "files/n.txt") == "x" * 20


@posix_only
async def test_the_mode_of_a_file_stays(fence: Fence, workspace: Path):
    (workspace / "files/a.txt").chmod(0o750)
    await fence.write("files/a.txt", b"x")
    assert (workspace / "files/a.txt").stat().st_mode & 0o777 == 0o750


async def test_a_missing_file_and_a_directory_are_named(fence: Fence):
    with pytest.raises(NotFound, match=r"files/none\.txt"):
        await fence.read("files/none.txt", limit=10)
    with pytest.raises(InvalidInput, match="directory"):
        await fence.read("files", limit=10)
    with pytest.raises(InvalidInput, match="not a directory"):
        await fence.write("files/a.txt/b", b"x")


async def test_a_disk_that_refuses_leaves_the_old_content(
    fence: Fence, workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        await fence.write("files/a.txt", b"new")
    assert os.listdir(workspace / "files") == ["a.txt"]
    assert (workspace / "files/a.txt").read_text() == "original"


async def test_the_end_of_a_large_file_is_read(fence: Fence):
    await fence.write("files/log", b"0123456789")
    content = await fence.read("files/log", limit=3, from_end=True)
    assert (content.data, content.size, content.offset) == (b"789", 10, 7)


def test_a_workspace_that_holds_the_home_still_does_not_open_it(tmp_path: Path):
    other = make_home(tmp_path / "w" / "files" / "home")
    fence = Fence(tmp_path / "w", tmp_path / "w" / "files" / "home")
    for name in ("secrets.json", "config.json", ".daemon/home.db", "workspaces/other/MEMORY.md", "workspaces"):
        assert fence.judge(f"files/home/{name}", "read").hard
    assert other.is_dir()


def test_other_agents_outside_of_the_home_are_closed_too(tmp_path: Path):
    (tmp_path / "w" / "files" / "nested").mkdir(parents=True)
    fence = Fence(tmp_path / "w", tmp_path / "home", others=lambda: [tmp_path / "w" / "files" / "nested"])
    assert fence.judge("files/nested/agent.json", "read").hard
