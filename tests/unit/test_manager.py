"""Agents come at their first request, once, and go when nothing needs them."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from qworkspace.base.scope import Scope, acting_as, current_scope
from qworkspace.errors import Denied, InvalidInput, NotFound, Unavailable
from qworkspace.workspace.seat import AgentState
from qworkspace.workspace.services import ServiceDescriptor
from tests.support.agents import Agency, read_once, settled, stopped
from tests.support.services import Recorder


@pytest.fixture(autouse=True)
def warm(tmp_path_factory):
    read_once(tmp_path_factory.mktemp("first"))


@pytest.fixture
async def agency(tmp_path):
    agency = Agency(tmp_path, ["anna", "bert"])
    yield agency
    await stopped(agency)


# Starting


async def test_the_first_request_starts_the_agent_and_the_next_finds_it(agency):
    assert agency.journal == []
    anna = await agency.manager.get("anna")
    assert await agency.manager.get("anna") is anna
    assert anna.config.id == "anna"
    assert anna.directory == agency.home / "workspaces" / "anna"
    assert agency.journal == ["+anna", "+anna/chats", ">anna", ">anna/chats"]
    [event] = agency.events("workspace.started")
    assert event == {"type": "workspace.started", "agent_id": "anna", "generation": 1, "duration_ms": 0}


async def test_fifty_first_requests_at_once_are_one_start(agency):
    agency.seconds["anna"] = 3.0
    asking = [asyncio.create_task(agency.manager.get("anna")) for _ in range(50)]
    await settled(agency, 3)
    found = await asyncio.gather(*asking)
    assert len({id(workspace) for workspace in found}) == 1
    assert agency.journal.count("+anna") == 1


async def test_a_failed_start_is_told_to_all_and_tried_again_at_the_next_request(agency):
    agency.wrong["anna"] = ["start"]
    agency.seconds["anna"] = 1.0
    asking = [asyncio.create_task(agency.manager.get("anna")) for _ in range(5)]
    await settled(agency, 1)
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        assert isinstance(outcome, Unavailable)
        assert outcome.message == "agent 'anna' cannot start: ValueError: anna cannot start"
    assert agency.manager.state("anna").state is AgentState.FAILED
    assert agency.shown() == ["agent 'anna' cannot start: ValueError: anna cannot start"]
    assert [event["code"] for event in agency.events("workspace.failed")] == ["agent_failed"]
    agency.wrong.clear()
    agency.seconds.clear()
    assert (await agency.manager.get("anna")).generation == 1
    assert agency.shown() == []


async def test_an_agent_that_cannot_act_is_taken_back(agency):
    agency.wrong["anna"] = ["activate"]
    with pytest.raises(Unavailable, match="anna cannot activate"):
        await agency.manager.get("anna")
    assert agency.journal == ["+anna", "+anna/chats", "<anna", "-anna/chats", "-anna"]
    assert agency.manager.running() == []


async def test_a_start_that_hangs_is_given_up(agency):
    agency.wrong["anna"] = ["hang start"]
    asking = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency, 75)
    with pytest.raises(Unavailable, match="service 'main' did not start within 60 s"):
        await asking


async def test_a_cancelled_first_caller_does_not_end_the_start(agency):
    agency.seconds["anna"] = 3.0
    first = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency, 1)
    second = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency)
    first.cancel()
    await settled(agency, 2)
    assert (await second).agent_id == "anna"
    assert agency.journal.count("+anna") == 1


async def test_starts_of_different_agents_overlap(agency):
    agency.seconds |= {"anna": 5.0, "bert": 5.0}
    asking = [asyncio.create_task(agency.manager.get(name)) for name in ("anna", "bert")]
    await settled(agency, 5)
    assert [task.done() for task in asking] == [True, True]
    await asyncio.gather(*asking)


async def test_a_slow_start_does_not_hold_up_running_agents(agency):
    bert = await agency.manager.get("bert")
    agency.seconds["anna"] = 50.0
    slow = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency, 1)
    assert await agency.manager.get("bert") is bert
    await settled(agency, 50)
    await slow


async def test_services_do_not_act_for_the_request_that_started_them(agency):
    seen = []

    class Curious(Recorder):
        async def start(self):
            seen.append(current_scope())

    agency.registry.services.add(
        "curious", lambda workspace: ServiceDescriptor("curious", lambda _: Curious("c", []), 30), owner="test"
    )
    with acting_as(Scope("bert", agency.home, session_id="s1", user_id="paula")):
        await agency.manager.get("anna")
    assert seen == [Scope("anna", agency.home / "workspaces" / "anna")]


# Who may not be started


async def test_an_agent_that_is_not_there_is_never_another_one(agency):
    agency.write(["anna", "bert", "carl"], disabled=["carl"])
    with pytest.raises(NotFound) as missing:
        await agency.manager.get("anne")
    assert missing.value.code == "agent_not_found"
    for malformed in ("", "Anna", "../anna", "anna/", "a" * 65, "anna\n"):
        with pytest.raises(InvalidInput):
            await agency.manager.get(malformed)
    with pytest.raises(Denied) as disabled:
        await agency.manager.get("carl")
    assert disabled.value.code == "agent_disabled"
    assert agency.journal == []


async def test_a_broken_agent_json_names_its_place_and_heals_when_mended(agency):
    agency.write_agent("anna", '{"id": "anna",\n "running": {"max_iters": "many"}}')
    with pytest.raises(Unavailable, match=r"agent\.json:2:27") as broken:
        await agency.manager.get("anna")
    assert broken.value.code == "invalid_config"
    agency.write_agent("anna", {"id": "anna"})
    await agency.manager.get("anna")
    assert agency.shown() == []


async def test_a_file_broken_later_leaves_the_last_good_configuration_in_use(agency):
    agency.write_agent("anna", {"id": "anna", "name": "Anna"})
    await agency.manager.get("anna")
    agency.write_agent("anna", '{"id": ')
    await settled(agency, 1801)
    unloading = asyncio.create_task(agency.manager.unload_idle())
    await settled(agency, 2)
    await unloading
    assert (await agency.manager.get("anna")).config.name == "Anna"
    assert "the last valid configuration stays in use" in agency.shown()[0]


# Those that must be up


async def test_eager_agents_start_with_the_daemon_a_few_at_a_time(tmp_path):
    names = [f"a{number}" for number in range(6)]
    agency = Agency(tmp_path, [*names, "lazy", "off"], eager=[*names, "off"], disabled=["off"])
    agency.seconds = dict.fromkeys(names, 2.0)
    agency.wrong["a3"] = ["start"]
    starting = asyncio.create_task(agency.manager.start_all_configured_agents())
    await settled(agency, 4)
    failures = await starting
    assert agency.most_starting == 4
    assert sorted(workspace.agent_id for workspace in agency.manager.running()) == ["a0", "a1", "a2", "a4", "a5"]
    assert "a3 cannot start" in failures["a3"].message
    await settled(agency, 7200)
    assert await agency.manager.unload_idle() == []
    await stopped(agency)


# Status


@pytest.mark.may_block  # reading a thousand profiles, which the daemon does in a thread
async def test_status_tells_of_every_agent_without_reading_their_files(tmp_path):
    agency = Agency(tmp_path, ["anna", "bert", "carl"], disabled=["carl"])
    agency.config.patch_home({"agents": {"profiles": {f"a{number}": {} for number in range(1000)}}})
    agency.wrong["bert"] = ["start"]
    await agency.manager.get("anna")
    with pytest.raises(Unavailable):
        await agency.manager.get("bert")
    shutil.rmtree(tmp_path / "workspaces")
    states = agency.manager.states()
    assert len(states) == 1003
    assert {name: states[name].state.value for name in ("anna", "bert", "carl", "a7")} == {
        "anna": "running", "bert": "failed", "carl": "disabled", "a7": "dormant",
    }  # fmt: skip
    assert states["anna"].services == {"main": {"state": "active"}, "chats": {"state": "active"}}
    assert states["anna"].generation == 1
    assert [problem.message for problem in states["bert"].problems] == [states["bert"].error]
    with pytest.raises(NotFound):
        agency.manager.state("nobody")
    await stopped(agency)
