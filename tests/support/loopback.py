"""An ASGI application on a free port of the loopback, in the test's own event loop."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp


class Loopback:
    """Serves `app` while the context lasts."""

    def __init__(self, app: ASGIApp, *, port: int = 0) -> None:
        self._app = app
        self.port = port

    @property
    def address(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_streams()
        await self._server.shutdown()

    def end_streams(self) -> None:
        """Called before the shutdown: end what would keep it waiting."""
