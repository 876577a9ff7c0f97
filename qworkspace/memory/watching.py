"""Two seconds after a change: lines that an editor's save has swallowed, files that were displaced while open."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.errors import QworkspaceError
from qworkspace.memory.appending import Fresh
from qworkspace.memory.notefile import Displaced

logger = logging.getLogger(__name__)

WINDOW = 2.0  # seconds: an editor that read the note before a change has saved by then; a person takes longer
TICK = 0.25
PATIENCE = 60.0  # seconds of a disk that refuses
MOST = 20  # times that a line is put back

Signature = tuple[int, int, int]


@dataclass(slots=True)
class Followed:
    """A displaced file that somebody may still write to.

    `data` is what the note has of it, `last` what was read last, when the file looked like `stamp`.
    """

    old: Displaced
    data: bytes
    until: float
    last: bytes
    stamp: Signature | None

    def has_changed(self) -> bool:
        """Whether there is something that the note does not have yet. Blocking."""
        return self.last != self.data or self.stamp != stamp_of(self.old.descriptor)


class Watching:
    """What is fresh in a vault, looked after by `mend(name)` every quarter of a second until it is not."""

    def __init__(
        self,
        agent_id: str,
        clock: Clock,
        mend: Callable[[str], Coroutine[Any, Any, None]],
        failed: Callable[[str, str], None],
    ) -> None:
        """`mend(name)` looks after a note and lets go of what is no longer fresh, while nobody else changes it.

        `failed(name, reason)` is called when that cannot be done, with "" once it can again.
        """
        self._agent_id = agent_id
        self._clock = clock
        self._mend = mend
        self._failed = failed
        self._fresh: dict[str, list[Fresh]] = {}
        self._followed: dict[str, list[Followed]] = {}
        self._task: asyncio.Task[None] | None = None
        self._mending: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        """The notes that are looked after."""
        return list(dict.fromkeys([*self._fresh, *self._followed]))

    def fresh(self, name: str) -> list[Fresh]:
        return self._fresh.get(name, [])

    def followed(self, name: str) -> list[Followed]:
        return self._followed.get(name, [])

    def add(self, name: str, seq: int, expected: dict[bytes, int], *, age: float = 0.0) -> None:
        """Lines that were appended `age` seconds ago."""
        self._fresh.setdefault(name, []).append(Fresh(name, seq, self._clock.monotonic() + WINDOW - age, expected))
        self._begin()

    def follow(self, name: str, old: Displaced) -> None:
        """A file that a change has displaced; it is closed in time."""
        if old.descriptor is None or old.data is None:
            old.close()
            return
        until = self._clock.monotonic() + WINDOW
        self._followed.setdefault(name, []).append(Followed(old, old.data, until, old.data, None))
        self._begin()

    def accept(self, name: str, data: bytes | None) -> None:
        """The note was made `data` on purpose."""
        for one in self.fresh(name):
            one.accept(data)
        self._drop(name, lambda one: not one.expected)

    def renew(self, name: str) -> list[Fresh]:
        """Fresh lines were put back and are fresh again; those that were put back too often, which are given up."""
        until = self._clock.monotonic() + WINDOW
        for one in self.fresh(name):
            one.until, one.put_back = until, one.put_back + 1
        tired = [one for one in self.fresh(name) if one.put_back > MOST]
        self._drop(name, lambda one: one in tired)
        return tired

    def is_over(self, name: str) -> bool:
        """Whether the next look at the note is the last one for some line or displaced file."""
        now = self._clock.monotonic()
        return any(one.until <= now for one in self.fresh(name)) or any(one.until <= now for one in self.followed(name))

    def expire(self, name: str) -> bool:
        """The note was looked at: what is no longer fresh is left to itself. Whether there were lines that lasted."""
        now = self._clock.monotonic()
        lasted = any(one.until <= now for one in self.fresh(name))
        self._drop(name, lambda one: one.until <= now)
        for followed in [one for one in self.followed(name) if one.until <= now]:
            followed.old.close()
            self._followed[name].remove(followed)
        if not self.followed(name):
            self._followed.pop(name, None)
        return lasted

    async def close(self) -> None:
        """Look a last time, free everything. Idempotent."""
        for task in (self._task, self._mending):
            if task is not None:
                if task is self._task:
                    task.cancel()
                await asyncio.wait([task])
        self._task = None
        for name in self.names:
            await self._look(name)
        for followed in self._all_followed():
            followed.old.close()
        self._fresh.clear()
        self._followed.clear()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"vault/{self._agent_id}/fresh lines")

    async def _run(self) -> None:
        while self.names:
            await self._clock.sleep(TICK)
            for name in self.names:
                await self._look(name)

    async def _look(self, name: str) -> None:
        reason = ""
        try:
            await asyncio.shield(self._mended(name))
        except QworkspaceError as error:  # a full disk, a lock: the next look may do
            reason = error.message
        except Exception as error:
            logger.exception("looking after fresh lines of %r failed", name)
            reason = f"{type(error).__name__}: {error}"
        self._failed(name, reason)
        if reason and self._is_hopeless(name):
            self.expire(name)

    def _mended(self, name: str) -> asyncio.Task[None]:
        """A task of its own: what has begun is carried out, although the watching ends."""
        loop = asyncio.get_running_loop()
        self._mending = loop.create_task(self._mend(name), name=f"vault/{self._agent_id}/mending")
        return self._mending

    def _drop(self, name: str, which: Callable[[Fresh], bool]) -> None:
        kept = [one for one in self.fresh(name) if not which(one)]
        if kept:
            self._fresh[name] = kept
        else:
            self._fresh.pop(name, None)

    def _is_hopeless(self, name: str) -> bool:
        late = [*(one.until for one in self.fresh(name)), *(one.until for one in self.followed(name))]
        return self._clock.monotonic() > max(late, default=0.0) + PATIENCE

    def _all_followed(self) -> Iterator[Followed]:
        for followed in self._followed.values():
            yield from followed


def signature(path: Path) -> Signature | None:
    """Tells whether a file may have changed; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def stamp_of(descriptor: int | None) -> Signature | None:
    """The same of an open file; None when it is closed."""
    if descriptor is None:
        return None
    try:
        found = os.fstat(descriptor)
    except OSError:  # just now, by whoever holds the lock
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
