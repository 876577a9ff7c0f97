"""Those who wait until a session's tasks are done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Waiters:
    """By session; each gets the number of facts that were kept while it waited, or the first failure."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[asyncio.Future[int], list[int]]]] = {}

    @contextmanager
    def waiting(self, session_id: str) -> Iterator[asyncio.Future[int]]:
        """A future that is done with the session's last task."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry: tuple[asyncio.Future[int], list[int]] = (waiter, [])
        self._waiting.setdefault(session_id, []).append(entry)
        try:
            yield waiter
        finally:
            entries = self._waiting[session_id]
            entries.remove(entry)
            if not entries:
                del self._waiting[session_id]
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()  # mark as seen: nobody waits for it any more

    def done(self, session_id: str, facts: int, *, last: bool) -> None:
        for waiter, kept in self._waiting.get(session_id, []):
            kept.append(facts)
            if last and not waiter.done():
                waiter.set_result(sum(kept))

    def fail(self, error: Exception, session_id: str | None = None) -> None:
        """Tell those of one session, or all."""
        for name, entries in self._waiting.items():
            for waiter, _ in entries:
                if not waiter.done() and session_id in (None, name):
                    waiter.set_exception(error)
