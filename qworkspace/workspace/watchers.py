"""What an edit leads to: `agent.json` and plugins to a reload, a driver card to that driver, `config.json` to agents.

The watchers belong to the daemon. Where content is what the daemon itself has just written, nothing differs from what
it uses already, and nothing happens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Protocol, cast

from qworkspace.base.events import Event
from qworkspace.base.tasks import Tasks
from qworkspace.config.memory import MemoryConfig
from qworkspace.config.models import AgentConfig, EmbeddingConfig, HomeConfig, ProviderConfig
from qworkspace.config.plan import Sections, home_plan
from qworkspace.errors import InvalidConfig, QworkspaceError
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.reload import Reloader
from qworkspace.workspace.running import describe
from qworkspace.workspace.seat import AgentState
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.snapshot import HOME_SHAPE, Shape, agent_shape
from qworkspace.workspace.unknown import show_unknown_keys
from qworkspace.workspace.watch import Watch
from qworkspace.workspace.workspace import MEMORY, Workspace

logger = logging.getLogger(__name__)

HOME = "home"
DRIVERS = "drivers"
PLUGINS = "plugins"


class DriverCards(Protocol):
    """What the drivers' service is told when cards are edited one by one."""

    async def reload_driver(self, name: str) -> None:
        """The card is new or another."""

    async def remove_driver(self, name: str) -> None:
        """The card is gone."""


