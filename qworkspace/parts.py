"""What the daemon consists of: there at once what `/healthz` needs, the rest when the port is served."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from qworkspace import __version__
from qworkspace.api.app import create_app
from qworkspace.api.guard import Access, is_loopback
from qworkspace.api.services import Api, Info
from qworkspace.api.sse import StreamLimits
from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Tasks, Threads
from qworkspace.config.home import HomeConfig, LifecycleConfig, ServerConfig
from qworkspace.config.store import ConfigStore
from qworkspace.errors import InvalidConfig, QworkspaceError, StorageError
from qworkspace.housekeeping import ClockWatch, Timer

if TYPE_CHECKING:
    from qworkspace.assembly import Assembly
    from qworkspace.workspace.watch import WatchMode

__all__ = ["Parts", "is_loopback"]
logger = logging.getLogger(__name__)

ANSWER_SECONDS = 0.02
"""Whoever waits at the port is answered within; then a thread imports the rest, which slows answers down."""
RETRY_SECONDS = 2.0
LOOK_SECONDS = 2.0
IDLE_SECONDS = 60.0
CLOCK_SECONDS = 60.0
PRUNE_SECONDS = 900.0  # shorter than an idle agent stays


class Parts:
    """Owns every part and ends them in stages. `open` once, `close` once."""

    def __init__(
        self, config: ConfigStore, server: ServerConfig, *, clock: Clock, shutdown: Callable[[str], None]
    ) -> None:
        self.clock = clock
        self.threads = Threads()
        self.bus = EventBus(clock)
        self.problems = Problems(clock, self.bus)
        self._config = config
        self._shutdown = shutdown
        self._tasks = Tasks("daemon")
        self._timer = Timer()
        self._assembly: Assembly | None = None
        self._early: asyncio.Task[None] | None = None
        self._host = server.host
        info = Info(version=__version__, started_at=clock.now(), home=config.home)
        self.api = Api(info, clock=clock, threads=self.threads, access=self._access(server))
        self._limit_streams(server)
        self.app = create_app(self.api)

    async def open(self) -> None:
        """Build the rest and let requests in. Waits for the disk if that refuses, and for nothing remote."""
        await self.clock.sleep(ANSWER_SECONDS)
        self._early = self._tasks.start(self._watch_configuration(), name="configuration")
        await self.threads.run(importlib.import_module, "qworkspace.assembly")  # /healthz answers meanwhile
        from qworkspace.assembly import Assembly  # imported in a thread by now: 150 ms of our own modules

        assembly = Assembly(self._config, clock=self.clock, threads=self.threads, bus=self.bus, problems=self.problems)
        self._assembly = assembly
        await self._once_the_disk_allows(assembly)
        self.api.open(assembly.services(self._shutdown))

    async def after_start(self) -> None:
        """What may come later: agents that are always up, the timer, the model library."""
        assembly = self._opened()
        await assembly.preload_memory()
        await assembly.count()
        self._timer.start()
        self._timer.every(IDLE_SECONDS, "idle agents", assembly.manager.unload_idle)
        self._timer.every(PRUNE_SECONDS, "what is too old", assembly.prune)
        self._timer.every(IDLE_SECONDS, "idle embedder", assembly.memory.embedders.rest)
        self._timer.every(CLOCK_SECONDS, "clock", ClockWatch(self.clock, self.problems).look)
        self._tasks.start(self._start_agents(assembly), name="eager agents")
        if self._early is not None:
            self._early.cancel()
        assembly.watch.on_mode = self._watch_mode
        await assembly.watch_files(self._home_changed)
        await self.threads.run(importlib.import_module, "qworkspace.api.routes")  # the first request need not wait
        await assembly.preload_models()

    def pairing_link(self, address: str) -> str:
        """The console's address with a one-time code in its fragment."""
        return f"{address}/#pair={self._opened().auth.new_code().code}"

    def reload(self) -> None:
        """Look at every configuration file anew, as if each had been saved."""
        if self._assembly is not None:
            logger.info("reloading the configuration")
            self._config.forget()
            self._assembly.look_again()

    async def drain(self, forced: asyncio.Event) -> None:
        """No new turns; the running ones get their grace, unless somebody insists."""
        self.api.close()
        if self._assembly is None:
            return
        stopping = asyncio.ensure_future(self._assembly.manager.stop(self._grace()))
        insisting = asyncio.ensure_future(forced.wait())
        await asyncio.wait({stopping, insisting}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await asyncio.gather(*(agent.drain(0.0) for agent in self._assembly.manager.running()))
        insisting.cancel()
        await asyncio.wait({stopping, insisting})
        stopping.result()

    async def close(self) -> None:
        """End everything, in the reverse order of its start. Idempotent."""
        self._timer.stop()
        await self._tasks.close("the daemon stops")
        if self._assembly is not None:
            await self._assembly.close()
        self.bus.log.close()  # the event streams end with it, so the server need not cut them off
        self.threads.close()

    async def _once_the_disk_allows(self, assembly: Assembly) -> None:
        while True:
            try:
                await assembly.open()
            except StorageError as error:
                self.problems.report("home", f"{error.message}; the daemon goes on when that is mended")
                await self.clock.sleep(RETRY_SECONDS)
            else:
                self.problems.clear("home")
                return

    async def _start_agents(self, assembly: Assembly) -> None:
        """Failures are the agents' own problems and are shown as such."""
        try:
            await assembly.manager.start_all_configured_agents()
        except InvalidConfig:
            logger.warning("no agent is started: config.json cannot be used")

    async def _watch_configuration(self) -> None:
        """Show what is wrong with config.json and secrets.json, until it is mended."""
        while True:
            home, secrets = await self.threads.run(self._refusals)
            self._show("config", home)
            self._show("secrets", secrets)
            await self.clock.sleep(LOOK_SECONDS)

    def _refusals(self) -> tuple[QworkspaceError | None, QworkspaceError | None]:
        secrets = self._config.secrets().problem
        try:
            if self._config.home_file.exists():
                self._config.load_home()
        except QworkspaceError as error:
            return error, secrets
        return None, secrets

    def _show(self, key: str, error: QworkspaceError | None) -> None:
        if error is None:
            self.problems.clear(key)
        else:
            self.problems.report(key, f"{error.message}; the last good values stay in use")

    def _home_changed(self, home: HomeConfig) -> None:
        """Another config.json: the address waits for the next start, the rest of `server` does not."""
        self.api.access = self._access(home.server)
        self._limit_streams(home.server)

    def _watch_mode(self, mode: WatchMode) -> None:
        self.api.watch_mode = mode.value

    def _access(self, server: ServerConfig) -> Access:
        auth = server.auth if is_loopback(self._host) else "token"
        return Access.of(self._host, allowed_hosts=server.allowed_hosts, auth=auth, max_body=server.max_body_bytes)

    def _limit_streams(self, server: ServerConfig) -> None:
        self.api.problems = self.problems
        self.api.stream_limits = StreamLimits(keep_alive=server.keep_alive, backlog=server.event_backlog)

    def _grace(self) -> float:
        home = self._config.last_good_home()
        return (home.lifecycle if home is not None else LifecycleConfig()).shutdown_grace

    def _opened(self) -> Assembly:
        assert self._assembly is not None, "opened first"
        return self._assembly
