"""What is older than `retention` says is removed, in the agents that run, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.assembly import Assembly
from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.ids import AgentId, SessionId
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.tools.output import DIRECTORY
from qworkspace.config.store import ConfigStore
from qworkspace.sessions.models import TurnRequest, user_message
from qworkspace.workspace.local import LOCAL, LocalWorkspace
from qworkspace.workspace.workspace import Workspace
from tests.support.daemon import write_home

pytestmark = pytest.mark.may_block  # opens real databases
DAY = 86_400.0
WITHOUT_MEMORY = {"running": {"memory_manager_backend": "none"}}
"""Recall waits for time to move on."""


class Home:
    """A daemon's parts over a home, in simulated time."""

    def __init__(self, directory: Path) -> None:
        self.clock = SimulatedClock()
        self.threads = Threads()
        bus = EventBus(self.clock)
        config = ConfigStore(directory, environ={})
        problems = Problems(self.clock, bus)
        self.assembly = Assembly(config, clock=self.clock, threads=self.threads, bus=bus, problems=problems)

    async def talk(self, session: str) -> Workspace:
        """One turn with the built-in offline model, and a long output of a tool."""
        workspace = await self.assembly.manager.get("default")
        request = TurnRequest(AgentId("default"), SessionId(session), user_message("hello"))
        await (await workspace.runner.submit(request)).done
        local: LocalWorkspace = workspace.services.get(LOCAL)
        await local.spill(f"output of {session}")
        return workspace


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    retention = {"sessions_days": 30, "tool_outputs_days": 10}
    home = Home(write_home(tmp_path, agent=WITHOUT_MEMORY, config={"retention": retention}))
    await home.assembly.open()
    yield home
    await home.assembly.close()
    home.threads.close()


async def test_old_conversations_and_outputs_go_and_new_ones_stay(home: Home) -> None:
    workspace = await home.talk("old")
    await home.talk("pinned")
    await workspace.sessions.pin("pinned")
    await home.clock.advance(20 * DAY)
    await home.talk("new")
    outputs = workspace.directory / DIRECTORY
    (outputs / "mine.txt").write_text("a person's")

    await home.assembly.prune()
    assert sorted(file.read_text() for file in outputs.iterdir()) == ["a person's", "output of new"]
    assert {session.id for session in (await workspace.sessions.sessions())[0]} == {"old", "pinned", "new"}

    await home.clock.advance(11 * DAY)
    await home.assembly.prune()
    assert {session.id for session in (await workspace.sessions.sessions())[0]} == {"pinned", "new"}


async def test_without_limits_everything_is_kept(tmp_path: Path) -> None:
    retention = {"sessions_days": None, "tool_outputs_days": None}
    home = Home(write_home(tmp_path, agent=WITHOUT_MEMORY, config={"retention": retention}))
    await home.assembly.open()
    workspace = await home.talk("old")
    await home.clock.advance(10_000 * DAY)
    await home.assembly.prune()
    assert [session.id for session in (await workspace.sessions.sessions())[0]] == ["old"]
    assert len(list((workspace.directory / DIRECTORY).iterdir())) == 1
    await home.assembly.close()
    home.threads.close()
