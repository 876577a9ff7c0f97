"""Owned tasks: everything that runs beside the caller has a name and somebody who ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from qworkspace.base.clock import Clock

T = TypeVar("T")
P = ParamSpec("P")
logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner. A task that fails is logged and told to `on_error`, never silent."""

    def __init__(self, owner: str, *, on_error: Callable[[str, BaseException], None] | None = None) -> None:
        self.owner = owner
        self._on_error = on_error
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `coro` as a task `owner/name` until it ends or the owner closes."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"{self.owner} is closed; {name!r} cannot start")
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.owner}/{name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, reason: str = "closed") -> None:
        """Cancel all tasks and wait until they have ended. Idempotent."""
        self._closed = True
        while pending := [task for task in self._running if task is not asyncio.current_task()]:
            for task in pending:
                task.cancel(f"{self.owner}: {reason}")
            await asyncio.wait(pending)
            self._running.difference_update(pending)

    def __len__(self) -> int:
        return len(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)
            if self._on_error is not None:
                self._on_error(task.get_name(), error)


class Threads:
    """One bounded pool for blocking work; `run` keeps it off the event loop."""

    def __init__(self, workers: int = 6, name: str = "worker") -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function(*args, **kwargs)`, computed in a thread."""
        return await self.submit(partial(copy_context().run, function, *args, **kwargs))

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `function()` in a thread, without the caller's context. What has begun cannot be cancelled."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Wait for what runs and end the threads. Idempotent."""
        self._pool.shutdown(wait=True)


class SingleFlight(Generic[T]):
    """Concurrent callers with one key share one call; each gets its result or its error."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[T]] = {}

    async def run(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Call `make` unless a call for `key` is under way. Cancelling a waiter does not cancel the call."""
        pending = self._pending.get(key)
        if pending is None:
            pending = asyncio.ensure_future(make())
            self._pending[key] = pending
            pending.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(pending)

    def _forget(self, key: str, done: asyncio.Future[T]) -> None:
        if self._pending.get(key) is done:
            del self._pending[key]
        if not done.cancelled():
            done.exception()  # mark as seen: every waiter may have been cancelled


class Debounce:
    """Calls `action` once `seconds` after the last `poke`, one call at a time.

    Pokes that never cease do not keep it from acting: it acts after ten times `seconds` in any case.
    """

    def __init__(self, seconds: float, action: Callable[[], Awaitable[None]], *, clock: Clock, tasks: Tasks) -> None:
        self.seconds = seconds
        self._action = action
        self._clock = clock
        self._tasks = tasks
        self._pokes = 0
        self._runner: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """Note a change; a burst of pokes leads to one call after the last of them."""
        self._pokes += 1
        if self._runner is None or self._runner.done():
            self._runner = self._tasks.start(self._run(), name="debounce")

    async def _run(self) -> None:
        waited = 0.0
        while True:
            seen = self._pokes
            await self._clock.sleep(self.seconds)
            waited += self.seconds
            if seen != self._pokes and waited < self.seconds * 10:
                continue
            await self._action()
            waited = 0.0
            if seen == self._pokes:
                return
