"""Each way an editor saves, on events and on polling; what is no edit; where the system gives no events."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from watchfiles import _rust_notify

from qworkspace.base.clock import SystemClock
from qworkspace.base.events import EventBus
from qworkspace.base.mounts import without_events
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.config.models import WatchConfig
from qworkspace.workspace.snapshot import Snapshot, agent_shape, differences, look, matters
from qworkspace.workspace.watch import Watch, WatchMode

Save = Callable[[Path, str], None]
SHAPE = agent_shape(MemoryConfig())


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def in_two_halves(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        os.fsync(file.fileno())
        file.write(text[len(text) // 2 :])


def rename_over(path: Path, text: str) -> None:
    new = path.with_suffix(".tmp~")
    new.write_text(text)
    new.replace(path)


def remove_and_create(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)


def same_size_and_time(path: Path, text: str) -> None:
    facts = path.stat()
    path.write_text(text.ljust(facts.st_size)[: facts.st_size])
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


SAVES = (in_place, in_two_halves, rename_over, remove_and_create, same_size_and_time)


class Bench:
    """A watch over one agent's directory, and what it has told."""

    def __init__(self, root: Path, mode: str, *, interval: float = 0.05, debounce: float = 0.15) -> None:
        clock = SystemClock()
        self.root = root
        self.threads = Threads(2)
        self.problems = Problems(clock, EventBus(clock))
        settings = WatchConfig.model_validate({"mode": mode, "debounce": debounce, "poll_interval": interval})
        self.watch = Watch(settings, clock=clock, threads=self.threads, problems=self.problems)
        self.told: list[set[str]] = []
        self.on_told: Callable[[], None] = lambda: None
        self._news = asyncio.Event()

    async def start(self) -> None:
        self.watch.start()
        await self.watch.follow("anna", self.root, SHAPE, self._found)
        while self.watch.mode is WatchMode.OFF:
            await asyncio.sleep(0.01)

    async def until(self, name: str) -> None:
        """Wait until that name was told, and forget what was told so far."""
        async with asyncio.timeout(10):
            while not any(name in names for names in self.told):
                self._news.clear()
                await self._news.wait()
        self.told.clear()

    async def stop(self) -> None:
        await self.watch.stop()
        self.threads.close()

    async def _found(self, names: set[str]) -> None:
        self.told.append(names)
        self.on_told()
        self._news.set()


