"""Waiting with a limit on the injected clock, and work that ends although its caller does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from qworkspace.base.clock import Clock

T = TypeVar("T")


async def ends_within(task: asyncio.Future[Any], seconds: float, clock: Clock) -> bool:
    """Whether `task` ends within `seconds`; it is left alone either way."""
    if task.done():
        return True
    timer = asyncio.get_running_loop().create_task(clock.sleep(seconds), name="time limit")
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancelled(timer)
    return task.done()


async def happens_within(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Whether `event` is set within `seconds`."""
    if event.is_set():
        return True
    waiting = asyncio.get_running_loop().create_task(event.wait(), name="waiting")
    try:
        await ends_within(waiting, seconds, clock)
    finally:
        await _cancelled(waiting)
    return event.is_set()


async def to_the_end(work: Coroutine[Any, Any, T], *, name: str) -> T:
    """The result of `work`, which ends even when the caller is cancelled meanwhile; the caller is cancelled then."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation goes first
        raise cancelled
    return task.result()


async def _cancelled(helper: asyncio.Task[Any]) -> None:
    helper.cancel()
    await asyncio.wait({helper})
