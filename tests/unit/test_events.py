"""Event logs: followed, left, re-joined at the next event."""

from __future__ import annotations

import asyncio

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import Event, EventBus, EventLog, TooSlow


@pytest.fixture
def log() -> EventLog:
    return EventLog(SimulatedClock(), size=5)


def _numbers(events: list[Event]) -> list[int]:
    return [event.seq for event in events]


async def _followed(log: EventLog, after: int | None = None) -> list[int]:
    return [event.seq async for event in log.follow(after)]


async def test_a_follower_gets_everything_in_order_until_the_end(log: EventLog) -> None:
    following = asyncio.create_task(_followed(log))
    await asyncio.sleep(0)
    for n in range(3):
        log.append("text.delta", {"n": n})
        await asyncio.sleep(0)
    log.append("turn.completed")
    log.close()
    assert await following == [1, 2, 3, 4]


async def test_whoever_rejoins_goes_on_after_the_last_event_seen(log: EventLog) -> None:
    for _ in range(4):
        log.append("text.delta")
    log.close()
    assert await _followed(log, after=2) == [3, 4]
    assert await _followed(log, after=4) == []
    assert await _followed(log, after=0) == [1, 2, 3, 4]


async def test_two_followers_do_not_disturb_each_other(log: EventLog) -> None:
    first, second = (asyncio.create_task(_followed(log, after=0)) for _ in range(2))
    log.append("a")
    await asyncio.sleep(0)
    first.cancel()
    log.append("b")
    log.close()
    assert await second == [1, 2]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_reader_that_fell_behind_is_told_and_may_rejoin_later(log: EventLog) -> None:
    for _ in range(8):
        log.append("x")
    with pytest.raises(TooSlow, match="events 2 to 3 are no longer held") as caught:
        log.since(1)
    assert caught.value.details["oldest"] == 4
    assert _numbers(log.since(3)) == [4, 5, 6, 7, 8]
    with pytest.raises(TooSlow):
        await _followed(log, after=0)


async def test_a_follower_overtaken_while_it_waits_is_cut_off(log: EventLog) -> None:
    following = asyncio.create_task(_followed(log, after=0))
    await asyncio.sleep(0)
    for _ in range(7):
        log.append("x")
    with pytest.raises(TooSlow):
        await following


def test_counting_may_begin_anywhere() -> None:
    log = EventLog(SimulatedClock(), first=40)
    assert log.last == 39
    assert log.since(39) == []
    log.append("x")
    assert (log.oldest, log.last) == (40, 40)


def test_a_position_ahead_of_the_log_waits_for_it(log: EventLog) -> None:
    log.append("x")
    assert log.since(10) == []


async def test_batches_hold_all_that_is_ready(log: EventLog) -> None:
    for _ in range(3):
        log.append("x")
    log.close()
    assert [_numbers(batch) async for batch in log.batches(0)] == [[1, 2, 3]]


def test_listeners_hear_at_once_until_they_leave(log: EventLog) -> None:
    heard: list[str] = []
    leave = log.listen(lambda event: heard.append(event.type))
    log.append("one")
    leave()
    leave()
    log.append("two")
    assert heard == ["one"]


def test_the_bus_says_whom_an_event_concerns() -> None:
    clock = SimulatedClock()
    bus = EventBus(clock)
    event = bus.publish("turn.started", agent_id="a", session_id="s")
    assert event.data == {"agent_id": "a", "session_id": "s"}
    assert event.at == clock.now()
    assert bus.publish("paused").data == {}
