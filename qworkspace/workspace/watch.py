"""The one watch over the files that people edit, for the whole home; polling where the system gives no events.

It belongs to the daemon, not to the workspaces that its findings replace.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.mounts import without_events
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Debounce, Tasks, Threads
from qworkspace.base.waiting import happens_within
from qworkspace.config.models import WatchConfig
from qworkspace.workspace.snapshot import Shape, Snapshot, differences, look, matters

logger = logging.getLogger(__name__)

STEP = 0.1
"""Seconds in which the system's events are collected before they are told."""
GATHER = 0.3
"""Seconds in which changes of what there is to watch are collected: agents that start together are one change."""
OVERLAP = 0.5
"""Seconds that a replaced watch goes on beside its successor, so that no event falls in between."""
RETRY = 60.0
"""Seconds of polling before events are tried again."""
COLLECTED = 1000
"""Milliseconds after which events are told even if they do not cease."""
MOST_LOOKS = 10
"""Looks at a file that is being written before its state is told in any case."""
PROBLEM = "watch"

Found = Callable[[set[str]], Awaitable[None]]


class WatchMode(StrEnum):
    """How edits are noticed. `Watch` is the one writer."""

    OFF = "off"
    EVENTS = "events"
    POLL = "poll"


@dataclass(slots=True)
class Place:
    """One followed directory: its last state, and who hears of differences."""

    root: Path
    shape: Shape
    found: Found
    debounce: Debounce
    seen: Snapshot = field(default_factory=Snapshot)
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Watch:
    """Follows directories by key. Whoever follows is told the names that differ, once they have been quiet."""

    def __init__(self, settings: WatchConfig, *, clock: Clock, threads: Threads, problems: Problems) -> None:
        self.mode = WatchMode.OFF
        self.on_mode: Callable[[WatchMode], None] = lambda mode: None
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._problems = problems
        self._places: dict[str, Place] = {}
        self._tasks = Tasks("watch")
        self._changed = asyncio.Event()
        self._watching: Eyes | None = None
        self._eyes: set[Eyes] = set()
        self._watched: dict[str, int] = {}

    def configure(self, settings: WatchConfig) -> None:
        """Go on with other settings."""
        if settings != self._settings:
            self._settings = settings
            for place in self._places.values():
                place.debounce.seconds = self._quiet()
            self._watched = {}
            self._changed.set()

    def start(self) -> None:
        """Begin to watch, in the background."""
        self._tasks.start(self._run(), name="run")

    async def stop(self) -> None:
        """End the watch and its thread. Idempotent."""
        self._places.clear()
        await self._tasks.close("the watch ends")
        for eyes in list(self._eyes):
            await self._close(eyes)
        self._watching = None
        self._become(WatchMode.OFF)

    async def follow(self, key: str, root: Path, shape: Shape, found: Found) -> None:
        """Tell `found` about edits below `root` from now on; what is there now is no edit."""
        debounce = Debounce(self._quiet(), lambda: self._look(key), clock=self._clock, tasks=self._tasks)
        place = Place(root, shape, found, debounce)
        place.seen = await self._threads.run(look, root, shape, Snapshot())
        self._places[key] = place
        self._changed.set()

    def leave(self, key: str) -> None:
        """Follow it no longer. Unknown keys are no error."""
        if self._places.pop(key, None) is not None:
            self._problems.clear(f"{PROBLEM}/{key}")
            self._changed.set()

    def look_again(self) -> None:
        """Compare everything with what was seen last, as if each file had been touched."""
        for place in self._places.values():
            place.debounce.poke()

    def _quiet(self) -> float:
        """Seconds that are left of the quiet time once the system has told of an edit."""
        return max(0.0, self._settings.debounce - STEP)

    async def _look(self, key: str) -> None:
        place = self._places.get(key)
        if place is None:
            return
        async with place.looking:
            try:
                seen = await self._present(place)
            except Exception as error:
                logger.exception("edits in %s cannot be followed", place.root)
                self._problems.report(f"{PROBLEM}/{key}", f"edits in '{place.root}' are not noticed: {error}")
                return
            self._problems.clear(f"{PROBLEM}/{key}")
            names = differences(place.seen, seen)
            if seen.directories != place.seen.directories:
                self._changed.set()
            place.seen = seen
            if names and self._places.get(key) is place:
                await self._tell(place, names)

    async def _present(self, place: Place) -> Snapshot:
        """Its state; when polling, once two looks agree, as no event tells that a file is still being written."""
        seen = await self._threads.run(look, place.root, place.shape, place.seen)
        if self.mode is not WatchMode.POLL or not differences(place.seen, seen):
            return seen
        for _ in range(MOST_LOOKS):
            before = seen
            await self._clock.sleep(self._settings.debounce)
            seen = await self._threads.run(look, place.root, place.shape, before)
            if not differences(before, seen):
                break
        return seen

    async def _tell(self, place: Place, names: set[str]) -> None:
        try:
            await place.found(names)
        except Exception:
            logger.exception("an edit in %s could not be followed: %s", place.root, ", ".join(sorted(names)))

    async def _run(self) -> None:
        while True:
            if await self._use_events():
                await self._changed.wait()
                await self._clock.sleep(GATHER)
            else:
                await self._poll()

    async def _use_events(self) -> bool:
        """Let a new thread watch what there is to watch now. False when the system gives no events."""
        self._changed.clear()
        wanted = {path: inode for place in self._places.values() for path, inode in place.seen.directories.items()}
        if self._watching is not None and wanted == self._watched and self._watching.alive:
            return True
        reason = await self._threads.run(self._why_not, list(wanted))
        if reason is None:
            reason = await self._replace(wanted)
        if reason is None:
            self._become(WatchMode.EVENTS)
            self._problems.clear(PROBLEM)
            return True
        self._become(WatchMode.POLL)
        if self._settings.mode != "poll":
            told = f"edits are noticed by polling every {self._settings.poll_interval:g} s: {reason}"
            self._problems.report(PROBLEM, told, severity="warning")
        return False

    def _become(self, mode: WatchMode) -> None:
        self.mode = mode
        self.on_mode(mode)

    def _why_not(self, paths: list[str]) -> str | None:
        if self._settings.mode == "poll":
            return "it is configured so"
        silent = without_events(paths) if self._settings.mode == "auto" else None
        return f"{silent[0]} is on {silent[1]}, which gives no events" if silent is not None else None

    async def _replace(self, wanted: dict[str, int]) -> str | None:
        eyes = Eyes(wanted, self._told, asyncio.get_running_loop())
        self._eyes.add(eyes)
        reason = await eyes.open(self._threads)
        before, self._watching = self._watching, eyes if reason is None else None
        known, self._watched = self._watched, wanted if reason is None else {}
        if before is not None:
            self._tasks.start(self._overlap(before), name="overlap")
        self._look_into(path for path, inode in self._watched.items() if known.get(path) != inode)
        return reason

    def _look_into(self, paths: Iterable[str]) -> None:
        """Compare the places of these directories with what was seen of them last."""
        folders = set(paths)
        for place in self._places.values():
            if not folders.isdisjoint(place.seen.directories):
                place.debounce.poke()

    async def _overlap(self, before: Eyes) -> None:
        await self._clock.sleep(OVERLAP)
        await self._close(before)

    async def _close(self, eyes: Eyes) -> None:
        eyes.ask_to_end()
        await self._threads.run(eyes.join)
        self._eyes.discard(eyes)

    async def _poll(self) -> None:
        """Look at everything from time to time; events are tried again after a minute."""
        until = self._clock.monotonic() + RETRY
        settings = self._settings
        while settings is self._settings and (settings.mode == "poll" or self._clock.monotonic() < until):
            await happens_within(self._changed, settings.poll_interval, self._clock)
            self._changed.clear()
            for key, place in self._places.items():
                if not place.looking.locked():
                    self._tasks.start(self._look(key), name=f"poll {key}")

    def _told(self, paths: Iterable[str] | None) -> None:
        """What a thread has noticed, in the loop; None: it has ended by itself."""
        if paths is None:
            self._changed.set()
            return
        noticed = [Path(path) for path in paths]
        for place in self._places.values():
            folders = place.seen.directories
            near = (path for path in noticed if str(path.parent) in folders or str(path) in folders)
            if any(matters(place.root, place.shape, path) for path in near):
                place.debounce.poke()


