"""The HTTP side as one ASGI application: guard, routes, errors, counting, headers of every answer."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qworkspace.api import health
from qworkspace.api.console import FOLDER, Console
from qworkspace.api.errors import error_response, expected
from qworkspace.api.guard import ANSWER_POLICY, COMMON_HEADERS, Guard
from qworkspace.api.operations import ROUTE, Endpoint, Operation
from qworkspace.api.services import Api

logger = logging.getLogger(__name__)
PAIR = "/api/pair"
ROUTES = "qworkspace.api.routes"
POLICY_VIOLATION = 1008
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
DEFAULT_HEADERS = (*COMMON_HEADERS, (b"content-security-policy", ANSWER_POLICY), (b"cache-control", b"no-store"))


def create_app(api: Api, *, console: Path = FOLDER) -> ASGIApp:
    """The application. It answers `/healthz` at once, and everything else when `api.open` has been called."""
    routes = Routes(api, Console(api.threads, console))
    return Front(Guard(routes, api, is_public=routes.is_public), api)


class Routes:
    """Who answers which address: health at once, static files, and the route table once it is imported."""

    def __init__(self, api: Api, console: Console) -> None:
        self._api = api
        self._console = console
        self._health = router(api, health.OPERATIONS)
        self._all: Router | None = None
        self._public = {operation.path for operation in health.OPERATIONS}

    def is_public(self, method: str, path: str) -> bool:
        """Whether an address needs no token."""
        return path in self._public or path == PAIR or self._console.serves(method, path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in self._public:
            await self._health(scope, receive, send)
        elif self._console.serves(method, path):
            await self._console(scope, receive, send)
        else:
            if self._all is None:
                self._all = await self._api.threads.run(self._load)
            await self._all(scope, receive, send)

    def _load(self) -> Router:
        """Import and compile the table: 100 ms, in a thread. The daemon may have imported it before."""
        return router(self._api, importlib.import_module(ROUTES).OPERATIONS)


def router(api: Api, operations: Sequence[Operation]) -> Router:
    """Operations as a router, one endpoint per path."""
    paths: dict[str, list[Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, []).append(operation)
    return Router([Route(path, Endpoint(api, found)) for path, found in paths.items()], redirect_slashes=False)


class Front:
    """The outermost layer: every answer has its security headers, every failure its shape, every request is counted."""

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self._app = app
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _refuse(scope, receive, send)
            return
        scope["app"] = self  # the router then raises what it does not know, so that it is answered here
        answer = Answer(send)
        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            logger.debug("the client left in the middle of its request")
        except Exception as error:
            told = expected(error, self._api.clock)
            if answer.status:
                raise
            await error_response(told, scope)(scope, receive, answer)
        finally:
            self._count(scope, answer.status)

    def _count(self, scope: Scope, status: int) -> None:
        known = self._api.known
        if known is not None and status:
            method = scope["method"] if scope["method"] in METHODS else "other"
            known.metrics.request(scope.get(ROUTE, "other"), method, status)


class Answer:
    """`send` that adds the headers every answer has, and remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            headers += [header for header in DEFAULT_HEADERS if header[0] not in names]
            message = {**message, "headers": headers}
        await self._send(message)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """There are no WebSockets here, and start and end are the daemon's."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
