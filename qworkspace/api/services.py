"""What the HTTP side is given by the daemon: there at once, or when the daemon has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.metrics import Metrics
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.errors import Unavailable

if TYPE_CHECKING:
    from qworkspace.api.auth import Auth
    from qworkspace.api.guard import Access
    from qworkspace.approvals import ApprovalStore
    from qworkspace.chat.live import LiveTurn
    from qworkspace.config.store import ConfigStore
    from qworkspace.sessions.models import TurnRequest
    from qworkspace.sessions.store import SessionStore


class DaemonState(StrEnum):
    """Where the daemon is in its life, as clients see it. `Api` is the one writer."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Runner(Protocol):
    """The turns of one agent, as requests use them."""

    @property
    def active(self) -> int:
        """Turns that run now."""

    @property
    def queued(self) -> int:
        """Turns that wait."""

    async def submit(self, request: TurnRequest) -> LiveTurn:
        """Journal the request, then run it."""

    async def resume(self, turn_id: str) -> LiveTurn:
        """Carry on an interrupted turn."""

    async def cancel(self, session_id: str) -> bool:
        """Cancel what runs and waits in the session; False when nothing did."""

    def live(self, session_id: str) -> LiveTurn | None:
        """The session's running turn, else the next waiting one."""

    def find(self, turn_id: str) -> LiveTurn | None:
        """The turn while it lives, and shortly after."""


class RunningAgent(Protocol):
    """One agent's workspace, started."""

    @property
    def directory(self) -> Path:
        """Its directory."""

    @property
    def sessions(self) -> SessionStore:
        """Its conversations."""

    @property
    def runner(self) -> Runner:
        """Its turns."""


class Agents(Protocol):
    """All agents: started on first use."""

    async def get(self, agent_id: str) -> RunningAgent:
        """The agent's workspace, started if need be; `NotFound`, or a refusal when it is disabled."""

    def running(self) -> Sequence[Any]:
        """The started workspaces."""

    def states(self) -> dict[str, Any]:
        """What is known of each started agent."""


@dataclass(frozen=True, slots=True)
class Info:
    """Plain facts about this daemon."""

    version: str
    started_at: datetime
    home: Path


@dataclass(frozen=True, slots=True)
class ApiServices:
    """Everything that routes need, once the daemon has it."""

    manager: Agents
    config: ConfigStore
    bus: EventBus
    problems: Problems
    approvals: ApprovalStore
    auth: Auth
    metrics: Metrics
    shutdown: Callable[[str], None]


class Api:
    """What is there from the first request on, and the door that the daemon opens when all is ready."""

    def __init__(self, info: Info, *, clock: Clock, threads: Threads, access: Access) -> None:
        self.info = info
        self.clock = clock
        self.threads = threads
        self.access = access
        self.state = DaemonState.STARTING
        self._services: ApiServices | None = None

    def open(self, services: ApiServices) -> None:
        """Serve everything from now on."""
        self._services = services
        self.state = DaemonState.READY

    def close(self) -> None:
        """The daemon is stopping: streams and reads go on to the end, `/readyz` says so."""
        self.state = DaemonState.STOPPING

    @property
    def services(self) -> ApiServices:
        """The services, or `Unavailable` while the daemon starts."""
        if self._services is None:
            raise self.not_ready()
        return self._services

    @property
    def known(self) -> ApiServices | None:
        """The services if they are there."""
        return self._services

    def not_ready(self) -> Unavailable:
        """The error of requests that come too early."""
        return Unavailable("the daemon is starting; try again in a moment", state=self.state.value)
