"""The daemon from its start to its end: lock, port, everything else, signals, and the way out in named stages."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from qworkspace import __version__
from qworkspace.base.clock import Clock, SystemClock
from qworkspace.base.lock import Holder, HomeLock
from qworkspace.config.home import HomeConfig, ServerConfig
from qworkspace.config.store import ConfigStore
from qworkspace.config.suggest import Suggestion, suggestions_for
from qworkspace.errors import InvalidConfig, QworkspaceError
from qworkspace.logs import Logs
from qworkspace.parts import Parts, is_loopback
from qworkspace.server import HttpServer, address_of, bind

logger = logging.getLogger(__name__)
FILES_WANTED = 65_536


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """What the command line says; empty means what config.json says."""

    home: Path
    host: str = ""
    port: int | None = None
    open_browser: bool = False
    log_json: bool = False


class Way(StrEnum):
    """Why the daemon leaves."""

    STOP = "stop"
    RESTART = "restart"


class Daemon:
    """One daemon for one home, whose lock the caller has taken; `run` gives it back.

    `run` returns when the daemon was told to stop; `way` then says whether to start again.
    """

    def __init__(
        self,
        options: DaemonOptions,
        lock: HomeLock,
        *,
        environ: Mapping[str, str],
        terminal: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self.way = Way.STOP
        self.port = options.port or 0
        self._terminal = terminal
        self._clock = clock if clock is not None else SystemClock()
        self._config = ConfigStore(options.home, environ=environ)
        self._lock = lock
        self._secrets = _KnownSecrets(self._config)
        self._logs = Logs(secrets=self._secrets)
        self._leaving: asyncio.Event | None = None
        self._forced: asyncio.Event | None = None

    def run(self) -> int:
        """Serve the home until a signal ends it; the exit code."""
        _allow_many_files()
        self._logs.open(terminal=self._terminal, as_json=self.options.log_json)
        try:
            server = self._server_settings()
            listener = bind(server.host, server.port)
        except QworkspaceError as error:
            logger.error("%s", error.message)
            self._end()
            return 1
        try:
            return asyncio.run(self._serve(listener, server))
        except QworkspaceError as error:
            logger.error("%s", error.message)
            return 1
        except Exception:
            logger.exception("the daemon ends with an unexpected error")
            return 1
        finally:
            listener.close()
            self._end()

    def leave(self, reason: str, way: Way = Way.STOP) -> None:
        """Begin the way out; a second call does not wait for running turns any longer."""
        if self._leaving is None or self._forced is None:
            return
        if self._leaving.is_set():
            logger.warning("%s again: not waiting any longer", reason)
            self._forced.set()
            return
        logger.info("stopping: %s", reason)
        self.way = way
        self._leaving.set()

    async def _serve(self, listener: socket.socket, server: ServerConfig) -> int:
        self._leaving, self._forced = asyncio.Event(), asyncio.Event()
        self.port = listener.getsockname()[1]
        address = address_of(listener)
        self._lock.tell(Holder(os.getpid(), self._lock.since, address))
        parts = Parts(self._config, server, clock=self._clock, shutdown=self.leave)
        http = HttpServer(parts.app, listener)
        async with contextlib.AsyncExitStack() as way_out:
            way_out.push_async_callback(http.stop)
            way_out.push_async_callback(parts.close)
            way_out.callback(self._listen_to_signals(parts))
            await http.start()
            opening = asyncio.get_running_loop().create_task(self._open(parts, address), name="start")
            await self._until_told(opening)
            await parts.drain(self._forced)
        logger.info("stopped")
        return 0

    async def _until_told(self, opening: asyncio.Task[None]) -> None:
        """Until somebody says stop; a start that fails is an end, too."""
        assert self._leaving is not None
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({leaving, opening}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            await leaving
        finally:
            leaving.cancel()
            opening.cancel()
            await asyncio.wait({leaving, opening})

    async def _open(self, parts: Parts, address: str) -> None:
        new = not self._config.home_file.exists()
        if new:
            await parts.threads.run(self._config.init_home)
        self._log_to_file()
        await parts.open()
        link = parts.pairing_link(address)
        self._say(f"qworkspace {__version__} serves {self.options.home}")
        self._say(f"Console (opens once, within ten minutes; another link: qworkspace console): {link}")
        if new:
            self._suggest(await parts.threads.run(suggestions_for, self._config.environ, ()))
        if self.options.open_browser:
            await parts.threads.run(webbrowser.open, link)
        gc.collect()
        gc.freeze()  # what is there now stays: later collections need not look at it
        await parts.after_start()

    def _suggest(self, found: list[Suggestion]) -> None:
        """Models that a new home could have; nothing was called and nothing is connected unasked."""
        for one in found:
            self._say(f"{one.title} can be connected: {one.why}")
        if found:
            self._say(f"What to put into config.json for it: qworkspace init --home {self.options.home}")

    def _log_to_file(self) -> None:
        retention = (self._config.last_good_home() or HomeConfig()).retention
        log = self.options.home / ".daemon" / "log" / "qworkspace.log"
        try:
            self._logs.to_file(log, size=retention.log_bytes, kept=retention.log_files)
        except OSError as error:
            logger.error("the log is kept on the terminal only: %s cannot be written (%s)", log, error.strerror)

    def _say(self, line: str) -> None:
        """To the person at the terminal, beside the log: the link opens the console and is in no log."""
        with contextlib.suppress(OSError, ValueError):  # a closed terminal is no reason to end
            print(line, flush=True)

    def _server_settings(self) -> ServerConfig:
        """Where to listen. A config.json that cannot be used is shown later; its repair needs a running daemon.

        `InvalidConfig` when it is unclear who may come in.
        """
        try:
            found = self._config.load_home().server if self._config.home_file.exists() else ServerConfig()
        except InvalidConfig as error:
            if any(problem["path"] == "server.auth" for problem in error.details.get("problems", ())):
                raise
            logger.error("%s; starting with the default address, agents stay off until it is mended", error.message)
            found = ServerConfig()
        host = self.options.host or found.host
        port = found.port if self.options.port is None else self.options.port
        if found.auth == "off" and not is_loopback(host):
            raise InvalidConfig(
                f'server.auth "off" is possible on the loopback only, and the host is {host!r}; '
                'use "token", or another host',
                file=self._config.home_file,
            )
        return found.model_copy(update={"host": host, "port": port})

    def _listen_to_signals(self, parts: Parts) -> Callable[[], None]:
        """Take over the signals; the returned function gives them back."""
        wanted: dict[str, Callable[[], None]] = {
            "SIGTERM": lambda: self.leave("SIGTERM"),
            "SIGINT": lambda: self.leave("interrupted"),
            "SIGHUP": parts.reload,
            "SIGUSR1": lambda: self.leave("asked to restart", Way.RESTART),
        }
        loop = asyncio.get_running_loop()
        taken: list[signal.Signals] = []
        for name, handler in wanted.items():
            number = getattr(signal, name, None)
            if number is None:
                continue
            try:
                loop.add_signal_handler(number, handler)
                taken.append(number)
            except (NotImplementedError, RuntimeError):  # Windows, or not the main thread: Ctrl-C still ends it
                continue

        def give_back() -> None:
            for number in taken:
                loop.remove_signal_handler(number)

        return give_back

    def _end(self) -> None:
        self._lock.release()
        self._logs.close()


class _KnownSecrets:
    """Every secret of the home, for the log to leave out. Looks at the file only when it has changed."""

    def __init__(self, config: ConfigStore) -> None:
        self._secrets = config.secrets()
        self._version = -1
        self._values: tuple[str, ...] = ()
        self._looking = False

    def __call__(self) -> tuple[str, ...]:
        if self._looking:  # reading the secrets logs itself when their file is broken
            return self._values
        self._looking = True
        try:
            version = self._secrets.refresh()
            if version != self._version:
                self._values = tuple(filter(None, (self._secrets.get(name) for name in self._secrets.names())))
                self._version = version
        finally:
            self._looking = False
        return self._values


def _allow_many_files() -> None:
    """Raise the soft limit of open files: each running agent needs a few."""
    if sys.platform == "win32":
        return
    import resource  # POSIX only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # as many as there are, then
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
