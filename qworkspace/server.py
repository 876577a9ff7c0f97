"""The port and the HTTP server on it: bound before anything else begins, ended by the daemon and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qworkspace.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BACKLOG = 512
GRACEFUL_SECONDS = 3
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_LISTENING = "0A"  # the state's number in /proc/net/tcp


class PortTaken(Unavailable):
    """Somebody else listens on the port; the message names them when the system tells who."""

    code = "port_taken"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on `host`:`port` from now on; `PortTaken`, or `InvalidInput` for an unusable address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidInput(f"server.host {host!r} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from error
    return listener


def _refused(host: str, port: int, error: OSError) -> Unavailable | InvalidInput:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        return PortTaken(
            f"port {port} on {host} is taken" + (f" by {owner}" if owner else "") + "; end that, or use --port",
            port=port,
        )
    if error.errno == errno.EACCES:
        return InvalidInput(f"port {port} needs more rights than this user has; use one above 1023 (--port)")
    return InvalidInput(f"cannot listen on {host!r} port {port}: {error.strerror or error}")


def address_of(listener: socket.socket) -> str:
    """The URL under which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def port_owner(port: int) -> str:
    """The process that listens on `port`, as `name (process 123)`; empty when the system does not tell."""
    if not sys.platform.startswith("linux"):
        return ""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return ""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _holds(process, wanted):
            return f"{_command(process)} (process {process.name})"
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6 has only one of them
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _holds(process: Path, wanted: set[str]) -> bool:
    try:
        return any(os.readlink(entry) in wanted for entry in (process / "fd").iterdir())  # noqa: PTH115
    except OSError:
        return False  # another user's process, or it has ended meanwhile


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "a process"
    return " ".join(words[:4]).strip()[:120] or "a process"


class HttpServer:
    """uvicorn on a socket of ours: no signal handlers, no ticking while idle, no access log."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    async def start(self) -> None:
        """Serve; returns once connections are answered."""
        serving = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._serve(serving), name="http server")
        waiting = asyncio.ensure_future(serving.wait())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
            raise Unavailable("the HTTP server ended at once")

    async def stop(self) -> None:
        """Take no new connections, let answers under way end within three seconds. Idempotent."""
        self._leaving.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            self._task.result()
            self._task = None

    async def _serve(self, serving: asyncio.Event) -> None:
        import uvicorn  # takes as long as the rest of the start; the port is bound by now

        leaving = self._leaving

        class Server(uvicorn.Server):
            """Signals are the daemon's; `main_loop` of the base wakes up ten times a second."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

            async def main_loop(self) -> None:
                serving.set()
                await leaving.wait()

        config = uvicorn.Config(
            self._app,
            loop="none",
            http=_protocol(),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # it warns of each odd request: strangers could fill the log with them
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACEFUL_SECONDS,
        )
        await Server(config).serve(sockets=[self._listener])


def _protocol() -> type[asyncio.Protocol]:
    """uvicorn's protocol, silent where garbage comes in the middle of an answer: its own 400 raises there."""
    import h11  # both are uvicorn's, which is imported when the port is bound
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.close()

    return Protocol
