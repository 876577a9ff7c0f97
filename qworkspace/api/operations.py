"""One row of the route table: what a request must look like, who answers it, and how its answer looks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qworkspace.api import bodies
from qworkspace.api.auth import NOBODY, Caller
from qworkspace.api.guard import CALLER
from qworkspace.api.services import Api, ApiServices, RunningAgent
from qworkspace.base.ids import AgentId, SessionId, agent_id, session_id
from qworkspace.errors import Denied, QworkspaceError

ROUTE = "qworkspace.route"
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[["Call"], Awaitable[BaseModel | ASGIApp]]


@dataclass(frozen=True, slots=True)
class Operation:
    """`body`, `query` and `answer` are the models that validate and that the OpenAPI document is made from.

    With `parsed` off the handler reads the body itself, as a text whose places it can name.
    """

    method: Method
    path: str
    handler: Handler
    summary: str
    tag: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    media_types: tuple[str, ...] = ("application/json",)
    accepts: tuple[str, ...] = ("application/json",)
    parsed: bool = True
    public: bool = False
    headers: tuple[str, ...] = ()


class Call:
    """One request, checked as far as its operation says."""

    def __init__(self, api: Api, request: Request, *, body: Any = None, query: Any = None) -> None:
        self.api = api
        self.request = request
        self.body = body
        self.query = query

    @property
    def services(self) -> ApiServices:
        """What the daemon has; `Unavailable` while it starts."""
        return self.api.services

    @property
    def caller(self) -> Caller:
        """Who asks."""
        caller: Caller = self.request.scope.get(CALLER, NOBODY)
        return caller

    @cached_property
    def agent_id(self) -> AgentId:
        """The agent that the path names."""
        return agent_id(self.request.path_params["agent_id"])

    @cached_property
    def session_id(self) -> SessionId:
        """The session that the path names."""
        return session_id(self.request.path_params["session_id"])

    def param(self, name: str) -> str:
        """Another part of the path, as it came."""
        return str(self.request.path_params[name])

    async def agent(self) -> RunningAgent:
        """The workspace of the agent that the path names, started if need be."""
        return await self.services.manager.get(self.agent_id)

    def need_token(self) -> None:
        """403 for a browser's cookie: only who holds the access token may do this."""
        if self.caller.kind == "browser":
            raise Denied("this needs the access token itself, a paired browser is not enough", code="token_needed")


class Endpoint:
    """The operations of one path, by method; an ASGI application."""

    def __init__(self, api: Api, operations: Sequence[Operation]) -> None:
        self._api = api
        self._operations: dict[str, Operation] = {operation.method: operation for operation in operations}
        self._built: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._pick(scope["method"])
        scope[ROUTE] = operation.path
        if operation.method not in self._built:
            await self._build(operation)
        request = Request(scope, receive)
        call = Call(self._api, request, query=_query(operation, request))
        if operation.body is not None and operation.parsed:
            call.body = await bodies.read(request, operation.body, operation.accepts)
        answer = await operation.handler(call)
        if isinstance(answer, BaseModel):
            answer = json_answer(answer, operation.status)
        await answer(scope, receive, send)

    async def _build(self, operation: Operation) -> None:
        """Build the operation's models at its first request: some 10 ms, in a thread, never two at once."""
        async with self._api.building:
            await self._api.threads.run(_build_models, operation)
        self._built.add(operation.method)

    def _pick(self, method: str) -> Operation:
        operation = self._operations.get("GET" if method == "HEAD" else method)
        if operation is None or (method == "HEAD" and "text/event-stream" in operation.media_types):
            allow = sorted(self._operations)
            raise QworkspaceError(
                f"{method} is not possible here; use {' or '.join(allow)}", code="method_not_allowed", allow=allow
            )
        return operation


def _build_models(operation: Operation) -> None:
    for model in (operation.body, operation.query, operation.answer):
        if model is not None:
            model.model_rebuild()


def _query(operation: Operation, request: Request) -> BaseModel | None:
    if operation.query is None:
        return None
    try:
        return operation.query.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise bodies.invalid(error, "query") from None


def json_answer(answer: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A model as the answer's JSON, under the names that the interface has."""
    return Response(answer.model_dump_json(by_alias=True), status, headers, media_type="application/json")


def no_content(headers: dict[str, str] | None = None) -> Response:
    """204: done, and nothing to say."""
    return Response(status_code=204, headers=headers)
