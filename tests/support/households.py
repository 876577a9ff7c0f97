"""A home with agents as the daemon runs them, in this process and without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from qworkspace.assembly import Assembly
from qworkspace.base.clock import SystemClock
from qworkspace.base.events import EventBus
from qworkspace.base.ids import AgentId, SessionId
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.live import LiveTurn
from qworkspace.config.store import ConfigStore
from qworkspace.memory.markdown import MarkdownMemory
from qworkspace.sessions.models import TurnRequest, user_message
from qworkspace.workspace.history import Reload
from qworkspace.workspace.workspace import Workspace
from tests.support.daemon import write_home, write_json

WORDS_ONLY = {"embedding": {"provider": "none"}}


class Household:
    """`async with` opens it. Memory finds by words only unless `config` says otherwise."""

    def __init__(
        self,
        home: Path,
        agents: Sequence[str] = ("anna",),
        *,
        agent: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        models: str | None = None,
    ) -> None:
        self.home = write_home(
            home, agents=agents, agent=agent, models=models, memory=True, config={**WORDS_ONLY, **dict(config or {})}
        )
        self.clock = SystemClock()
        self.bus = EventBus(self.clock)
        self.problems = Problems(self.clock, self.bus)
        self.config = ConfigStore(home, environ={})

    async def __aenter__(self) -> Self:
        self.threads = Threads()
        await self.threads.run(self.config.load_home)
        self.assembly = Assembly(
            self.config, clock=self.clock, threads=self.threads, bus=self.bus, problems=self.problems
        )
        await self.assembly.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.assembly.close()
        self.bus.log.close()
        self.threads.close()

    def folder(self, agent: str = "anna") -> Path:
        return self.home / "workspaces" / agent

    def write(self, name: str, text: str, agent: str = "anna") -> None:
        """A file of the workspace, as an editor writes it."""
        path = self.folder(agent) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    async def workspace(self, agent: str = "anna") -> Workspace:
        return await self.assembly.manager.get(agent)

    async def memory(self, agent: str = "anna") -> MarkdownMemory:
        return cast(MarkdownMemory, (await self.workspace(agent)).memory)

    async def send(self, text: str, *, agent: str = "anna", session: str = "s1", **more: Any) -> LiveTurn:
        request = TurnRequest(AgentId(agent), SessionId(session), user_message(text), **more)
        return await (await self.workspace(agent)).runner.submit(request)

    async def ask(self, text: str, **more: Any) -> LiveTurn:
        """A turn to its end."""
        live = await self.send(text, **more)
        await asyncio.wait_for(asyncio.shield(live.done), 20)
        return live

    async def edit(self, agent: str = "anna", **changes: Any) -> Reload | None:
        """Another agent.json, and the reload that it leads to."""
        write_json(self.folder(agent) / "agent.json", {"id": agent, **changes})
        return await self.assembly.reloader.reload(agent, "test")

    def told(self, agent: str = "anna") -> list[str]:
        """The messages of the agent's open problems."""
        return [problem.message for problem in self.problems.of(agent)]


async def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until it holds, so many seconds at most."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
