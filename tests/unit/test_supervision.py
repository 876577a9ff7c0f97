"""Tasks that services keep running: shown and run again when they die, ended and moved with their service."""

from __future__ import annotations

import asyncio

import pytest

from qworkspace.workspace.services import ServiceDescriptor, ServiceManager
from tests.support.services import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Ticker:
    """Acts through supervised tasks: ticks each second, and dies when told to."""

    def __init__(self, bench: Bench, supervise) -> None:
        self.ticks = 0
        self.runs = 0
        self.dies = False
        self.wrong: BaseException = ValueError("lost the connection")
        self._bench = bench
        self._supervise = supervise

    async def start(self): ...

    def activate(self):
        self._supervise("tick", self._tick)

    def deactivate(self): ...

    async def stop(self): ...

    async def _tick(self):
        self.runs += 1
        while True:
            if self.dies:
                raise self.wrong
            self.ticks += 1
            await self._bench.clock.sleep(1)


async def ticking(bench: Bench) -> tuple[ServiceManager, Ticker]:
    manager = bench.services(ServiceDescriptor("t", lambda s: Ticker(bench, s.supervisor("t")), 10))
    await manager.start()
    await bench.clock.advance(3)
    ticker: Ticker = manager.get("t")
    assert ticker.ticks == 0
    manager.activate()
    return manager, ticker


async def test_a_task_that_dies_is_shown_and_run_again_ever_more_slowly(bench):
    manager, ticker = await ticking(bench)
    await bench.clock.advance(5)
    assert ticker.ticks == 6
    ticker.dies = True
    await bench.clock.advance(1)
    assert bench.shown() == ["anna/t: tick failed and is run again: ValueError: lost the connection"]
    began = ticker.runs
    await bench.clock.advance(1 + 2 + 4 + 8 + 16 + 32 + 60 + 60)
    assert ticker.runs - began == 8
    ticker.dies = False
    await bench.clock.advance(60)
    await bench.clock.advance(59)
    assert bench.shown() != []
    await bench.clock.advance(1)
    assert bench.shown() == []
    ticker.dies = True
    await bench.clock.advance(1)
    began = ticker.runs
    await bench.clock.advance(1)
    assert ticker.runs - began == 1
    await manager.stop()
    assert bench.shown() == []


async def test_a_task_is_run_again_when_what_it_waited_for_was_cancelled(bench):
    manager, ticker = await ticking(bench)
    ticker.dies, ticker.wrong = True, asyncio.CancelledError()
    await bench.clock.advance(1)
    ticker.dies = False
    await bench.clock.advance(1)
    assert ticker.runs == 2
    await manager.stop()


async def test_supervised_tasks_end_with_the_acting_and_come_back_with_it(bench):
    manager, ticker = await ticking(bench)
    manager.deactivate()
    ticks = ticker.ticks
    await bench.clock.advance(5)
    assert ticker.ticks == ticks
    manager.activate()
    await bench.clock.advance(5)
    assert ticker.ticks > ticks
    await manager.stop()
    ticks = ticker.ticks
    await bench.clock.advance(5)
    assert ticker.ticks == ticks


async def test_supervision_moves_with_the_service(bench):
    old, ticker = await ticking(bench)
    new = bench.services(old.descriptors[0], generation=2)
    await new.start(old.running(["t"]))
    old.deactivate(keep=["t"])
    new.activate()
    await old.stop(keep=["t"])
    ticks = ticker.ticks
    await bench.clock.advance(3)
    assert ticker.ticks == ticks + 3
    assert ticker.runs == 1
    ticker.dies = True
    await bench.clock.advance(1)
    ticker.dies = False
    await bench.clock.advance(1)
    assert ticker.runs == 2
    await new.stop()


async def test_a_supervised_task_that_returns_is_done_and_its_undo_ends_it(bench):
    manager = bench.services(bench.descriptor("a"))
    await manager.start()
    runs = []

    async def once():
        runs.append("once")

    async def forever():
        await asyncio.Event().wait()

    manager.supervise("a", once, task="once")
    undo = manager.supervise("a", forever, task="forever")
    await bench.clock.advance(120)
    assert runs == ["once"]
    undo()
    await bench.clock.advance(1)
    assert not [task for task in asyncio.all_tasks() if "forever" in task.get_name()]
    await manager.stop()