class Eyes:
    """A thread in which the system tells of changes in some directories, each by itself."""

    def __init__(
        self,
        directories: Iterable[str],
        told: Callable[[Iterable[str] | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._directories = [path for path in directories if Path(path).is_dir()]
        self._told = told
        self._loop = loop
        self._end = threading.Event()
        self._begun = threading.Event()
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def open(self, threads: Threads) -> str | None:
        """Begin; once changes are noticed, None, or why that is impossible."""
        self._thread.start()
        await threads.run(self._begun.wait)
        return self._error

    def ask_to_end(self) -> None:
        self._end.set()

    def join(self) -> None:
        """Wait for the end of the thread. Blocking."""
        self._thread.join()

    def _run(self) -> None:
        # Heavy: its library is compiled, and imported in this thread.
        from watchfiles import _rust_notify

        try:
            # Its documented backend rather than `watch`: that does not tell when changes begin to be noticed.
            with _rust_notify.RustNotify(self._directories, False, False, 0, False, False) as notify:
                self._begun.set()
                while not isinstance(batch := notify.watch(COLLECTED, round(STEP * 1000), 0, self._end), str):
                    self._tell([path for _, path in batch])
        except Exception as error:
            logger.warning("the system gives no events: %s", error)
            self._error = f"{type(error).__name__}: {error}"
        finally:
            self._begun.set()
            if not self._end.is_set():
                self._tell(None)

    def _tell(self, paths: list[str] | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._told, paths)
        except RuntimeError:
            logger.debug("the loop has ended before the watch")
