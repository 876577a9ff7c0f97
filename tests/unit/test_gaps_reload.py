"""Reloads: what the daemon's event stream hears of them, and the limit after which a replaced instance is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.agents import passing, settled
from tests.unit.test_reload import Reloads

EVENTS = tuple(f"reload.{what}" for what in ("planned", "started", "swapped", "drained", "failed"))


@pytest.fixture
async def agency(tmp_path: Path) -> AsyncIterator[Reloads]:
    reloads = Reloads(tmp_path / "home")
    await reloads.database.open()
    await reloads.manager.get("anna")
    yield reloads
    await reloads.close()
    assert reloads.clashes == []


def told(agency: Reloads) -> list[str]:
    return [event.type for event in agency.bus.log.since(0) if event.type in EVENTS]


async def test_each_step_of_a_reload_is_told(agency: Reloads) -> None:
    agency.edit(heartbeat={"every": "1h"})
    await agency.reload()
    await passing(agency, 2)
    assert told(agency) == ["reload.planned", "reload.started", "reload.swapped", "reload.drained"]
    agency.edit(heartbeat={"every": "sometimes"})
    await agency.reload()
    assert told(agency)[4:] == ["reload.failed"]


async def test_turns_of_a_replaced_instance_are_ended_after_a_day(agency: Reloads) -> None:
    turn = agency.chats("anna").turn(1e9)
    await settled(agency)
    agency.edit(heartbeat={"every": "1h"})
    await agency.reload()
    for _ in range(23):
        await agency.clock.advance(3_600)
        await settled(agency)
    assert len(agency.reloader.retired("anna")) == 1
    assert not turn.done()
    for _ in range(2):
        await agency.clock.advance(3_600)
        await settled(agency)
    assert agency.reloader.retired("anna") == []
    assert "-anna" in agency.journal
    turn.cancel()
    await asyncio.wait({turn})
