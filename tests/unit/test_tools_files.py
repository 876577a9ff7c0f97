"""The file tools as a model uses them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.chat.tools import files, search
from qworkspace.chat.tools.search import Budget, within
from qworkspace.config.models import AgentConfig
from qworkspace.plugins.extensions import ToolContext
from tests.support.tools import call, make_workspace, tool_context

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="links and modes of POSIX")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path / "home")


@pytest.fixture
def context(workspace: Path) -> ToolContext:
    return tool_context(workspace)


async def test_what_was_written_is_read(context: ToolContext, workspace: Path):
    written = await call(context, "write_file", path="files/plan/a.md", content="one\ntwo \ud83d\n")
    assert (written.text, written.outcome) == ("made files/plan/a.md: 12 bytes written", "ok")
    assert (await call(context, "read_file", path="files/plan/a.md")).text == "one\ntwo \ufffd"
    assert (await call(context, "read_file", path=f"{workspace}/files/plan/a.md")).text == "one\ntwo \ufffd"


async def test_adding_begins_a_new_line(context: ToolContext):
    for line in ("one", "two\n", "three"):
        await call(context, "write_file", path="memory/2026-01-01.md", content=line, append=True)
    assert (await call(context, "read_file", path="memory/2026-01-01.md")).text == "one\ntwo\nthree"


async def test_a_wrong_place_is_refused_with_the_right_one(context: ToolContext, workspace: Path):
    output = await call(context, "write_file", path="notes.txt", content="x")
    assert output.outcome == "denied" and "files/notes.txt" in output.text
    assert not (workspace / "notes.txt").exists()


async def test_part_of_a_file_says_how_to_go_on(context: ToolContext):
    await call(context, "write_file", path="files/a", content="".join(f"line {n}\n" for n in range(1, 101)))
    part = await call(context, "read_file", path="files/a", start_line=10, lines=2)
    assert part.text == "line 10\nline 11\n[lines 10-11 of 100; go on with start_line=12]"
    assert (await call(context, "read_file", path="files/a", start_line=-1)).text == "line 100\n[lines 100-100 of 100]"
    assert "no lines there; the file has 100" in (await call(context, "read_file", path="files/a", start_line=500)).text


async def test_a_long_file_fits_the_output_limit(workspace: Path):
    context = tool_context(workspace, AgentConfig.model_validate({"running": {"tool_output_chars": 1_000}}))
    await call(context, "write_file", path="files/a", content="some words\n" * 1_000)
    output = await call(context, "read_file", path="files/a")
    assert len(output.text) <= 1_000
    assert "go on with start_line=" in output.text


async def test_of_a_very_large_file_the_end_can_be_read(context: ToolContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "READ_BYTES", 100)
    await context.files.write("files/log", b"".join(b"entry %03d\n" % n for n in range(100)))
    output = await call(context, "read_file", path="files/log", start_line=-2)
    assert output.text.startswith("entry 098\nentry 099\n[of 1,000 bytes only the last 100 are looked at")


async def test_files_that_are_no_text_or_no_utf_8_are_told(context: ToolContext):
    await context.files.write("files/a.png", b"\x89PNG\r\n\x1a\n" + b"x" * 2_000)
    await context.files.write("files/old.txt", "café".encode("latin-1"))
    await context.files.write("files/empty", b"")
    png = await call(context, "read_file", path="files/a.png")
    assert (png.outcome, png.text) == ("error", "'files/a.png' is no text: image/png, 2,008 bytes")
    assert "caf\ufffd\n[not UTF-8" in (await call(context, "read_file", path="files/old.txt")).text
    assert (await call(context, "read_file", path="files/empty")).text == "[the file is empty]"
    assert (await call(context, "edit_file", path="files/a.png", old="x", new="y")).outcome == "error"


async def test_a_missing_file_is_an_answer(context: ToolContext):
    output = await call(context, "read_file", path="files/none.txt")
    assert output.outcome == "error" and "files/none.txt" in output.text
    assert "write_file makes one" in (await call(context, "edit_file", path="files/none", old="a", new="b")).text


async def test_closed_places_are_denied(context: ToolContext, workspace: Path):
    (workspace / ".state" / "sessions.db").write_text("TOP SECRET")
    os.link(workspace.parent.parent / "secrets.json", workspace / "files" / "copy")
    for path in (".state/sessions.db", "files/copy"):
        for name, more in (("read_file", {}), ("write_file", {"content": "x"}), ("edit_file", {"old": "S", "new": ""})):
            output = await call(context, name, path=path, **more)
            assert output.outcome == "denied" and "SECRET" not in output.text
    assert (await call(context, "read_file", path="files/../agent.json")).outcome == "error"
    assert "SECRET" in (workspace.parent.parent / "secrets.json").read_text()


async def test_an_edit_says_where_it_was(context: ToolContext, workspace: Path):
    (workspace / "files" / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    output = await call(context, "edit_file", path="files/a.txt", old="two", new="2")
    assert output.text == "edited files/a.txt, line 2"
    assert (workspace / "files" / "a.txt").read_bytes() == b"one\r\n2\r\n"


async def test_parallel_edits_of_one_file_all_count(context: ToolContext):
    await call(context, "write_file", path="files/n", content="".join(f"[{n}]" for n in range(20)))
    edits = [call(context, "edit_file", path="files/n", old=f"[{n}]", new=f"{n},") for n in range(20)]
    assert {output.outcome for output in await asyncio.gather(*edits)} == {"ok"}
    assert (await call(context, "read_file", path="files/n")).text == "".join(f"{n}," for n in range(20))


@posix_only
async def test_a_listing_shows_sizes_links_and_nothing_closed(context: ToolContext, workspace: Path):
    await call(context, "write_file", path="files/a.md", content="12345")
    os.utime(workspace / "files" / "a.md", (0, 0))
    (workspace / "files" / "door").symlink_to("/")
    (workspace / "files" / "sub").mkdir()
    assert (await call(context, "list_files", path="files")).text == (
        "files/a.md  5 bytes  1970-01-01 00:00Z\nfiles/door (link)\nfiles/sub/"
    )
    everything = (await call(context, "list_files", depth=5)).text
    assert ".state" not in everything and "files/door/" not in everything and "files/a.md" in everything
    assert (await call(context, "list_files", path="skills")).text == "[nothing there]"
    assert (await call(context, "list_files", path="files", glob="*.md")).text.startswith("files/a.md")


async def test_a_listing_is_bounded(context: ToolContext, workspace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "LISTED", 5)
    for number in range(20):
        (workspace / "files" / f"{number:02}").touch()
    assert (await call(context, "list_files", path="files")).text.count("\n") == 5


async def test_a_search_gives_file_line_and_text(context: ToolContext, workspace: Path):
    await call(context, "write_file", path="files/a.md", content="alpha\nBeta 12\ngamma\n")
    await call(context, "write_file", path="memory/b.md", content="beta 3")
    (workspace / "files" / "w.txt").write_bytes(b"x\r\nbeta\r\n")
    found = await call(context, "search_files", pattern=r"(?i)beta( \d+)?$")
    assert found.text.split("\n") == [
        "files/a.md:2: Beta 12",
        "files/w.txt:2: beta",
        "memory/b.md:1: beta 3",
        "[3 matching lines in 4 files]",
    ]
    only = await call(context, "search_files", pattern="beta", ignore_case=True, path="files", glob="*.md")
    assert only.text == "files/a.md:2: Beta 12\n[1 matching lines in 1 files]"
    assert "files/a.md:3: gamma" in (await call(context, "search_files", pattern="gamma", path="files/a.md")).text


async def test_a_search_matches_within_lines_only(context: ToolContext):
    await call(context, "write_file", path="files/a", content="one\ntwo\n\nthree\n")
    assert "[0 matching" in (await call(context, "search_files", pattern=r"one\stwo")).text
    found = (await call(context, "search_files", pattern="^[^x]*$", path="files")).text
    assert [line.split(":")[1] for line in found.split("\n")[:-1]] == ["1", "2", "3", "4"]


async def test_literal_text_is_no_pattern(context: ToolContext):
    await call(context, "write_file", path="files/a", content="f(x) [1] é")
    assert "files/a:1" in (await call(context, "search_files", pattern="f(x) [1] é", literal=True)).text
    broken = await call(context, "search_files", pattern="f(x")
    assert broken.outcome == "error" and "literal=true" in broken.text
    assert "look-around" in (await call(context, "search_files", pattern="(?=a)b")).text


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(\w+\s?)*$", "(x+x+)+y", "(?:(?:(?:x{1000}){1000}){1000})y", r"\p{L}{1,1000}" * 20]
)
async def test_no_pattern_takes_long_or_much(context: ToolContext, pattern: str):
    await call(context, "write_file", path="files/a", content="a" * 50_000 + "!\n" + "x" * 50_000 + "word " * 10_000)
    began = time.thread_time()
    async with asyncio.timeout(20):
        await call(context, "search_files", pattern=pattern)
    assert time.thread_time() - began < 0.5


async def test_a_search_is_bounded_and_says_so(context: ToolContext, workspace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "FILE_BYTES", 2_000)
    await call(context, "write_file", path="files/a", content="hit\n" * 100)
    await call(context, "write_file", path="files/large", content="hit\n" * 1_000)
    (workspace / "files" / "binary").write_bytes(b"hit\0")
    (workspace / "files" / ".git").mkdir()
    (workspace / "files" / ".git" / "hit").write_text("hit")
    few = (await call(context, "search_files", pattern="hit", path="files", max_results=3)).text
    assert few.count("files/a:") == 3 and "there are more" in few
    assert (
        "not searched: 1 binary, 1 too large"
        in (await call(context, "search_files", pattern="hit", path="files", max_results=500)).text
    )


async def test_a_long_line_is_shown_around_the_match(context: ToolContext):
    await call(context, "write_file", path="files/a", content="é" * 5_000 + "needle" + "ü" * 5_000)
    text = (await call(context, "search_files", pattern="needle")).text
    assert "needle" in text and len(text) < 500 and "\ufffd" not in text


@posix_only
async def test_a_search_reads_no_secret_through_links(context: ToolContext, workspace: Path):
    os.link(workspace.parent.parent / "secrets.json", workspace / "files" / "hard")
    (workspace / "files" / "soft").symlink_to("../../../secrets.json")
    (workspace / ".state" / "x").write_text("TOP SECRET")
    await call(context, "write_file", path="files/mine", content="no SECRET here")
    assert (await call(context, "search_files", pattern="SECRET")).text.split("\n")[0] == "files/mine:1: no SECRET here"
    assert "files/hard" not in (await call(context, "search_files", pattern="KEY")).text


async def test_a_search_without_a_waiter_ends(workspace: Path):
    budget, begun, ended = Budget(SimulatedClock()), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        while not budget.over:
            time.sleep(0.001)
        loop.call_soon_threadsafe(ended.set)

    task = asyncio.create_task(within(budget, work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()


async def test_time_ends_a_search(context: ToolContext, workspace: Path):
    clock = SimulatedClock()
    budget = Budget(clock, seconds=5)
    assert not budget.over
    await clock.advance(6)
    assert budget.over
    walk = search.Walk(context.files.reader(), budget)
    found = search.search(walk, "files", search.compiled("x", literal=True, ignore_case=False), glob=None, limit=5)
    assert found.files == 0


@posix_only
async def test_a_read_only_workspace_is_an_answer_not_a_crash(context: ToolContext, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **kwargs: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("qworkspace.chat.tools.beneath._write", refuse)
    output = await call(context, "write_file", path="files/a", content="x")
    assert output.outcome == "error" and "read-only" in output.text
