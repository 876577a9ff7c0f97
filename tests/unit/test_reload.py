"""Reloads with faults at every step: the agent always answers, exactly one instance acts, a good edit applies later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.base.database import Database
from qworkspace.workspace.history import MIGRATIONS, Outcome, Reload, ReloadHistory
from qworkspace.workspace.reload import Reloader
from qworkspace.workspace.services import ServiceDescriptor
from tests.support.agents import Agency, passing, settled, stopped
from tests.support.services import Recorder

EVENTS = tuple(f"reload.{what}" for what in ("planned", "started", "swapped", "drained", "failed"))


class Reloads(Agency):
    """An agency that can reload. A change of `heartbeat` rebuilds `main`; `chats` always moves."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.threads = self.storing
        self.database = Database(home / "home.db", migrations={"reloads": MIGRATIONS}, threads=self.threads)
        self.history = ReloadHistory(self.database)
        self.reloader = Reloader(self.manager, self.registry, self.shared, self.history)

    def edit(self, **changes: Any) -> None:
        self.write_agent("anna", {"id": "anna", **changes})

    async def reload(self) -> Reload | None:
        wanted = self.reloader.request("anna", "test")
        for _ in range(200):
            await asyncio.wait({wanted}, timeout=0.05)  # the history is stored in a real thread
            if wanted.done():
                break
            await settled(self, 1)
        return await wanted

    async def close(self) -> None:
        await stopped(self)
        await self.reloader.stop()
        await self.database.close()
        self.threads.close()

    @property
    def acting(self) -> int:
        return len({main for main in self.mains if main.acting})

    async def outcomes(self) -> list[str]:
        return [row["outcome"] for row in (await self.history.page("anna", 50, None))[0]]


@pytest.fixture
async def agency(tmp_path: Path) -> AsyncIterator[Reloads]:
    reloads = Reloads(tmp_path / "home")
    await reloads.database.open()
    await reloads.manager.get("anna")
    yield reloads
    await reloads.close()
    assert reloads.clashes == []


async def test_an_edit_rebuilds_what_reads_it_and_moves_the_rest(agency: Reloads) -> None:
    chats = agency.chats("anna")
    agency.edit(heartbeat={"every": "1h"})
    done = await agency.reload()
    assert done is not None
    assert (done.outcome, done.changed) == (Outcome.APPLIED, ("heartbeat.every",))
    assert (done.moved, done.rebuilt, done.generation) == (("chats",), ("main",), 2)
    assert agency.chats("anna") is chats
    assert agency.acting == 1
    await settled(agency, 2)
    assert agency.reloader.retired("anna") == []


async def test_a_field_that_no_service_holds_counts_without_a_new_instance(agency: Reloads) -> None:
    before = agency.manager.find("anna")
    agency.edit(running={"max_iters": 7})
    done = await agency.reload()
    assert done is not None
    assert (done.outcome, done.changed) == (Outcome.LIVE, ("running.max_iters",))
    after = agency.manager.find("anna")
    assert after is before and after is not None
    assert after.config.running.max_iters == 7


async def test_a_rewrite_with_the_same_meaning_is_no_reload(agency: Reloads) -> None:
    (agency.home / "workspaces/anna/agent.json").write_text('\ufeff{\r\n  "id":   "anna"\r\n}\r\n')
    assert await agency.reload() is None
    assert await agency.outcomes() == []


@pytest.mark.parametrize("text", ["", "{", '{"id": "anna", "id": "anna"}', '{"id": "anna", "heartbeat": {"every": 3}}'])
async def test_a_bad_edit_changes_nothing_is_shown_once_and_a_repair_applies(agency: Reloads, text: str) -> None:
    agency.write_agent("anna", text)
    failed = await agency.reload()
    assert failed is not None
    assert failed.outcome is Outcome.FAILED
    assert failed.error is not None and "agent.json" in failed.error["message"]
    assert (agency.acting, len(agency.problems.of("anna"))) == (1, 1)
    agency.edit(heartbeat={"every": "2h"})
    mended = await agency.reload()
    assert mended is not None and mended.outcome is Outcome.APPLIED
    assert agency.problems.of("anna") == []
    assert await agency.outcomes() == ["applied", "failed"]


@pytest.mark.parametrize("step", ["start", "hang start", "activate"])
async def test_a_new_instance_that_fails_leaves_the_old_one_acting(agency: Reloads, step: str) -> None:
    old = agency.manager.find("anna")
    agency.wrong["anna"] = [step]
    agency.edit(heartbeat={"every": "1h"})
    failed = await agency.reload()
    assert failed is not None
    assert failed.outcome is (Outcome.ROLLED_BACK if step == "activate" else Outcome.FAILED)
    assert agency.manager.find("anna") is old
    assert agency.acting == 1
    agency.wrong["anna"] = []
    agency.edit(heartbeat={"every": "3h"})
    good = await agency.reload()
    assert good is not None and good.outcome is Outcome.APPLIED
    assert agency.acting == 1


