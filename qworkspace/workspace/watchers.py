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
from qworkspace.config.models import HomeConfig
from qworkspace.config.plan import home_plan
from qworkspace.errors import QworkspaceError
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.reload import Reloader
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.snapshot import AGENT_SHAPE, HOME_SHAPE
from qworkspace.workspace.watch import Watch
from qworkspace.workspace.workspace import Workspace

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
    """Follows the files of each running agent: configuration, prompts, skills, plugins."""

    def __init__(self, watch: Watch, manager: MultiAgentManager, reloader: Reloader, shared: SharedServices) -> None:
        self._watch = watch
        self._manager = manager
        self._reloader = reloader
        self._shared = shared
        self._drivers = DriverConfigWatcher(manager)
        self._tasks = Tasks("watchers")
        self._unlisten: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Follow every agent that runs, from its start to its end."""
        self._unlisten = self._shared.bus.log.listen(self._heard)
        for workspace in self._manager.running():
            self._begin(workspace.agent_id)

    async def stop(self) -> None:
        """Follow nobody any more. Idempotent."""
        self._unlisten()
        await self._tasks.close("the daemon stops")

    def _heard(self, event: Event) -> None:
        agent_id = event.data.get("agent_id")
        if event.type == "workspace.started" and isinstance(agent_id, str):
            self._begin(agent_id)
        elif event.type == "workspace.stopped" and isinstance(agent_id, str):
            self._watch.leave(agent_id)

    def _begin(self, agent_id: str) -> None:
        self._tasks.start(self._follow(agent_id), name=agent_id)

    async def _follow(self, agent_id: str) -> None:
        workspace = self._manager.find(agent_id)
        if workspace is None:
            return
        await self._watch.follow(agent_id, workspace.directory, AGENT_SHAPE, lambda names: self._found(agent_id, names))
        # an edit may have come between the start, which read the files, and this moment
        self._reloader.request(agent_id, "start")

    async def _found(self, agent_id: str, names: set[str]) -> None:
        self._shared.bus.publish("files.changed", agent_id=agent_id, names=sorted(names))
        workspace = self._manager.find(agent_id)
        if workspace is None:
            return
        if cards := [name for name in names if _directory(name) == DRIVERS]:
            await self._drivers.found(workspace, cards)
        plugins = sorted({_second(name) for name in names if _directory(name) == PLUGINS})
        if plugins:
            self._reloader.request(agent_id, f"plugin {', '.join(plugins)} edited", rebuild={PLUGINS})
        if "agent.json" in names:
            self._reloader.request(agent_id, "agent.json edited")


class DriverConfigWatcher:
    """Tells the drivers' service of each card that was edited; the others keep their connections."""

    def __init__(self, manager: MultiAgentManager) -> None:
        self._manager = manager

    async def found(self, workspace: Workspace, cards: Iterable[str]) -> None:
        """Pass on the edits of `drivers/<name>.json`; an agent without that service has nothing to be told."""
        if DRIVERS not in workspace.services:
            return
        service = cast(DriverCards | None, workspace.services.find(DRIVERS))
        if service is None:
            return
        for card in sorted(cards):
            name = PurePosixPath(card).stem
            try:
                if (workspace.directory / card).exists():
                    await service.reload_driver(name)
                else:
                    await service.remove_driver(name)
            except QworkspaceError as error:
                logger.error("driver %s of agent %s: %s", name, workspace.agent_id, error.message)


class HomeConfigWatcher:
    """Follows config.json: agents come and go, everything else counts from its next use on."""

    def __init__(self, watch: Watch, manager: MultiAgentManager, reloader: Reloader, shared: SharedServices) -> None:
        self._watch = watch
        self._manager = manager
        self._reloader = reloader
        self._shared = shared
        self._home: HomeConfig | None = None
        self.on_change: Callable[[HomeConfig], None] = lambda home: None

    async def start(self) -> None:
        """Begin to follow; what is there now is what later edits are compared with."""
        await self._refresh()
        await self._watch.follow(HOME, self._shared.config.home, HOME_SHAPE, self._found)

    async def _found(self, names: set[str]) -> None:
        self._shared.bus.publish("files.changed", names=sorted(names))
        if names & {"config.json", "secrets.json"}:
            await self._refresh()
        plugins = sorted({_second(name) for name in names if _directory(name) == PLUGINS})
        if plugins:
            for workspace in self._manager.running():
                why = f"plugin {', '.join(plugins)} edited"
                self._reloader.request(workspace.agent_id, why, rebuild={PLUGINS})

    async def _refresh(self) -> None:
        config, problems = self._shared.config, self._shared.problems
        broken = await self._shared.threads.run(lambda: config.secrets().problem)
        self._show("secrets", broken)
        try:
            home = await self._shared.threads.run(config.load_home)
        except QworkspaceError as error:
            self._show("config", error)
            return
        problems.clear("config")
        before, self._home = self._home, home
        if before is None or before == home:
            return
        change = home_plan(before.sections(), home.sections())
        self._shared.bus.publish("config.changed", changed=list(change.changed), restart=list(change.restart))
        if change.restart:
            told = f"{', '.join(change.restart)} in config.json has changed and counts from the daemon's next start on"
            problems.report("restart", told, severity="warning")
        self.on_change(home)
        await self._manager.follow_profiles(before.agents.profiles, home.agents.profiles)

    def _show(self, key: str, error: QworkspaceError | None) -> None:
        if error is None:
            self._shared.problems.clear(key)
        else:
            self._shared.problems.report(key, f"{error.message}; the last good values stay in use")


def _directory(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _second(name: str) -> str:
    return name.split("/")[1]
