"""Everything that is put together once the port is served: home.db, approvals, access, models, agents."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from qworkspace.api.auth import BROWSER_TABLE, Auth
from qworkspace.api.services import ApiServices
from qworkspace.approvals import MIGRATIONS as APPROVAL_TABLES
from qworkspace.approvals import Approval, ApprovalStore
from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.mending import MendingDatabase
from qworkspace.base.metrics import Metrics, NoMetrics, PrometheusMetrics
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.models import ModelSource
from qworkspace.chat.offline import Hit
from qworkspace.config.home import HomeConfig
from qworkspace.config.store import ConfigStore
from qworkspace.equipment import equip
from qworkspace.errors import QworkspaceError
from qworkspace.inbox import MIGRATIONS as INBOX_TABLES
from qworkspace.inbox import InboxStore, ProblemsToInbox
from qworkspace.memory.parts import DaemonMemory
from qworkspace.workspace.history import MIGRATIONS as RELOAD_TABLES
from qworkspace.workspace.history import ReloadHistory
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.reload import Reloader
from qworkspace.workspace.remembering import home_now, search_for_offline
from qworkspace.workspace.retention import prune
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.watch import Watch
from qworkspace.workspace.watchers import AgentConfigWatcher, HomeConfigWatcher

logger = logging.getLogger(__name__)

HOME_TABLES = {
    "approvals": APPROVAL_TABLES,
    "browsers": (BROWSER_TABLE,),
    "reloads": RELOAD_TABLES,
    "inbox": INBOX_TABLES,
}


class LateMetrics:
    """Counts nothing until `begin`, which a start need not wait for."""

    def __init__(self) -> None:
        self._real: PrometheusMetrics | None = None
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []

    @property
    def _now(self) -> Metrics:
        return self._real if self._real is not None else NoMetrics()

    def begin(self, real: PrometheusMetrics) -> None:
        """Count from now on."""
        self._real = real
        for gauge in self._gauges:
            real.gauge(*gauge)
        self._gauges.clear()

    def close(self) -> None:
        """Count no more. Idempotent."""
        if self._real is not None:
            self._real.close()

    def request(self, route: str, method: str, status: int) -> None:
        self._now.request(route, method, status)

    def sse_client(self) -> Any:
        return self._now.sse_client()

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        if self._real is None:
            self._gauges.append((name, text, read))
        else:
            self._real.gauge(name, text, read)

    def render(self) -> tuple[bytes, str]:
        return self._now.render()


class Assembly:
    """The parts that stand on the home's files. `open` may be tried again after the disk refused."""

    def __init__(
        self, config: ConfigStore, *, clock: Clock, threads: Threads, bus: EventBus, problems: Problems
    ) -> None:
        self._config = config
        self._bus = bus
        self._problems = problems
        self._database = MendingDatabase(
            config.home / ".daemon" / "home.db",
            migrations=HOME_TABLES,
            threads=threads,
            clock=clock,
            problems=problems,
        )
        self._token = ""
        self.metrics = LateMetrics()
        self.approvals = ApprovalStore(self._database, clock=clock, bus=bus)
        self.approvals.on_late_answer = self._resume
        self.inbox = InboxStore(self._database, clock=clock, bus=bus)
        self.filing = ProblemsToInbox(self.inbox, problems, bus)
        self.auth = Auth(self._database, token=self._access_token, clock=clock)
        self.models = ModelSource(self.home_config, threads=threads, search=self._remembered)
        self.memory = DaemonMemory(threads, clock, config.home)
        shared = SharedServices(
            clock=clock,
            threads=threads,
            bus=bus,
            problems=problems,
            config=config,
            models=self.models,
            approvals=self.approvals,
            inbox=self.inbox,
            memory=self.memory,
            metrics=self.metrics,
        )
        registry = equip(shared)
        self.manager = MultiAgentManager(shared, registry)
        self.reloader = Reloader(self.manager, registry, shared, ReloadHistory(self._database))
        self.watch = Watch(self.home_config().watch, clock=clock, threads=threads, problems=problems)
        self.agent_files = AgentConfigWatcher(self.watch, self.manager, self.reloader, shared)
        self.home_files = HomeConfigWatcher(self.watch, self.manager, self.reloader, shared)
        self._threads = threads

    async def open(self) -> None:
        """Open what is stored, and make the access token if there is none."""
        await self._database.open()
        await self._threads.run(self._access_token)
        await self.approvals.start()
        await self.auth.start()

    async def watch_files(self, on_change: Callable[[HomeConfig], None]) -> None:
        """Follow edits from now on; `on_change` hears of each new config.json."""

        def changed(home: HomeConfig) -> None:
            self.watch.configure(home.watch)
            on_change(home)

        self.home_files.on_change = changed
        self.watch.start()
        await self.home_files.start()
        self.agent_files.start()
        self.filing.start()

    def look_again(self) -> None:
        """Compare all files with what is in use, as if each had been saved."""
        self.watch.look_again()
        for workspace in self.manager.running():
            self.reloader.request(workspace.agent_id, "asked to reload")

    async def close(self) -> None:
        """End everything here, agents included. Idempotent, and right after a half-done start too."""
        await self.watch.stop()
        await self.agent_files.stop()
        await self.manager.stop(0.0)
        await self.reloader.stop()
        await self.memory.close()
        await self.filing.stop()
        await self.approvals.stop()
        await self.models.close()
        await self._database.close()
        self.metrics.close()

    async def count(self) -> None:
        """Begin to count: the library that does is imported in a thread, after the start."""
        await self._threads.run(importlib.import_module, "prometheus_client")
        self.metrics.begin(PrometheusMetrics(self._bus))

    async def preload_memory(self) -> None:
        """Import what remembers in a thread: the first agent need not wait for it."""
        await self._threads.run(importlib.import_module, "qworkspace.memory.markdown")

    async def preload_models(self) -> None:
        """Import the model library in a thread if a provider needs it: the first turn need not wait for it."""
        await self.models.preload()

    async def prune(self) -> None:
        """Forget what is older than `retention` says: closed questions, and of the agents that run what they keep."""
        retention = self.home_config().retention
        if retention.ledger_days is not None:
            await self.approvals.forget(older_than=timedelta(days=retention.ledger_days))
        for workspace in self.manager.running():
            await prune(workspace, retention)

    def services(self, shutdown: Callable[[str], None]) -> ApiServices:
        """What the HTTP side works with."""
        return ApiServices(
            manager=self.manager,
            config=self._config,
            bus=self._bus,
            problems=self._problems,
            approvals=self.approvals,
            auth=self.auth,
            metrics=self.metrics,
            shutdown=shutdown,
            reloader=self.reloader,
            inbox=self.inbox,
        )

    def home_config(self) -> HomeConfig:
        """config.json, the last good one while it is broken, the defaults when it was never good."""
        return home_now(self._config)

    def _access_token(self) -> str:
        """The present token; while secrets.json is broken the last one known, and nobody when there was none."""
        try:
            self._token = self._config.secrets().token()
        except QworkspaceError:
            logger.debug("secrets.json cannot be used; its problem is shown")
        return self._token

    async def _remembered(self, question: str) -> list[Hit]:
        """What the offline model answers from."""
        return await search_for_offline(self.manager, question)

    async def _resume(self, approval: Approval) -> None:
        """A question of a turn that a restart interrupted was answered: carry the turn on."""
        async with self.manager.use(approval.agent_id) as workspace:
            await workspace.runner.resume(approval.turn_id)
