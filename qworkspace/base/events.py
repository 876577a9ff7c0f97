"""Event logs that many may follow, leave and re-join."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.errors import QworkspaceError


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `seq` counts up within its log, without gaps."""

    seq: int
    type: str
    at: datetime
    data: dict[str, Any] = field(default_factory=dict)


class TooSlow(QworkspaceError):
    """A reader fell behind the ring; what it missed is gone, it may re-join with the last id it saw."""

    code = "reader_too_slow"


class EventLog:
    """A ring of the newest events. A follower is only a position in it, so a slow one costs nothing."""

    def __init__(self, clock: Clock, *, size: int = 1000, first: int = 1) -> None:
        self._clock = clock
        self._ring: deque[Event] = deque(maxlen=size)
        self._first = first
        self._next = first
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[Event], None]] = []

    @property
    def last(self) -> int:
        """The number of the newest event; before the first one, one less than where counting begins."""
        return self._next - 1

    @property
    def first(self) -> int:
        """The number at which counting began: nothing was ever before it."""
        return self._first

    @property
    def oldest(self) -> int:
        """The number of the oldest event that is still held."""
        return self._ring[0].seq if self._ring else self._next

    @property
    def closed(self) -> bool:
        return self._closed

    def append(self, type: str, data: dict[str, Any] | None = None) -> Event:
        """Add an event and wake the followers."""
        event = Event(self._next, type, self._clock.now(), data or {})
        self._next += 1
        self._ring.append(event)
        for listener in list(self._listeners):
            listener(event)
        self._wake()
        return event

    def close(self) -> None:
        """No more events: followers end after the last one."""
        self._closed = True
        self._wake()

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` at each event, at once; the returned function ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def since(self, after: int) -> list[Event]:
        """The held events later than `after`; `TooSlow` when some of them are gone."""
        if max(after + 1, self._first) < self.oldest:
            raise TooSlow(f"events {after + 1} to {self.oldest - 1} are no longer held", oldest=self.oldest)
        fresh = list(takewhile(lambda event: event.seq > after, reversed(self._ring)))
        fresh.reverse()
        return fresh

    async def follow(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events later than `after` (default: from now on), until the log closes."""
        async for events in self.batches(after):
            for event in events:
                yield event

    async def batches(self, after: int | None = None) -> AsyncIterator[list[Event]]:
        """Like `follow`, with all that is ready in one list: a slow reader gets fewer and longer ones."""
        position = self.last if after is None else after
        while True:
            events = self.since(position)
            if events:
                position = events[-1].seq
                yield events
            elif self._closed:
                return
            else:
                await self._changed()

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class EventBus:
    """The daemon's own log: `publish` with a type like `turn.started` and who it concerns."""

    def __init__(self, clock: Clock, *, size: int = 2000) -> None:
        self.log = EventLog(clock, size=size)

    def publish(self, type: str, *, agent_id: str | None = None, **data: Any) -> Event:
        """Tell everyone. `data` holds JSON values only and no secret."""
        return self.log.append(type, {"agent_id": agent_id, **data} if agent_id is not None else data)