class AgentConfigWatcher:
    """Follows the files of each agent that runs, or could not start: configuration, prompts, skills, plugins."""

    def __init__(self, watch: Watch, manager: MultiAgentManager, reloader: Reloader, shared: SharedServices) -> None:
        self._watch = watch
        self._manager = manager
        self._reloader = reloader
        self._shared = shared
        self._drivers = DriverConfigWatcher(manager, shared)
        self._tasks = Tasks("watchers")
        self._shapes: dict[str, Shape] = {}
        self._unlisten: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Follow every agent from its start to its end; one whose start failed, until it starts or is taken out."""
        self._unlisten = self._shared.bus.log.listen(self._heard)
        for agent_id, status in self._manager.states().items():
            if status.state in (AgentState.RUNNING, AgentState.FAILED):
                self._begin(agent_id, broken=status.state is AgentState.FAILED)

    async def stop(self) -> None:
        """Follow nobody any more. Idempotent."""
        self._unlisten()
        await self._tasks.close("the daemon stops")
        await self._drivers.stop()

    def _heard(self, event: Event) -> None:
        agent_id = event.data.get("agent_id")
        if not isinstance(agent_id, str):
            return
        if event.type in ("workspace.started", "workspace.failed"):
            self._begin(agent_id, broken=event.data.get("code") == InvalidConfig.code)
        elif event.type == "reload.swapped":
            self._reloaded(agent_id)
        elif event.type == "workspace.stopped":
            self._leave(agent_id)
        elif event.type == "agent.deleted":
            self._forget(agent_id)

    def _begin(self, agent_id: str, *, broken: bool) -> None:
        self._tasks.start(self._follow(agent_id, broken), name=agent_id)

    async def _follow(self, agent_id: str, broken: bool) -> None:
        try:
            directory = await self._shared.threads.run(self._shared.config.agent_dir, agent_id)
        except QworkspaceError:
            return  # taken out of config.json meanwhile
        workspace = self._manager.find(agent_id)
        place = workspace.directory if workspace is not None else directory
        shape = self._shapes[agent_id] = _shape_of(workspace)
        await self._watch.follow(agent_id, place, shape, lambda names: self._found(agent_id, names))
        self._leave(agent_id)
        if (running := self._manager.find(agent_id)) is not None:
            running.memory.files_changed(None)
        # an edit may have come between the start, which read the files, and this moment
        if self._manager.find(agent_id) is not None or (broken and await self._is_mended(agent_id)):
            self._reloader.request(agent_id, "start")

    def _reloaded(self, agent_id: str) -> None:
        """The notes may be elsewhere from now on, and what memory waits for may be there."""
        workspace = self._manager.find(agent_id)
        if workspace is None:
            return
        workspace.memory.wake()
        if agent_id in self._shapes and self._shapes[agent_id] != _shape_of(workspace):
            self._begin(agent_id, broken=False)

    async def _is_mended(self, agent_id: str) -> bool:
        """Whether the file that kept the agent from starting is good by now."""
        try:
            await self._shared.threads.run(self._shared.config.load_agent, agent_id)
        except QworkspaceError:
            return False
        return True

    def _leave(self, agent_id: str) -> None:
        """Follow it no longer, unless it runs or still has to start."""
        if self._manager.find(agent_id) is None and self._manager.state_of(agent_id) is not AgentState.FAILED:
            self._watch.leave(agent_id)
            self._shapes.pop(agent_id, None)

    def _forget(self, agent_id: str) -> None:
        """Nothing of an agent that was taken out has to be mended any more."""
        self._leave(agent_id)
        for problem in self._shared.problems.of(agent_id):
            self._shared.problems.clear(problem.key)

    async def _found(self, agent_id: str, names: set[str]) -> None:
        self._shared.bus.publish("files.changed", agent_id=agent_id, names=sorted(names))
        workspace = self._manager.find(agent_id)
        if workspace is not None:
            workspace.memory.files_changed(names)
        self._drivers.found(agent_id, (name for name in names if _directory(name) == DRIVERS))
        plugins = sorted({_second(name) for name in names if _directory(name) == PLUGINS})
        if plugins:
            self._reloader.request(agent_id, f"plugin {', '.join(plugins)} edited", rebuild={PLUGINS})
        if "agent.json" in names:
            self._reloader.request(agent_id, "agent.json edited")


class DriverConfigWatcher:
    """Tells the drivers' service of each card that was edited; the others keep their connections.

    Edits of one card are told one after another, and those that come meanwhile as one; no card waits for another.
    """

    def __init__(self, manager: MultiAgentManager, shared: SharedServices) -> None:
        self._manager = manager
        self._shared = shared
        self._edited: set[tuple[str, str]] = set()
        self._working: set[tuple[str, str]] = set()
        self._tasks = Tasks("driver cards")

    def found(self, agent_id: str, cards: Iterable[str]) -> None:
        """Pass on the edits of `drivers/<name>.json`; an agent without that service has nothing to be told."""
        for card in sorted(cards):
            edited = (agent_id, card)
            self._edited.add(edited)
            if edited not in self._working:
                self._working.add(edited)
                self._tasks.start(self._work(edited), name=f"{agent_id}/{card}")

    async def stop(self) -> None:
        """Pass on nothing more. Idempotent."""
        await self._tasks.close("the daemon stops")

    async def _work(self, edited: tuple[str, str]) -> None:
        try:
            while edited in self._edited:
                self._edited.discard(edited)
                await self._pass_on(*edited)
        finally:
            self._working.discard(edited)

    async def _pass_on(self, agent_id: str, card: str) -> None:
        workspace = self._manager.find(agent_id)
        service = _drivers_of(workspace) if workspace is not None else None
        if workspace is None or service is None:
            return
        name, key = PurePosixPath(card).stem, f"driver:{agent_id}:{card}"
        try:
            if await self._shared.threads.run((workspace.directory / card).exists):
                await service.reload_driver(name)
            else:
                await service.remove_driver(name)
        except Exception as error:
            if not isinstance(error, QworkspaceError):
                logger.exception("driver %s of agent %s failed", name, agent_id)
            told = f"driver {name!r} of agent {agent_id!r}: {describe(error)}"
            self._shared.problems.report(key, told, agent_id=agent_id)
        else:
            self._shared.problems.clear(key)


class HomeConfigWatcher:
    """Follows config.json: agents come and go, everything else counts from its next use on."""

    def __init__(self, watch: Watch, manager: MultiAgentManager, reloader: Reloader, shared: SharedServices) -> None:
        self._watch = watch
        self._manager = manager
        self._reloader = reloader
        self._shared = shared
        self._home = HomeConfig()
        self._started: Sections = {}
        self.on_change: Callable[[HomeConfig], None] = lambda home: None

    async def start(self) -> None:
        """Begin to follow; what is in use now is what later edits are compared with."""
        home = await self._load()
        self._home = home or self._shared.config.last_good_home() or self._home
        self._started = _addresses(self._home)
        await self._watch.follow(HOME, self._shared.config.home, HOME_SHAPE, self._found)
        await self._refresh()  # an edit may have come in between

    async def _found(self, names: set[str]) -> None:
        self._shared.bus.publish("files.changed", names=sorted(names))
        if names & {"config.json", "secrets.json"}:
            await self._refresh()
        if "secrets.json" in names:
            self._reload_all("secrets.json edited")
        plugins = sorted({_second(name) for name in names if _directory(name) == PLUGINS})
        if plugins:
            self._reload_all(f"plugin {', '.join(plugins)} edited", rebuild={PLUGINS})

    def _reload_all(self, trigger: str, rebuild: Iterable[str] = ()) -> None:
        """Of agents that are not affected, nothing is reloaded."""
        for agent_id, status in self._manager.states().items():
            if status.state in (AgentState.RUNNING, AgentState.FAILED):
                self._reloader.request(agent_id, trigger, rebuild)

    async def _refresh(self) -> None:
        home = await self._load()
        if home is None or self._home == home:
            return
        before, self._home = self._home, home
        change = home_plan(before.sections(), home.sections())
        self._shared.bus.publish("config.changed", changed=list(change.changed), restart=list(change.restart))
        self._tell_restart(home_plan(self._started, _addresses(home)).restart)
        self.on_change(home)
        self._tell_memories(before, home)
        await self._manager.follow_profiles(before.agents.profiles, home.agents.profiles)

    def _tell_memories(self, before: HomeConfig, home: HomeConfig) -> None:
        """Another embedder makes another memory; other models may answer what a memory has waited to ask."""
        for workspace in self._manager.running():
            if embedding_of(before, workspace.config) != embedding_of(home, workspace.config):
                self._reloader.request(workspace.agent_id, "embedding edited", rebuild={MEMORY})
            else:
                workspace.memory.wake()

    async def _load(self) -> HomeConfig | None:
        """config.json as it is now; None while it cannot be used, which is shown."""
        config = self._shared.config
        self._show("secrets", await self._shared.threads.run(lambda: config.secrets().problem))
        try:
            home = await self._shared.threads.run(config.load_home)
        except QworkspaceError as error:
            self._show("config", error)
            return None
        self._show("config", None)
        await show_unknown_keys(self._shared)
        return home

    def _tell_restart(self, fields: Iterable[str]) -> None:
        changed = ", ".join(fields)
        if not changed:
            self._shared.problems.clear("restart")
            return
        told = f"{changed} in config.json has changed and counts from the daemon's next start on"
        self._shared.problems.report("restart", told, severity="warning")

    def _show(self, key: str, error: QworkspaceError | None) -> None:
        if error is None:
            self._shared.problems.clear(key)
        else:
            self._shared.problems.report(key, f"{error.message}; the last good values stay in use")


def _drivers_of(workspace: Workspace) -> DriverCards | None:
    if DRIVERS not in workspace.services:
        return None
    return cast(DriverCards | None, workspace.services.find(DRIVERS))


def embedding_of(home: HomeConfig, agent: AgentConfig) -> tuple[EmbeddingConfig, ProviderConfig | None]:
    """What makes the agent's vectors, with the provider that is asked for them."""
    embedding = agent.running.memory.embedding or home.embedding
    return embedding, home.providers.get(embedding.provider)


def _shape_of(workspace: Workspace | None) -> Shape:
    return agent_shape(workspace.config.running.memory if workspace is not None else MemoryConfig())


def _addresses(home: HomeConfig) -> Sections:
    """What counts from a start on."""
    return {"server": home.server.model_dump(include={"host", "port"})}


def _directory(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _second(name: str) -> str:
    return name.split("/")[1]
