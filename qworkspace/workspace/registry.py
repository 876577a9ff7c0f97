"""What every new workspace gets: the declarations of its services, the built-in extensions, the shared services."""

from __future__ import annotations

from pathlib import Path

from qworkspace.base.ids import AgentId
from qworkspace.base.registry import Registry
from qworkspace.config.models import AgentConfig
from qworkspace.workspace.services import ServiceLimits
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.workspace import Assemble, Current, Declare, Install, Workspace


class WorkspaceRegistry:
    """Makes workspaces. What is added here is in every workspace made from then on.

    `services` hold `Declare` functions, `extensions` functions that fill a new workspace's registries, `started`
    functions that add to them what the started services bring along.
    """

    def __init__(self, shared: SharedServices, turns: Assemble, *, limits: ServiceLimits | None = None) -> None:
        self.shared = shared
        self.services: Registry[Declare] = Registry("service declaration")
        self.extensions: Registry[Install] = Registry("extension of workspaces")
        self.started: Registry[Install] = Registry("addition of started workspaces")
        self._turns = turns
        self._limits = limits

    def create(
        self,
        agent_id: AgentId,
        directory: Path,
        config: AgentConfig,
        *,
        generation: int = 1,
        current: Current | None = None,
    ) -> Workspace:
        """A new instance, not started. `current` is given when it is to replace one that runs."""
        workspace = Workspace(
            agent_id,
            directory,
            config,
            self.shared,
            services=self.services.values(),
            turns=self._turns,
            started=self.started.values(),
            generation=generation,
            current=current,
            limits=self._limits,
        )
        for install in self.extensions.values():
            install(workspace)
        return workspace
