"""All agents of a daemon: started at their first request, unloaded when idle, stopped together."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from qworkspace.base.ids import AgentId
from qworkspace.base.ids import agent_id as valid_agent_id
from qworkspace.base.problems import Problem
from qworkspace.base.tasks import Tasks
from qworkspace.base.waiting import ends_within
from qworkspace.config.models import AgentConfig, LifecycleConfig, ProfileRef
from qworkspace.errors import Conflict, Denied, InvalidConfig, NotFound, QworkspaceError, Unavailable
from qworkspace.workspace.registry import WorkspaceRegistry
from qworkspace.workspace.seat import AgentState, Seat
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.workspace import Workspace

logger = logging.getLogger(__name__)
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What is known of an agent without starting it or reading its files."""

    agent_id: str
    state: AgentState
    generation: int = 0
    error: str = ""
    services: dict[str, Any] = field(default_factory=dict)
    active_turns: int = 0
    queued_turns: int = 0
    problems: tuple[Problem, ...] = ()
    enabled: bool = True


class MultiAgentManager:
    """The table of agents. It lends running workspaces and never one of another agent."""

    def __init__(self, shared: SharedServices, registry: WorkspaceRegistry) -> None:
        self._shared = shared
        self._registry = registry
        self._seats: dict[AgentId, Seat] = {}
        self._told: dict[str, str] = {}
        self._tasks = Tasks("agents")
        self._stopping = False
        self._closing: asyncio.Task[None] | None = None

    async def get(self, agent_id: str) -> Workspace:
        """The agent's running workspace, started if need be; concurrent callers share one start.

        `InvalidInput` for what is no id, `NotFound`, `Denied` (code `agent_disabled`), `Unavailable` when it cannot
        start. To work longer with it than for a moment, `use` it.
        """
        return await (await self._seat(agent_id)).get()

    @asynccontextmanager
    async def use(self, agent_id: str) -> AsyncIterator[Workspace]:
        """The agent's running workspace, which is not stopped for being idle or replaced during the block."""
        workspace = await self.get(agent_id)
        with workspace.hold():
            yield workspace

    async def start_all_configured_agents(self, limit: int | None = None) -> dict[str, QworkspaceError]:
        """Start those that must be up with the daemon, `limit` at a time; why some of them could not."""
        doors = asyncio.Semaphore(limit or self._lifecycle().parallel_starts)
        failures: dict[str, QworkspaceError] = {}

        async def start(agent_id: str) -> None:
            async with doors:
                try:
                    await self.get(agent_id)
                except QworkspaceError as error:
                    failures[agent_id] = error

        profiles = self._profiles()
        await asyncio.gather(*(start(name) for name in self._shared.config.agent_ids() if _eager(profiles.get(name))))
        return failures

    async def unload_idle(self) -> list[str]:
        """End the workspaces that nothing has used or held for the idle time; the ids of those agents."""
        patience = self._lifecycle().idle_unload
        if patience <= 0:
            return []
        profiles = self._profiles()
        now = self._shared.clock.monotonic()
        ending = {}
        for seat in self._seats.values():
            idle = seat.workspace is not None and now - seat.workspace.last_used >= patience
            if idle and not _eager(profiles.get(seat.agent_id)) and (pending := seat.unload()) is not None:
                ending[seat.agent_id] = pending
        for pending in ending.values():
            await pending.done.wait()
        return list(ending)

    async def stop(self, timeout: float | None = None) -> None:
        """No more starts; running turns get `timeout` seconds; then everything ends, all agents at once.

        Bounded in time, and idempotent.
        """
        self._stopping = True
        patience = self._lifecycle().shutdown_grace if timeout is None else timeout
        if self._closing is None:
            self._closing = self._tasks.start(self._close_all(patience), name="stop")
        if not await ends_within(self._closing, patience + STOP_SECONDS, self._shared.clock):
            late = [seat.agent_id for seat in self._seats.values() if seat.workspace is not None]
            logger.error("agents that did not stop in time: %s", ", ".join(late))
        await self._tasks.close("the daemon stops")

    def swap(self, old: Workspace, new: Workspace, moved: Collection[str] = ()) -> None:
        """Let `new` act in place of its agent's running workspace `old`; see `Seat.swap`."""
        seat = self._seats.get(new.agent_id)
        if seat is None:
            raise Conflict(f"agent {new.agent_id!r} is not running")
        seat.swap(old, new, moved)

    def find(self, agent_id: str) -> Workspace | None:
        """The running workspace, or None; nothing is started and it does not count as a use."""
        seat = self._seats.get(AgentId(agent_id))
        return seat.workspace if seat is not None else None

    def state_of(self, agent_id: str) -> AgentState:
        """Where the agent is, as far as it was ever asked for; nothing is read."""
        seat = self._seats.get(AgentId(agent_id))
        return seat.state if seat is not None else AgentState.DORMANT

    def running(self) -> list[Workspace]:
        """All running workspaces."""
        return [seat.workspace for seat in self._seats.values() if seat.workspace is not None]

    def states(self) -> dict[str, AgentStatus]:
        """Every agent's status; cheap for a thousand dormant ones."""
        problems: dict[str | None, list[Problem]] = defaultdict(list)
        for problem in self._shared.problems.of():
            problems[problem.agent_id].append(problem)
        profiles = self._profiles()
        names = dict.fromkeys([*profiles, *(name for name, seat in self._seats.items() if seat.workspace is not None)])
        return {name: self._status(name, profiles.get(name), tuple(problems.get(name, ()))) for name in names}

    def state(self, agent_id: str) -> AgentStatus:
        """One agent's status; `NotFound` when there is none of that id."""
        profile = self._shared.config.profile(agent_id)
        return self._status(agent_id, profile, tuple(self._shared.problems.of(agent_id)))

    async def create_agent(
        self, agent_id: str, template: str = "default", *, name: str | None = None, copy_of: str | None = None
    ) -> Path:
        """A new agent from a template, or from another one's persona and configuration; its directory."""
        seat = self._seats.get(valid_agent_id(agent_id))
        if seat is not None and seat.workspace is not None and agent_id not in self._profiles():
            raise Conflict(f"the former agent {agent_id!r} is still finishing; try again in a moment")
        directory = await self._shared.threads.run(
            self._shared.config.create_agent, agent_id, template, name=name, copy_of=copy_of
        )
        self._seats.pop(AgentId(agent_id), None)
        self._tell(agent_id, "created")
        return directory

    async def delete_agent(self, agent_id: str, *, remove_files: bool = False) -> None:
        """Take the agent out of the configuration and end it, running turns first. Its directory stays unless asked."""
        directory = self._shared.config.agent_dir(agent_id)
        if remove_files and not directory.is_relative_to(self._shared.config.home):
            raise Conflict(f"{directory} lies outside of the home; remove it yourself", id=agent_id)
        await self._shared.threads.run(self._shared.config.delete_agent, agent_id)
        seat = self._seats.get(AgentId(agent_id))
        if seat is not None:
            await seat.close(NotFound("agent", agent_id), "deleted", self._lifecycle().shutdown_grace)
            self._forget(seat)
        if remove_files:
            await self._shared.threads.run(_remove_tree, directory)
        self._tell(agent_id, "deleted")

    async def disable_agent(self, agent_id: str) -> None:
        """Refuse new turns at once and for the next starts too. What runs finishes in the background, then it ends."""
        await self._shared.threads.run(self._shared.config.set_enabled, agent_id, False)
        self.withdraw(agent_id, _disabled(agent_id), "disabled")
        self._tell(agent_id, "disabled")

    async def enable_agent(self, agent_id: str) -> None:
        """Let requests in again."""
        await self._shared.threads.run(self._shared.config.set_enabled, agent_id, True)
        self.readmit(agent_id)
        self._tell(agent_id, "enabled")

    def withdraw(self, agent_id: str, refusal: QworkspaceError, reason: str) -> None:
        """Answer requests with `refusal` from now on; running turns finish, then the workspace ends."""
        seat = self._seats.get(AgentId(agent_id))
        if seat is not None:
            seat.withdraw(refusal, reason, self._lifecycle().drain_limit)

    def readmit(self, agent_id: str) -> None:
        """Take back a `withdraw`."""
        seat = self._seats.get(AgentId(agent_id))
        if seat is not None:
            seat.readmit()

    async def follow_profiles(self, before: Mapping[str, ProfileRef], after: Mapping[str, ProfileRef]) -> None:
        """config.json was edited: who is gone or disabled takes no new turns, who came or came back does.

        An agent whose directory is another one ends its instance, running turns first, and starts there next time.
        """
        for name, profile in before.items():
            now = after.get(name)
            if now is None:
                self.withdraw(name, NotFound("agent", name), "removed")
                self._tell(name, "deleted")
            elif profile.enabled and not now.enabled:
                self.withdraw(name, _disabled(name), "disabled")
                self._tell(name, "disabled")
            elif now.enabled and now.workspace_dir != profile.workspace_dir:
                moving = Unavailable(f"agent {name!r} moves to another directory; try again in a moment", id=name)
                self.withdraw(name, moving, "moved")
        for name, profile in after.items():
            was = before.get(name)
            if profile.enabled and (was is None or not was.enabled):
                self.readmit(name)
                self._tell(name, "created" if was is None else "enabled")
        if not self._stopping:  # in the background: the next edit need not wait for slow starts
            self._tasks.start(self.start_all_configured_agents(), name="eager agents")

    def _tell(self, agent_id: str, what: str) -> None:
        """Everybody hears of it once, whether it was asked for or found in the file that was written for it."""
        if self._told.get(agent_id) != what:
            self._told[agent_id] = what
            self._shared.bus.publish(f"agent.{what}", agent_id=agent_id)

    async def _seat(self, agent_id: str) -> Seat:
        """The agent's place. Who is not configured gets none, and so does everybody once the daemon stops."""
        name = valid_agent_id(agent_id)
        seat = self._seats.get(name)
        if seat is None or seat.state is not AgentState.RUNNING:
            await self._shared.threads.run(self._shared.config.profile, name)
        if self._stopping:
            raise _stopping()
        if seat is not None and seat.state is AgentState.RUNNING:
            return seat
        if not self._shared.config.profile(name).enabled:  # again: it may have changed during the wait; read by now
            raise _disabled(name)
        seat = self._seats.get(name)
        if seat is not None:
            seat.reconsider()
            return seat
        seat = Seat(name, lambda generation: self._open(name, generation), self._shared, self._tasks)
        self._seats[name] = seat
        return seat

    async def _open(self, agent_id: AgentId, generation: int) -> Workspace:
        config = await self._load(agent_id)
        return self._registry.create(agent_id, self._shared.config.agent_dir(agent_id), config, generation=generation)

    async def _load(self, agent_id: str) -> AgentConfig:
        """The agent's configuration; while its file is broken, the last one that was good."""
        key = f"config:{agent_id}"
        try:
            config = await self._shared.threads.run(self._shared.config.load_agent, agent_id)
        except InvalidConfig as error:
            good = self._shared.config.last_good_agent(agent_id)
            if good is None:
                raise
            message = f"{error.message}; the last valid configuration stays in use"
            self._shared.problems.report(key, message, agent_id=agent_id)
            return good
        self._shared.problems.clear(key)
        return config

    async def _close_all(self, patience: float) -> None:
        await asyncio.gather(*(seat.close(_stopping(), "shutdown", patience) for seat in self._seats.values()))

    def _forget(self, seat: Seat) -> None:
        for problem in self._shared.problems.of(seat.agent_id):
            self._shared.problems.clear(problem.key)
        if self._seats.get(seat.agent_id) is seat:
            del self._seats[seat.agent_id]

    def _status(self, agent_id: str, profile: ProfileRef | None, problems: tuple[Problem, ...]) -> AgentStatus:
        seat = self._seats.get(AgentId(agent_id))
        disabled = profile is not None and not profile.enabled
        known = partial(AgentStatus, agent_id, problems=problems, enabled=not disabled)
        if seat is None:
            return known(AgentState.DISABLED if disabled else AgentState.DORMANT)
        workspace = seat.workspace
        if workspace is None:
            return known(AgentState.DISABLED if disabled else seat.state, seat.generation, seat.error)
        return known(seat.state, seat.generation, "", workspace.state(), *workspace.turn_counts())

    def _profiles(self) -> dict[str, ProfileRef]:
        with suppress(InvalidConfig):  # broken since the start: shown as a problem, and there is no agent
            self._shared.config.agent_ids()  # looks whether config.json has changed; a broken one changes nothing
        home = self._shared.config.last_good_home()
        return home.agents.profiles if home is not None else {}

    def _lifecycle(self) -> LifecycleConfig:
        home = self._shared.config.last_good_home()
        return home.lifecycle if home is not None else LifecycleConfig()


def _eager(profile: ProfileRef | None) -> bool:
    return profile is not None and profile.enabled and profile.start == "eager"


def _disabled(agent_id: str) -> Denied:
    return Denied(f"agent {agent_id!r} is disabled; enable it to talk to it", code="agent_disabled", id=agent_id)


def _stopping() -> Unavailable:
    return Unavailable("the daemon is stopping; try again after its restart", code="stopping")


def _remove_tree(directory: Path) -> None:
    """Remove the agent's directory; a link to one is unlinked only."""
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists():
        shutil.rmtree(directory)
