"""The agent's directory as its services and tools see it: there, writable, fenced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from qworkspace.base.files import storage_error
from qworkspace.base.tasks import Threads
from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.tools.output import OutputFiles
from qworkspace.config.home import HomeConfig
from qworkspace.config.profiles import DEFAULT_PARENT
from qworkspace.config.store import ConfigStore
from qworkspace.errors import StorageError, Unavailable
from qworkspace.plugins.extensions import FileAccess
from qworkspace.workspace.services import ServiceDescriptor, ServiceManager
from qworkspace.workspace.workspace import Declare, Workspace

LOCAL = "local_workspace"
STATE = ".state"


class LocalWorkspace:
    """Tool routing: where the tools of an agent read and write, and where the daemon keeps its own of it.

    `files/`, `memory/` and the like are made when something is first written there.
    """

    def __init__(self, directory: Path, files: FileAccess, spill: OutputFiles, threads: Threads) -> None:
        self.directory = directory
        self.state_dir = directory / STATE
        self.files = files
        self.spill = spill
        self._threads = threads

    async def start(self) -> None:
        """Make `.state`. `Unavailable` without the directory, `StorageError` when nothing can be written there."""
        await self._threads.run(prepare, self.directory)

    def activate(self) -> None:
        """Nothing here acts by itself."""

    def deactivate(self) -> None:
        """Nothing here acts by itself."""

    async def stop(self) -> None:
        """Nothing is held open."""


class Elsewhere:
    """The directories of agents that live outside of the home's `workspaces/`, as config.json says it now."""

    def __init__(self, config: ConfigStore) -> None:
        self._config = config
        self._home: HomeConfig | None = None
        self._known: dict[str, Path] = {}

    def others(self, agent_id: str) -> list[Path]:
        """Those of all agents but that one, symlinks followed."""
        home = self._config.last_good_home()
        if home is not None and home is not self._home:
            usual = os.path.realpath(self._config.home / DEFAULT_PARENT)
            places = {name: Path(os.path.realpath(self._config.agent_dir(name))) for name in home.agents.profiles}
            self._known = {name: place for name, place in places.items() if not place.is_relative_to(usual)}
            self._home = home
        return [place for name, place in self._known.items() if name != agent_id]


def local_workspaces(config: ConfigStore) -> Declare:
    """The declaration of each agent's `LocalWorkspace`."""
    elsewhere = Elsewhere(config)

    def declare(workspace: Workspace) -> ServiceDescriptor:
        shared, agent_id, directory = workspace.shared, workspace.agent_id, workspace.directory

        def make(_: ServiceManager) -> LocalWorkspace:
            fence = Fence(directory, config.home, lambda: elsewhere.others(agent_id))
            return LocalWorkspace(directory, fence, OutputFiles(fence, shared.clock), shared.threads)

        return ServiceDescriptor(LOCAL, make, priority=5)

    return declare


def prepare(directory: Path) -> None:
    """Make `.state` in the directory and see whether something can be written there."""
    if not directory.is_dir():
        told = f"the workspace {str(directory)!r} is not there; bring it back, or remove the agent"
        raise Unavailable(told, code="no_workspace", path=str(directory))
    state = directory / STATE
    try:
        state.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=state):
            return
    except OSError as error:
        refused = storage_error(error, state)
        advice = "make it a directory that the daemon can write; the next message tries again"
        raise StorageError(f"{refused.message}; {advice}", **refused.details) from error
