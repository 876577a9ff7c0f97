"""Everything that is put together once the port is served: home.db, approvals, access, models, agents."""

from __future__ import annotations

import logging
from collections.abc import Callable

from qworkspace.api.auth import BROWSER_TABLE, Auth
from qworkspace.api.services import ApiServices
from qworkspace.approvals import MIGRATIONS as APPROVAL_TABLES
from qworkspace.approvals import Approval, ApprovalStore
from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.mending import MendingDatabase
from qworkspace.base.metrics import PrometheusMetrics
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.models import ModelSource
from qworkspace.config.home import HomeConfig
from qworkspace.config.store import ConfigStore
from qworkspace.equipment import equip
from qworkspace.errors import QworkspaceError
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.shared import SharedServices

logger = logging.getLogger(__name__)

HOME_TABLES = {"approvals": APPROVAL_TABLES, "browsers": (BROWSER_TABLE,)}


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
        self.metrics = PrometheusMetrics(bus)
        self.approvals = ApprovalStore(self._database, clock=clock, bus=bus)
        self.approvals.on_late_answer = self._resume
        self.auth = Auth(self._database, token=self._access_token, clock=clock)
        self.models = ModelSource(self.home_config, threads=threads)
        shared = SharedServices(
            clock=clock,
            threads=threads,
            bus=bus,
            problems=problems,
            config=config,
            models=self.models,
            approvals=self.approvals,
            metrics=self.metrics,
        )
        self.manager = MultiAgentManager(shared, equip(shared))
        self._threads = threads

    async def open(self) -> None:
        """Open what is stored, and make the access token if there is none."""
        await self._database.open()
        await self._threads.run(self._access_token)
        await self.approvals.start()
        await self.auth.start()

    async def close(self) -> None:
        """End everything here, agents included. Idempotent, and right after a half-done start too."""
        await self.manager.stop(0.0)
        await self.approvals.stop()
        await self.models.close()
        await self._database.close()
        self.metrics.close()

    async def preload_models(self) -> None:
        """Import the model library in a thread if a provider needs it: the first turn need not wait for it."""
        await self.models.preload()

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
        )

    def home_config(self) -> HomeConfig:
        """config.json, the last good one while it is broken, the defaults when it was never good."""
        try:
            return self._config.load_home()
        except QworkspaceError:
            return self._config.last_good_home() or HomeConfig()

    def _access_token(self) -> str:
        """The present token; while secrets.json is broken the last one known, and nobody when there was none."""
        try:
            self._token = self._config.secrets().token()
        except QworkspaceError:
            logger.debug("secrets.json cannot be used; its problem is shown")
        return self._token

    async def _resume(self, approval: Approval) -> None:
        """A question of a turn that a restart interrupted was answered: carry the turn on."""
        async with self.manager.use(approval.agent_id) as workspace:
            await workspace.runner.resume(approval.turn_id)
