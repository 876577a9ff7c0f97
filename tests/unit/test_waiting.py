"""Waiting with a limit, and work that ends although its caller does not wait."""

from __future__ import annotations

import asyncio

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.waiting import ends_within, happens_within, to_the_end


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


async def test_a_task_that_ends_in_time_is_seen_at_once(clock):
    task = asyncio.create_task(clock.sleep(3))
    waiting = asyncio.create_task(ends_within(task, 10, clock))
    await clock.advance(3)
    await clock.advance(0)
    assert waiting.done()
    assert await waiting
    assert await ends_within(task, 0, clock)


async def test_a_task_that_takes_longer_is_left_alone(clock):
    task = asyncio.create_task(clock.sleep(30))
    waiting = asyncio.create_task(ends_within(task, 10, clock))
    await clock.advance(10)
    await clock.advance(0)
    assert await waiting is False
    assert not task.cancelled()
    await clock.advance(20)
    await task


async def test_an_event_is_waited_for_as_long_as_agreed(clock):
    event = asyncio.Event()
    waiting = asyncio.create_task(happens_within(event, 10, clock))
    await clock.advance(10)
    await clock.advance(0)
    assert await waiting is False
    event.set()
    assert await happens_within(event, 0, clock)


async def test_nothing_is_left_of_a_wait_that_is_cancelled(clock):
    waiting = asyncio.create_task(happens_within(asyncio.Event(), 10, clock))
    await clock.advance(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_that_must_end_gives_its_result_or_its_error(clock):
    async def half(of: int) -> float:
        return 100 / of

    assert await to_the_end(half(2), name="half") == 50
    with pytest.raises(ZeroDivisionError):
        await to_the_end(half(0), name="half")


async def test_work_that_must_end_ends_before_its_cancelled_caller_does(clock):
    done = []

    async def work() -> None:
        await clock.sleep(5)
        done.append("all of it")

    caller = asyncio.create_task(to_the_end(work(), name="work"))
    for _ in range(3):
        await clock.advance(1)
        caller.cancel()
    await clock.advance(1)
    assert not caller.done()
    await clock.advance(1)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == ["all of it"]