@pytest.fixture(params=["events", "poll"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    root = tmp_path / "anna"
    (root / "drivers").mkdir(parents=True)
    (root / "agent.json").write_text('{"id": "anna", "name": "one"}')
    found = Bench(root, request.param)
    await found.start()
    yield found
    await found.stop()


@pytest.mark.parametrize("save", SAVES)
async def test_every_way_of_saving_is_seen_again_and_again(bench: Bench, save: Save) -> None:
    for name in ("two", "six", "ten"):
        save(bench.root / "agent.json", f'{{"id": "anna", "name": "{name}"}}')
        await bench.until("agent.json")


async def test_a_touch_and_a_rewrite_of_the_same_bytes_are_no_edits(bench: Bench) -> None:
    (bench.root / "agent.json").touch()
    in_place(bench.root / "agent.json", '{"id": "anna", "name": "one"}')
    in_place(bench.root / "drivers" / "mail.json", "{}")
    await bench.until("drivers/mail.json")
    assert not any("agent.json" in names for names in bench.told)


async def test_directories_that_come_later_are_followed(bench: Bench) -> None:
    (bench.root / "skills" / "cook").mkdir(parents=True)
    in_place(bench.root / "skills" / "cook" / "SKILL.md", "one")
    await bench.until("skills/cook/SKILL.md")
    await asyncio.sleep(0.3)
    in_place(bench.root / "skills" / "cook" / "SKILL.md", "two")
    await bench.until("skills/cook/SKILL.md")
    (bench.root / "skills" / "cook" / "SKILL.md").unlink()
    await bench.until("skills/cook/SKILL.md")


async def test_what_nobody_follows_any_more_is_not_told(bench: Bench) -> None:
    bench.watch.leave("anna")
    in_place(bench.root / "agent.json", "{}")
    in_place(bench.root / "SOUL.md", "x")
    bench.watch.look_again()
    await asyncio.sleep(0.4)
    assert bench.told == []


async def test_a_look_that_fails_is_shown_until_one_succeeds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Snapshot:
        raise OSError("no such luck")

    monkeypatch.setattr("qworkspace.workspace.watch.look", failing)
    bench.watch.look_again()
    async with asyncio.timeout(10):
        while not bench.problems.of():
            await asyncio.sleep(0.02)
    assert "are not noticed: no such luck" in bench.problems.of()[0].message
    monkeypatch.setattr("qworkspace.workspace.watch.look", look)
    in_place(bench.root / "SOUL.md", "x")
    await bench.until("SOUL.md")
    assert bench.problems.of() == []


async def test_other_files_cost_nothing(bench: Bench) -> None:
    deep = bench.root / "files" / "node_modules"
    deep.mkdir(parents=True)

    def fill() -> Snapshot:
        for number in range(300):
            (deep / f"{number}.js").write_text("x")
        return look(bench.root, SHAPE, Snapshot())

    snapshot = await asyncio.to_thread(fill)
    assert set(snapshot.files) == {"agent.json"}
    assert all("node_modules" not in name for name in snapshot.directories)


async def test_a_busy_file_beside_it_does_not_hold_an_edit_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "events")
    await bench.start()
    busy = asyncio.create_task(_keep_writing(tmp_path / "server.log"))
    in_place(tmp_path / "agent.json", "{}")
    await bench.until("agent.json")
    busy.cancel()
    await bench.stop()


async def _keep_writing(path: Path) -> None:
    while True:
        in_place(path, "x")
        await asyncio.sleep(0.02)


def test_only_events_that_can_change_something_matter() -> None:
    root = Path("/w")
    notes = ("memory", "memory/2026-01-01.md", "memory/2026", "memory/2026/01-01.md", "resources/a.pdf")
    for name in ("agent.json", "SOUL.md", *notes, "skills/a", "skills/a/SKILL.md", "plugins"):
        assert matters(root, SHAPE, root / name), name
    beside = ("ticks", "files", "files/x.md", "memory/2026/x.tmp", "memory/2026/01/x.md", "resources/a/b.pdf")
    for name in (*beside, "skills/a/b/SKILL.md", "drivers/a/b.json", ".state"):
        assert not matters(root, SHAPE, root / name), name
    assert matters(root, SHAPE, Path("/elsewhere/agent.json"))


async def test_a_link_is_followed_to_where_it_is_edited(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "agent.json").write_text("one")
    root = tmp_path / "anna"
    root.mkdir()
    (root / "agent.json").symlink_to(tmp_path / "dotfiles" / "agent.json")
    bench = Bench(root, "events")
    await bench.start()
    in_place(tmp_path / "dotfiles" / "agent.json", "two")
    await bench.until("agent.json")
    await bench.stop()


async def test_without_events_it_polls_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(_rust_notify, "RustNotify", refuse)
    bench = Bench(tmp_path, "auto")
    await bench.start()
    assert bench.watch.mode is WatchMode.POLL
    assert "inotify watch limit reached" in bench.problems.of()[0].message
    in_place(tmp_path / "agent.json", "{}")
    await bench.until("agent.json")
    await bench.stop()


def test_a_network_file_system_is_known_by_its_name(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nhost:/x {tmp_path}/far\\040away nfs4 rw 0 0\n")
    near, far = tmp_path / "near", tmp_path / "far away" / "deep"
    assert without_events([str(near)], mounts) is None
    assert without_events([str(near), str(far)], mounts) == (str(far), "nfs4")
    assert without_events([str(far)], tmp_path / "absent") is None


def test_snapshots_differ_by_content_only(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text("{}")
    before = look(tmp_path, SHAPE, Snapshot())
    os.utime(tmp_path / "agent.json", (1, 1))
    assert differences(before, look(tmp_path, SHAPE, before)) == set()
    (tmp_path / "agent.json").write_text("[]")
    os.utime(tmp_path / "agent.json", (1, 1))
    assert differences(before, look(tmp_path, SHAPE, before)) == {"agent.json"}
    (tmp_path / "agent.json").unlink()
    assert differences(before, look(tmp_path, SHAPE, before)) == {"agent.json"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_links_in_circles_and_out_of_reach_hide_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "circle.md").symlink_to("circle.md")
    (folder / "dangling.md").symlink_to("nowhere.md")
    (folder / "itself").symlink_to(".")
    os.mkfifo(folder / "pipe.md")
    (folder / "note.md").write_text("- a\n")
    assert set(look(tmp_path, SHAPE, Snapshot()).files) == {"memory/note.md", "memory/itself/note.md"}


def test_a_second_edit_that_the_file_times_do_not_tell_is_found_at_the_next_look(tmp_path: Path) -> None:
    """Within one tick of its clock a file system gives two edits the same times; a mapped file shows it anywhere."""
    (tmp_path / "agent.json").write_text("one")
    with (tmp_path / "agent.json").open("r+b") as file, mmap.mmap(file.fileno(), 3) as content:
        content[:] = b"two"
        before = look(tmp_path, SHAPE, Snapshot())
        content[:] = b"six"
        assert differences(before, look(tmp_path, SHAPE, before)) == {"agent.json"}


@pytest.mark.parametrize("mode", ["events", "poll"])
async def test_a_file_that_is_being_written_is_told_when_it_is_whole(tmp_path: Path, mode: str) -> None:
    bench = Bench(tmp_path, mode, debounce=0.6)
    await bench.start()
    path, text = bench.root / "agent.json", '{"id": "anna", "name": "written slowly"}'
    told: list[str] = []
    bench.on_told = lambda: told.append(path.read_text())
    for end in range(8, len(text) + 8, 8):
        in_place(path, text[:end])
        await asyncio.sleep(0.06)
    await bench.until("agent.json")
    await bench.stop()
    assert told == [text]


async def test_another_interval_counts_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "poll", interval=3600)
    await bench.start()
    bench.watch.configure(WatchConfig.model_validate({"mode": "poll", "poll_interval": 0.05, "debounce": 0.05}))
    in_place(tmp_path / "agent.json", "{}")
    await bench.until("agent.json")
    await bench.stop()


async def test_an_edit_during_a_slow_beginning_of_the_watch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, slow = _rust_notify.RustNotify, threading.Event()

    def late(*arguments: Any) -> object:
        slow.wait(10)
        return begin(*arguments)

    monkeypatch.setattr(_rust_notify, "RustNotify", late)
    bench = Bench(tmp_path, "events")
    starting = asyncio.create_task(bench.start())
    await asyncio.sleep(0.8)
    in_place(tmp_path / "agent.json", "{}")
    await asyncio.sleep(0.1)
    slow.set()
    await starting
    await bench.until("agent.json")
    await bench.stop()
