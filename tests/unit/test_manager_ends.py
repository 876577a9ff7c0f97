"""Agents go when nothing needs them, are disabled and deleted, and are replaced while they run."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from qworkspace.errors import Conflict, Denied, Duplicate, NotFound, Unavailable
from qworkspace.workspace.seat import AgentState
from qworkspace.workspace.workspace import CHATS
from tests.support.agents import Agency, read_once, settled, stopped


@pytest.fixture(autouse=True)
def warm(tmp_path_factory):
    read_once(tmp_path_factory.mktemp("first"))


@pytest.fixture
async def agency(tmp_path):
    agency = Agency(tmp_path, ["anna", "bert"])
    yield agency
    await stopped(agency)


# Unloading


async def unloaded(agency: Agency) -> list[str]:
    unloading = asyncio.create_task(agency.manager.unload_idle())
    await settled(agency, 2)
    return await unloading


async def test_an_agent_that_nothing_uses_is_unloaded_after_half_an_hour(agency):
    await agency.manager.get("anna")
    await settled(agency, 900)
    await agency.manager.get("bert")
    await settled(agency, 899)
    assert await unloaded(agency) == []
    assert await unloaded(agency) == ["anna"]
    assert agency.manager.state("anna").state is AgentState.DORMANT
    assert agency.events("workspace.stopped") == [{"type": "workspace.stopped", "agent_id": "anna", "reason": "idle"}]
    assert (await agency.manager.get("anna")).generation == 2


async def test_what_is_held_or_has_turns_stays(agency):
    async with agency.manager.use("anna") as anna:
        await agency.manager.get("bert")
        turn = agency.chats("bert").turn(5000)
        await settled(agency, 4000)
        assert await unloaded(agency) == []
        assert anna.busy
    await settled(agency, 1000)
    await turn
    assert await unloaded(agency) == []
    await settled(agency, 1800)
    assert sorted(await unloaded(agency)) == ["anna", "bert"]


async def test_unloading_can_be_switched_off(tmp_path):
    agency = Agency(tmp_path, lifecycle={"idle_unload": 0})
    await agency.manager.get("anna")
    await settled(agency, 100_000)
    assert await unloaded(agency) == []
    await stopped(agency)


async def test_a_request_during_an_unload_gets_a_new_instance(agency):
    agency.stop_seconds["anna"] = 5.0
    old = await agency.manager.get("anna")
    await settled(agency, 1800)
    unloading = asyncio.create_task(agency.manager.unload_idle())
    await settled(agency, 1)
    assert agency.manager.state("anna").state is AgentState.STOPPING
    asking = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency, 3)
    assert not asking.done()
    await settled(agency, 5)
    assert await asking is not old
    await unloading
    assert agency.journal.index("-anna") < agency.journal.index("+anna", 1)


async def test_a_workspace_that_resists_its_end_does_not_block_the_next_start(agency):
    agency.wrong["anna"] = ["hang stop"]
    await agency.manager.get("anna")
    await settled(agency, 1800)
    unloading = asyncio.create_task(agency.manager.unload_idle())
    await settled(agency, 20)
    await unloading
    agency.wrong.clear()
    await agency.manager.get("anna")


# Stopping


async def test_stop_gives_turns_their_time_and_takes_no_new_ones(agency):
    await agency.manager.get("anna")
    await agency.manager.get("bert")
    short, long = agency.chats("anna").turn(6), agency.chats("bert").turn(60)
    stopping = asyncio.create_task(agency.manager.stop())
    await settled(agency, 1)
    assert "<anna" in agency.journal
    for name in ("anna", "bert"):
        with pytest.raises(Unavailable, match="stopping"):
            await agency.manager.get(name)
    await settled(agency, 5)
    assert short.done()
    assert not short.cancelled()
    await settled(agency, 4)
    await stopping
    assert long.cancelled()
    assert agency.journal[-2:] == ["-bert/chats", "-bert"]
    assert agency.manager.running() == []


async def test_stop_gives_up_a_start_that_is_under_way(agency):
    agency.wrong["anna"] = ["hang start"]
    asking = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency, 1)
    await agency.manager.stop(10)
    with pytest.raises(Unavailable, match="stopping"):
        await asking


async def test_stop_is_bounded_even_when_services_hang(agency):
    agency.wrong["anna"] = ["hang stop"]
    await agency.manager.get("anna")
    stopping = asyncio.create_task(agency.manager.stop(0))
    await settled(agency, 15)
    assert stopping.done()
    await stopping


# Disabled, enabled, made and deleted


async def test_a_disabled_agent_refuses_finishes_its_turn_and_ends(agency):
    await agency.manager.get("anna")
    turn = agency.chats("anna").turn(600)
    await agency.manager.disable_agent("anna")
    with pytest.raises(Denied):
        await agency.manager.get("anna")
    assert agency.journal[-2:] == ["<anna/chats", "<anna"]
    await settled(agency, 599)
    assert agency.manager.state("anna").state is AgentState.DRAINING
    assert agency.manager.state("anna").active_turns == 1
    assert not agency.manager.state("anna").enabled
    await settled(agency, 3)
    assert turn.done()
    assert not turn.cancelled()
    assert agency.manager.state("anna").state is AgentState.DISABLED
    assert agency.journal[-2:] == ["-anna/chats", "-anna"]
    with pytest.raises(Denied):
        await agency.manager.get("anna")
    await agency.manager.enable_agent("anna")
    assert (await agency.manager.get("anna")).generation == 2


async def test_an_agent_enabled_while_it_finishes_goes_on(agency):
    anna = await agency.manager.get("anna")
    turn = agency.chats("anna").turn(600)
    await agency.manager.disable_agent("anna")
    await settled(agency, 60)
    await agency.manager.enable_agent("anna")
    assert await agency.manager.get("anna") is anna
    assert agency.journal[-2:] == [">anna", ">anna/chats"]
    await settled(agency, 600)
    await turn
    assert agency.manager.state("anna").state is AgentState.RUNNING


async def test_disabling_ends_a_start(agency):
    agency.seconds["anna"] = 30.0
    asking = asyncio.create_task(agency.manager.get("anna"))
    await settled(agency, 1)
    await agency.manager.disable_agent("anna")
    with pytest.raises(Denied):
        await asking
    assert agency.manager.running() == []


async def test_an_agent_enabled_by_an_edit_answers_the_next_request(agency):
    await agency.manager.get("anna")
    await agency.manager.disable_agent("anna")
    await settled(agency, 2)
    agency.config.patch_home({"agents": {"profiles": {"anna": {"enabled": True}}}})
    assert (await agency.manager.get("anna")).generation == 2


async def test_an_agent_that_moves_finishes_where_it_was_and_starts_at_the_new_place(agency):
    old = await agency.manager.get("anna")
    turn = agency.chats("anna").turn(30)
    agency.config.patch_home({"agents": {"profiles": {"anna": {"workspace_dir": "workspaces/ann"}}}})
    shutil.copytree(old.directory, agency.home / "workspaces" / "ann")
    agency.manager.withdraw("anna", Unavailable("it moves"), "moved")
    with pytest.raises(Unavailable, match="it moves"):
        await agency.manager.get("anna")
    await settled(agency, 30)
    await settled(agency, 1)
    assert turn.done()
    assert (await agency.manager.get("anna")).directory == agency.home / "workspaces" / "ann"


async def test_a_deleted_agent_is_gone_and_its_files_stay(agency):
    anna = await agency.manager.get("anna")
    turn = agency.chats("anna").turn(4)
    deleting = asyncio.create_task(agency.manager.delete_agent("anna"))
    await settled(agency, 1)
    with pytest.raises(NotFound):
        await agency.manager.get("anna")
    await settled(agency, 3)
    await deleting
    assert not turn.cancelled()
    assert "anna" not in agency.manager.states()
    assert (anna.directory / "agent.json").exists()
    with pytest.raises(NotFound):
        await agency.manager.get("anna")
    await agency.manager.create_agent("anna")
    assert (await agency.manager.get("anna")) is not anna


async def test_deleting_a_draining_agent_does_not_wait_for_its_long_turn(agency):
    await agency.manager.get("anna")
    turn = agency.chats("anna").turn(50_000)
    await agency.manager.disable_agent("anna")
    deleting = asyncio.create_task(agency.manager.delete_agent("anna", remove_files=True))
    await settled(agency, 11)
    await deleting
    assert turn.cancelled()
    assert not (agency.home / "workspaces" / "anna").exists()
    assert (agency.home / "workspaces" / "bert").exists()


async def test_files_outside_of_the_home_are_never_removed(agency, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    agency.config.patch_home({"agents": {"profiles": {"anna": {"workspace_dir": str(elsewhere)}}}})
    with pytest.raises(Conflict, match="outside of the home"):
        await agency.manager.delete_agent("anna", remove_files=True)
    assert elsewhere.exists()
    assert "anna" in agency.manager.states()


async def test_a_new_agent_is_there_at_once_and_a_taken_name_is_refused(agency):
    directory = await agency.manager.create_agent("carl", name="Carl")
    assert (directory / "agent.json").exists()
    assert (await agency.manager.get("carl")).config.name == "Carl"
    with pytest.raises(Duplicate):
        await agency.manager.create_agent("anna")
    assert [event["agent_id"] for event in agency.events("agent.created")] == ["carl"]


# Replacing the instance


async def test_a_swap_leaves_running_turns_on_their_instance(agency):
    old = await agency.manager.get("anna")
    chats = agency.chats("anna")
    turn = chats.turn(100)
    await settled(agency, 1)
    new = agency.instance(2, old.current)
    await new.start(old.services.running([CHATS]))
    agency.journal.clear()
    agency.manager.swap(old, new, moved=[CHATS])
    assert agency.journal == ["<anna", ">anna"]
    assert await agency.manager.get("anna") is new
    assert agency.chats("anna") is chats
    assert old.busy
    chats.turn(1000)
    await settled(agency, 99)
    await turn
    assert await asyncio.wait_for(old.until_idle(0), 1)
    assert new.busy
    await old.stop(keep=[CHATS])
    assert agency.journal == ["<anna", ">anna", "-anna"]
    assert agency.manager.state("anna").generation == 2


async def test_a_failed_swap_leaves_the_old_instance_acting(agency):
    old = await agency.manager.get("anna")
    agency.wrong["anna"] = ["activate"]
    new = agency.instance(2, old.current)
    await new.start(old.services.running([CHATS]))
    with pytest.raises(ValueError, match="anna cannot activate"):
        agency.manager.swap(old, new, moved=[CHATS])
    await new.stop()
    assert await agency.manager.get("anna") is old
    assert old.current.workspace is old
    assert old.services.get("main").acting
    assert not old.services.get(CHATS).closed


async def test_only_the_running_instance_is_replaced(agency):
    first = await agency.manager.get("anna")
    second, third = agency.instance(2, first.current), agency.instance(2, first.current)
    await second.start()
    await third.start()
    agency.manager.swap(first, second)
    with pytest.raises(Conflict):
        agency.manager.swap(first, third)
    await third.stop()
    await first.stop()
    assert await agency.manager.get("anna") is second


async def test_an_instance_that_resists_is_not_replaced(agency):
    agency.wrong["anna"] = ["deactivate"]
    old = await agency.manager.get("anna")
    new = agency.instance(2, old.current)
    await new.start()
    with pytest.raises(Conflict, match="main could not be made quiet"):
        agency.manager.swap(old, new)
    await new.stop()
    assert await agency.manager.get("anna") is old
    assert "could not be made quiet" in agency.shown()[0]
