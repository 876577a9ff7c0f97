"""The injected clock: simulated time moves only when a test says so."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from qworkspace.base.clock import SimulatedClock, SystemClock

START = datetime(2026, 3, 28, 23, 0, tzinfo=UTC)


async def _note_after(clock: SimulatedClock, seconds: float, name: str, woken: list[tuple[str, datetime]]) -> None:
    await clock.sleep(seconds)
    woken.append((name, clock.now()))


async def test_sleepers_wake_at_their_moment_in_their_order() -> None:
    clock, woken = SimulatedClock(START), list[tuple[str, datetime]]()
    async with asyncio.TaskGroup() as group:
        for name, seconds in {"late": 90, "early": 10, "middle": 60}.items():
            group.create_task(_note_after(clock, seconds, name, woken))
        await clock.advance(100)
    assert woken == [
        ("early", START + timedelta(seconds=10)),
        ("middle", START + timedelta(seconds=60)),
        ("late", START + timedelta(seconds=90)),
    ]
    assert clock.now() == START + timedelta(seconds=100)
    assert clock.monotonic() == 100


async def test_nobody_wakes_early() -> None:
    clock, woken = SimulatedClock(START), list[tuple[str, datetime]]()
    sleeper = asyncio.create_task(_note_after(clock, 10, "one", woken))
    await clock.advance(9.5)
    assert woken == []
    await clock.advance(0.5)
    await sleeper
    assert len(woken) == 1


async def test_a_sleeper_that_sleeps_again_wakes_again_within_one_advance() -> None:
    clock, ticks = SimulatedClock(START), list[float]()

    async def tick() -> None:
        while len(ticks) < 3:
            await clock.sleep(30)
            ticks.append(clock.monotonic())

    ticking = asyncio.create_task(tick())
    await clock.advance(120)
    await ticking
    assert ticks == [30, 60, 90]


async def test_a_cancelled_sleeper_is_left_alone() -> None:
    clock = SimulatedClock(START)
    sleeper = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    sleeper.cancel()
    await clock.advance(10)
    assert sleeper.cancelled()


async def test_setting_the_wall_clock_wakes_nobody() -> None:
    clock, woken = SimulatedClock(START), list[tuple[str, datetime]]()
    sleeper = asyncio.create_task(_note_after(clock, 60, "one", woken))
    await clock.advance(1)
    clock.jump(3600)
    await clock.advance(1)
    assert woken == []
    assert clock.monotonic() == 2
    assert clock.now() == START + timedelta(seconds=3602)
    await clock.advance(58)
    await sleeper


async def test_sleeping_not_at_all_lets_others_run() -> None:
    clock, ran = SimulatedClock(START), list[str]()

    async def other() -> None:
        ran.append("other")

    for seconds in (0, -1):
        task = asyncio.create_task(other())
        await clock.sleep(seconds)
        assert task.done()
    assert ran == ["other", "other"]


async def test_the_system_clock_is_aware_and_sleeps_for_negative_times_too() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(-5)
    assert clock.now().utcoffset() == timedelta(0)
    assert clock.monotonic() >= before
