"""Serial lanes: blocking jobs in order, in the shared threads, several that waited together as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from qworkspace.base.tasks import Threads

C = TypeVar("C")
T = TypeVar("T")
BATCH = 64


@dataclass(slots=True, eq=False)
class Job(Generic[C, T]):
    """A work, who waits for it, and what came of it."""

    work: Callable[[C], T]
    waiter: asyncio.Future[T]
    result: T | None = None
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error

    def settle(self) -> None:
        """Tell the waiter, unless it has gone."""
        if self.waiter.done():
            return
        if self.error is not None:
            self.waiter.set_exception(self.error)
        else:
            self.waiter.set_result(cast(T, self.result))


class Lane(Generic[C]):
    """Runs jobs in order, in the shared threads, one batch at a time; what waits meanwhile is the next batch."""

    def __init__(self, threads: Threads, run: Callable[[list[Job[C, Any]]], None]) -> None:
        self._threads = threads
        self._run = run
        self._queue: list[Job[C, Any]] = []
        self._busy = False
        self._idle: list[asyncio.Future[None]] = []

    async def do(self, work: Callable[[C], T]) -> T:
        """The result of `work` once its batch has ended."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = Job(work, waiter)
        self._queue.append(job)
        if not self._busy:
            self._next()
        return await waiter

    async def idle(self) -> None:
        """Return when nothing runs and nothing waits."""
        if self._busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    def _next(self) -> None:
        batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
        self._busy = bool(batch)
        if not batch:
            self._tell_idle()
            return
        try:
            running = self._threads.submit(partial(self._run, batch))
        except RuntimeError as error:  # the threads have ended before this database was closed
            self._ended(batch, error)
        else:
            running.add_done_callback(lambda done: self._ended(batch, done.exception()))

    def _ended(self, batch: list[Job[C, Any]], crash: BaseException | None) -> None:
        for job in batch:
            if crash is not None:
                job.fail(crash)
            job.settle()
        self._next()

    def _tell_idle(self) -> None:
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
