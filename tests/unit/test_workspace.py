"""One agent's runtime: its services, who holds it, its directory, its registries."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.tools.output import OutputFiles
from qworkspace.config.models import AgentConfig
from qworkspace.errors import Duplicate, StorageError, Unavailable
from qworkspace.plugins.extensions import SlashCommand, TurnContext
from qworkspace.workspace.local import LOCAL, Elsewhere, LocalWorkspace, local_workspaces
from qworkspace.workspace.services import ServiceDescriptor
from qworkspace.workspace.workspace import Workspace
from tests.support.agents import Agency, passing, read_once, settled, stopped, write_json
from tests.support.services import Recorder


@pytest.fixture(autouse=True)
def warm(tmp_path_factory):
    read_once(tmp_path_factory.mktemp("first"))


@pytest.fixture
async def agency(tmp_path):
    agency = Agency(tmp_path / "home", ["anna", "bert"])
    agency.registry.services.add(LOCAL, local_workspaces(agency.config), owner="test")
    yield agency
    await stopped(agency)


async def dance(context: TurnContext, rest: str) -> str:
    return "dancing"


# Making and holding


async def test_making_a_workspace_does_nothing(agency):
    workspace = agency.registry.create("anna", agency.home / "workspaces" / "anna", AgentConfig(id="anna"))
    assert agency.journal == []
    assert not (workspace.directory / ".state").exists()
    with pytest.raises(Unavailable, match="chats of agent 'anna' is not available: it is not started"):
        _ = workspace.runner
    assert not workspace.busy


async def test_the_directory_is_ready_before_all_else_and_holds_no_more_than_needed(agency):
    anna = await agency.manager.get("anna")
    assert min(anna.services.descriptors, key=lambda descriptor: descriptor.priority).name == LOCAL
    assert sorted(os.listdir(anna.directory)) == [".state", "agent.json"]
    assert (anna.directory / ".state").stat().st_mode & 0o777 == 0o700


async def test_each_workspace_has_registries_of_its_own(agency):
    agency.registry.extensions.add(
        "party",
        lambda workspace: workspace.extensions.commands.add(
            "dance", SlashCommand("dance", "Dance.", dance), owner="party"
        ),
        owner="party",
    )
    anna, bert = await agency.manager.get("anna"), await agency.manager.get("bert")
    anna.extensions.remove_owner("party")
    assert "dance" not in anna.extensions.commands
    assert "dance" in bert.extensions.commands


async def test_services_that_a_plugin_declares_run_in_every_later_workspace(agency):
    def declare(workspace: Workspace) -> ServiceDescriptor:
        return ServiceDescriptor("bell", lambda _: Recorder(f"{workspace.agent_id}/bell", agency.journal), 40)

    undo = agency.registry.services.add("bell", declare, owner="party")
    with pytest.raises(Duplicate):
        agency.registry.services.add("bell", declare, owner="another")
    await agency.manager.get("anna")
    undo()
    await agency.manager.get("bert")
    assert ">anna/bell" in agency.journal
    assert ">bert/bell" not in agency.journal


async def test_whoever_holds_it_makes_it_busy_and_its_end_is_noticed_at_once(agency):
    anna = await agency.manager.get("anna")
    with anna.hold():
        assert anna.busy
        waiting = asyncio.create_task(anna.until_idle(60))
        await settled(agency, 10)
        assert not waiting.done()
    await settled(agency)
    assert await waiting
    with anna.hold():
        waiting = asyncio.create_task(anna.until_idle(5))
        await passing(agency, 6)
        assert await waiting is False


async def test_use_counts_from_its_end(agency):
    anna = await agency.manager.get("anna")
    with anna.hold():
        await settled(agency, 100)
    assert agency.clock.monotonic() - anna.last_used < 1


async def test_a_live_change_counts_from_the_next_turn_on(agency):
    made: list[str] = []

    def assemble(workspace: Workspace) -> Any:
        made.append(workspace.config.title)
        return object()

    agency.registry._turns = assemble
    anna = await agency.manager.get("anna")
    assert anna.turns is anna.turns
    anna.adopt(anna.config.model_copy(update={"name": "Anna"}))
    assert anna.turns is anna.turns
    assert made == ["anna", "Anna"]


async def test_status_names_services_and_why_one_is_off(agency):
    agency.registry.services.add(
        "memory", lambda _: agency.descriptor("memory", 30, optional=True, wrong=["start"]), owner="test"
    )
    anna = await agency.manager.get("anna")
    assert anna.state() == {
        "main": {"state": "active"},
        "chats": {"state": "active"},
        LOCAL: {"state": "active"},
        "memory": {"state": "failed", "reason": "ValueError: memory cannot start"},
    }


# The directory


def local(agency: Agency, directory: Path) -> LocalWorkspace:
    fence = Fence(directory, agency.home)
    return LocalWorkspace(directory, fence, OutputFiles(fence, agency.clock), agency.shared.threads)


async def test_a_directory_that_takes_nothing_is_named_and_used_once_it_does(agency):
    state = agency.home / "workspaces" / "anna" / ".state"
    state.write_text("in the way")
    with pytest.raises(StorageError) as refused:
        await agency.manager.get("anna")
    assert str(state) in refused.value.message
    assert "make it a directory that the daemon can write; the next message tries again" in refused.value.message
    assert agency.shown() == [refused.value.message]
    state.unlink()
    await agency.manager.get("anna")
    assert agency.shown() == []


@pytest.mark.parametrize("place", ["/proc/self", "/sys/kernel"])
async def test_a_read_only_directory_is_a_clear_storage_error(place, agency):
    if not Path(place).is_dir():
        pytest.skip("no such file system here")
    service = local(agency, Path(place))
    with pytest.raises(StorageError, match=rf"cannot write '{place}/\.state': "):
        await service.start()


async def test_a_directory_that_is_gone_is_no_reason_to_make_another(agency):
    service = local(agency, agency.home / "workspaces" / "carl")
    with pytest.raises(Unavailable, match="bring it back, or remove the agent"):
        await service.start()
    assert not (agency.home / "workspaces" / "carl").exists()


async def test_tools_of_one_agent_keep_off_the_others_wherever_those_live(agency, tmp_path):
    moved = tmp_path / "moved"
    write_json(moved / "agent.json", {"id": "carl"})
    linked = agency.home / "workspaces" / "dora"
    write_json(tmp_path / "dora" / "agent.json", {"id": "dora"})
    linked.symlink_to(tmp_path / "dora")
    profiles = {"carl": {"workspace_dir": str(moved)}, "dora": {"workspace_dir": "workspaces/dora"}}
    agency.config.patch_home({"agents": {"profiles": profiles}})
    agency.config.load_home()
    elsewhere = Elsewhere(agency.config)
    assert elsewhere.others("anna") == [moved, tmp_path / "dora"]
    assert elsewhere.others("carl") == [tmp_path / "dora"]
    files = (await agency.manager.get("anna")).services.get(LOCAL).files
    for closed in (moved / "AGENTS.md", agency.home / "workspaces" / "bert" / "agent.json", tmp_path / "dora" / "a"):
        assert files.judge_path(closed).decision == "deny"
    assert files.judge_path(tmp_path / "elsewhere").decision == "allow"
    assert await files.write("files/note.txt", b"mine")
    assert (agency.home / "workspaces" / "anna" / "files" / "note.txt").read_bytes() == b"mine"


async def test_long_output_is_kept_in_the_workspace(agency):
    local: LocalWorkspace = (await agency.manager.get("anna")).services.get(LOCAL)
    name = await local.spill("all of it")
    assert (local.directory / name).read_text() == "all of it"
