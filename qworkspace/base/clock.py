"""The injected clock: nothing else in the package asks the system for the time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and sleep."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; zero or less yields once."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class SimulatedClock:
    """A clock that moves only when `advance` is awaited; sleepers wake in the order of their times."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move time on by `seconds`, waking each sleeper at its moment and letting it run."""
        end = self._elapsed + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            self._move_to(due)
            if not woken.done():
                woken.set_result(None)
            await _settle()
        self._move_to(end)

    def jump(self, seconds: float) -> None:
        """Change the wall clock only, as a person or a time server would; sleepers do not notice."""
        self._now += timedelta(seconds=seconds)

    def _move_to(self, elapsed: float) -> None:
        self._now += timedelta(seconds=elapsed - self._elapsed)
        self._elapsed = elapsed


async def _settle() -> None:
    """Let everything that is ready run: a woken task may wake others."""
    for _ in range(10):
        await asyncio.sleep(0)