@pytest.mark.parametrize("step", ["deactivate", "stop", "hang stop"])
async def test_an_old_instance_that_resists_never_acts_beside_the_new_one(agency: Reloads, step: str) -> None:
    agency.mains[0].wrong = {step}
    agency.edit(heartbeat={"every": "1h"})
    first = await agency.reload()
    assert first is not None
    assert first.outcome is (Outcome.ROLLED_BACK if step == "deactivate" else Outcome.APPLIED)
    assert agency.acting == 1
    agency.mains[0].wrong = set()
    agency.edit(heartbeat={"every": "2h"})
    second = await agency.reload()
    assert second is not None and second.outcome is Outcome.APPLIED
    assert agency.acting == 1
    await passing(agency, 30)


async def test_a_running_turn_ends_on_its_instance_and_status_shows_that_until_then(agency: Reloads) -> None:
    turn = agency.chats("anna").turn(100)
    await settled(agency)
    agency.edit(heartbeat={"every": "1h"})
    done = await agency.reload()
    assert done is not None
    assert [item["generation"] for item in agency.reloader.retired("anna")] == [1]
    assert "-anna" not in agency.journal
    await passing(agency, 70)
    assert agency.reloader.retired("anna")[0]["state"] == "draining"
    assert agency.problems.of("anna") != []
    await passing(agency, 40)
    await turn
    await settled(agency)
    assert agency.reloader.retired("anna") == []
    assert "-anna" in agency.journal
    assert agency.problems.of("anna") == []


async def test_edits_that_come_while_one_is_built_become_one_more(agency: Reloads) -> None:
    agency.seconds["anna"] = 5
    agency.edit(heartbeat={"every": "1h"})
    first = agency.reloader.request("anna", "edit 1")
    await settled(agency, 1)
    for hours in range(2, 6):
        agency.edit(heartbeat={"every": f"{hours}h"})
        last = agency.reloader.request("anna", f"edit {hours}")
    await passing(agency, 30)
    assert (await first) is not None and (await last) is not None
    assert await agency.outcomes() == ["applied", "applied"]
    acting = agency.manager.find("anna")
    assert acting is not None and acting.config.heartbeat.every == "5h"


async def test_edits_wait_while_four_replaced_instances_have_turns(agency: Reloads) -> None:
    turns: list[asyncio.Task[None]] = []
    for hours in range(1, 5):
        turns.append(agency.chats("anna").turn(50))
        await settled(agency)
        agency.edit(heartbeat={"every": f"{hours}h"})
        await agency.reload()
    assert len(agency.reloader.retired("anna")) == 4
    agency.edit(heartbeat={"every": "9h"})
    waiting = agency.reloader.request("anna", "one too many")
    await settled(agency, 1)
    assert agency.reloader.waits("anna") and not waiting.done()
    await passing(agency, 60)
    await asyncio.gather(*turns)
    done = await waiting
    assert done is not None and done.outcome is Outcome.APPLIED
    assert not agency.reloader.waits("anna")


async def test_an_end_of_the_agent_during_a_reload_ends_the_services_that_were_to_move(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path / "home")

    def slow(_: object) -> Recorder:
        return Recorder("slow", reloads.journal, clock=reloads.clock, start_seconds=5)

    reloads.registry.services.add("slow", lambda _: ServiceDescriptor("slow", slow, 30, ("cron",)), owner="test")
    await reloads.database.open()
    starting = asyncio.create_task(reloads.manager.get("anna"))
    await passing(reloads, 6)
    await starting
    reloads.edit(cron={"enabled": False})
    wanted = reloads.reloader.request("anna", "edit")
    await settled(reloads, 1)
    await stopped(reloads)
    await passing(reloads, 10)
    done = await wanted
    assert done is not None and (done.outcome, done.moved) == (Outcome.ROLLED_BACK, ("main", "chats"))
    assert {step for step in reloads.journal if step[0] == "-"} == {"-anna", "-anna/chats", "-slow"}
    await reloads.close()


async def test_an_edit_of_a_dormant_agent_starts_nothing(tmp_path: Path) -> None:
    reloads = Reloads(tmp_path / "home")
    await reloads.database.open()
    reloads.write_agent("anna", "{")
    assert await reloads.reload() is None
    assert len(reloads.problems.of("anna")) == 1
    reloads.edit()
    assert await reloads.reload() is None
    assert (reloads.problems.of("anna"), reloads.manager.running()) == ([], [])
    await reloads.close()


async def test_history_keeps_the_newest_and_pages_through_them(agency: Reloads) -> None:
    for number in range(5):
        agency.edit(running={"max_iters": number + 1})
        await agency.reload()
    page, more = await agency.history.page("anna", 2, None)
    rest, end = await agency.history.page("anna", 50, more)
    assert (len(page), len(rest), end) == (2, 3, None)
    assert page[0]["at"] >= rest[-1]["at"]


async def test_planning_applies_nothing(agency: Reloads) -> None:
    agency.edit(heartbeat={"every": "1h"}, running={"max_iters": 3})
    config = agency.config.load_agent("anna")
    change = await agency.reloader.plan("anna", config)
    assert (change.kind, change.rebuilt, change.live) == ("reload", ("main",), ("running.max_iters",))
    acting = agency.manager.find("anna")
    assert acting is not None and acting.config.heartbeat.every == "30m"


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
