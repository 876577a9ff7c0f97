"""What the HTTP side is given by the daemon: there at once, or when the daemon has it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qworkspace.api.sse import StreamLimits
from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.ids import SessionId, new_id
from qworkspace.base.metrics import Metrics
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.errors import Unavailable
from qworkspace.memory.contract import BaseMemoryManager

if TYPE_CHECKING:
    from qworkspace.api.auth import Auth
    from qworkspace.api.guard import Access
    from qworkspace.approvals import ApprovalStore
    from qworkspace.chat.live import LiveTurn
    from qworkspace.config.models import AgentConfig
    from qworkspace.config.store import ConfigStore
    from qworkspace.inbox import InboxStore
    from qworkspace.sessions.models import TurnRequest
    from qworkspace.sessions.store import SessionStore
    from qworkspace.workspace.manager import AgentStatus
    from qworkspace.workspace.reload import Reloader


KEYS_KEPT = 1000


class DaemonState(StrEnum):
    """Where the daemon is in its life, as clients see it. `Api` is the one writer."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Runner(Protocol):
    """The turns of one agent, as requests use them."""

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
    def config(self) -> AgentConfig:
        """Its configuration as it is now."""

    @property
    def sessions(self) -> SessionStore:
        """Its conversations."""

    @property
    def memory(self) -> BaseMemoryManager:
        """What it remembers."""

    @property
    def runner(self) -> Runner:
        """Its turns."""

    def turn_counts(self) -> tuple[int, int]:
        """Turns that run, and turns that wait."""


class Agents(Protocol):
    """All agents: started on first use."""

    async def get(self, agent_id: str) -> RunningAgent:
        """The agent's workspace, started if need be; `NotFound`, or a refusal when it is disabled."""

    def find(self, agent_id: str) -> RunningAgent | None:
        """The agent's workspace if it is started."""

    def running(self) -> Sequence[RunningAgent]:
        """The started workspaces."""

    def states(self) -> dict[str, AgentStatus]:
        """Every agent's status, without starting one."""

    def state(self, agent_id: str) -> AgentStatus:
        """One agent's status; `NotFound` when there is none of that id."""

    async def create_agent(
        self, agent_id: str, template: str = "default", *, name: str | None = None, copy_of: str | None = None
    ) -> Path:
        """A new agent; its directory."""

    async def delete_agent(self, agent_id: str, *, remove_files: bool = False) -> None:
        """Take the agent out of the configuration and end it."""

    async def enable_agent(self, agent_id: str) -> None:
        """Let requests in."""

    async def disable_agent(self, agent_id: str) -> None:
        """Let no new requests in; running turns finish."""


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
    reloader: Reloader
    inbox: InboxStore


class NewSessions:
    """Ids of conversations that clients did not name; a repeated idempotency key gets the id it got before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_key: OrderedDict[tuple[str, str], SessionId] = OrderedDict()

    def get(self, agent_id: str, key: str | None) -> SessionId:
        """A fresh id that sorts by time, or the one that this key was given before."""
        session = SessionId(new_id("sess", self._clock.now()))
        if key is None:
            return session
        session = self._by_key.setdefault((agent_id, key), session)
        if len(self._by_key) > KEYS_KEPT:
            self._by_key.popitem(last=False)
        return session


class Api:
    """What is there from the first request on, and the door that the daemon opens when all is ready.

    `problems` tells what keeps a daemon that is starting from being ready.
    """

    def __init__(self, info: Info, *, clock: Clock, threads: Threads, access: Access) -> None:
        self.info = info
        self.clock = clock
        self.threads = threads
        self.access = access
        self.stream_limits = StreamLimits()
        self.watch_mode = "off"
        self.building = asyncio.Lock()
        self.new_sessions = NewSessions(clock)
        self.state = DaemonState.STARTING
        self.problems: Problems | None = None
        self._services: ApiServices | None = None

    def open(self, services: ApiServices) -> None:
        """Serve everything from now on."""
        self._services = services
        self._add_gauges(services)
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

    def not_ready(self, *, why: bool = False) -> Unavailable:
        """The error of requests that come too early; with `why` it names what the start waits for."""
        reasons = self.problems.of() if why and self.problems is not None else []
        told = f"the daemon is still starting: {reasons[0].message}" if reasons else "the daemon is starting"
        return Unavailable(f"{told}; try again in a moment", state=self.state.value)

    def _add_gauges(self, services: ApiServices) -> None:
        """Values that need no counting: they are read when somebody asks for the metrics."""
        gauge, manager, began = services.metrics.gauge, services.manager, self.clock.monotonic()
        gauge("active_turns", "Turns that run now", lambda: sum(one.turn_counts()[0] for one in manager.running()))
        gauge("queued_turns", "Turns that wait", lambda: sum(one.turn_counts()[1] for one in manager.running()))
        gauge("started_workspaces", "Agents whose workspace is started", lambda: len(manager.running()))
        gauge("watch_polls", "1 while edits are polled for, 0 with events", lambda: self.watch_mode == "poll")
        gauge("problems", "Open problems", lambda: len(services.problems.of()))
        gauge("uptime_seconds", "Seconds since the daemon was ready", lambda: self.clock.monotonic() - began)
