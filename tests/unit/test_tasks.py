"""Owned tasks, shared calls, debounced actions, the pool of threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.tasks import Debounce, SingleFlight, Tasks, Threads


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks("test")
    yield tasks
    await tasks.close()


async def test_closing_ends_every_task_and_waits_for_its_clean_up() -> None:
    tasks, journal = Tasks("owner"), list[str]()

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            journal.append(f"-{name}")

    running = [tasks.start(work(name), name=name) for name in ("a", "b")]
    assert [task.get_name() for task in running] == ["owner/a", "owner/b"]
    await asyncio.sleep(0)
    await tasks.close("test over")
    assert sorted(journal) == ["-a", "-b"]
    assert len(tasks) == 0
    await tasks.close()


async def test_a_closed_owner_starts_nothing() -> None:
    tasks = Tasks("owner")
    await tasks.close()
    with pytest.raises(RuntimeError, match="owner is closed; 'late' cannot start"):
        tasks.start(asyncio.sleep(0), name="late")


async def test_a_task_may_close_its_own_owner() -> None:
    tasks = Tasks("owner")
    other = tasks.start(asyncio.Event().wait(), name="other")
    closer = tasks.start(tasks.close(), name="closer")
    await closer
    assert other.cancelled()


async def test_a_failing_task_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[tuple[str, str]] = []
    tasks = Tasks("owner", on_error=lambda name, error: failures.append((name, str(error))))

    async def fail() -> None:
        raise ValueError("boom")

    task = tasks.start(fail(), name="bad")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert failures == [("owner/bad", "boom")]
    assert "task owner/bad failed" in caplog.text


async def test_threads_give_results_and_errors_and_keep_the_loop_free() -> None:
    threads = Threads(2, name="test")
    try:
        assert await threads.run(divmod, 7, 3) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)
        gate = threading.Event()
        waiting = asyncio.ensure_future(threads.run(gate.wait, timeout=5))
        await asyncio.sleep(0)
        gate.set()
        assert await waiting
        assert threading.current_thread() is not await threads.submit(threading.current_thread)
    finally:
        threads.close()
        threads.close()


async def test_concurrent_callers_share_one_call() -> None:
    flight, calls, gate = SingleFlight[str](), list[int](), asyncio.Event()

    async def make() -> str:
        calls.append(1)
        await gate.wait()
        return "made"

    waiting = [asyncio.create_task(flight.run("k", make)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results[1:] == ["made"] * 4
    assert isinstance(results[0], asyncio.CancelledError)
    assert len(calls) == 1
    await flight.run("k", make)
    assert len(calls) == 2


async def test_an_error_reaches_every_waiter_and_the_next_call_tries_again() -> None:
    flight = SingleFlight[str]()
    outcomes: Iterator[ValueError | str] = iter([ValueError("first"), "second"])

    async def make() -> str:
        await asyncio.sleep(0)
        outcome = next(outcomes)
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    results = await asyncio.gather(*(flight.run("k", make) for _ in range(2)), return_exceptions=True)
    assert [str(result) for result in results] == ["first", "first"]
    assert await flight.run("k", make) == "second"


class _Actions:
    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.at: list[float] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> None:
        self.at.append(self.clock.monotonic())
        if self.gate is not None:
            await self.gate.wait()


async def test_a_burst_leads_to_one_action_after_its_last_change(tasks: Tasks) -> None:
    clock = SimulatedClock()
    action = _Actions(clock)
    debounce = Debounce(0.3, action, clock=clock, tasks=tasks)
    for _ in range(5):
        debounce.poke()
        await clock.advance(0.2)
    await clock.advance(1)
    assert len(action.at) == 1
    assert action.at[0] >= 0.8 + 0.3
    debounce.poke()
    await clock.advance(0.3)
    assert len(action.at) == 2


async def test_a_change_during_the_action_leads_to_another_one(tasks: Tasks) -> None:
    clock = SimulatedClock()
    action = _Actions(clock)
    action.gate = asyncio.Event()
    debounce = Debounce(0.3, action, clock=clock, tasks=tasks)
    debounce.poke()
    await clock.advance(0.3)
    debounce.poke()
    await clock.advance(5)
    assert len(action.at) == 1
    action.gate.set()
    await clock.advance(0.3)
    assert len(action.at) == 2


async def test_after_a_failed_action_the_next_change_works(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    clock, outcomes = SimulatedClock(), list[str]()

    async def action() -> None:
        outcomes.append("called")
        if len(outcomes) == 1:
            raise ValueError("boom")

    debounce = Debounce(0.3, action, clock=clock, tasks=tasks)
    for _ in range(2):
        debounce.poke()
        await clock.advance(0.3)
    assert len(outcomes) == 2
    assert "task test/debounce failed" in caplog.text
