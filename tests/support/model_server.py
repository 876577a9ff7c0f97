"""A scripted, strict, OpenAI-compatible model server on the loopback; no model inside.

In a test: `async with ModelServer([text("hello")]) as server:` and give `server.url` to the provider.
As a process: `python -m tests.support.model_server --port 9000 [--script replies.json]`, driven by `POST /script`
(`{"replies": [...]}`, null for the default echo), `GET /requests`, `DELETE /requests`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tests.support.loopback import Loopback
from tests.support.model_embeddings import ScriptedEmbeddings
from tests.support.model_replies import Reply, default_reply, from_json
from tests.support.model_rules import Refused, check
from tests.support.model_wire import error_body, pieces, whole

Script = Callable[[dict[str, Any]], Reply]


@dataclass(slots=True)
class Recorded:
    """One request as it came, and how it ended: `closed_early` is set when the client left before the end."""

    index: int
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    closed_early: asyncio.Event = field(default_factory=asyncio.Event)

    def summary(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "path": self.path,
            "body": self.body,
            "status": self.status,
            "finished": self.finished.is_set(),
            "closed_early": self.closed_early.is_set(),
        }


class ModelServer(Loopback):
    """Serves while the context lasts. `requests` are the newest chat requests, `count` all of them.

    A list of replies is used up one by one (then a 400 says so), a function is asked each time, None echoes.
    """

    def __init__(
        self,
        script: Sequence[Reply] | Script | None = None,
        *,
        api_key: str | None = None,
        models: Sequence[str] = ("scripted",),
        port: int = 0,
        keep: int = 5000,
    ) -> None:
        super().__init__(self, port=port)
        self.requests: deque[Recorded] = deque(maxlen=keep)
        self.count = 0
        self.embeddings = ScriptedEmbeddings(api_key)
        self._api_key = api_key
        self._models = list(models)
        self._closing = asyncio.Event()
        self._arrived = asyncio.Event()
        self._rest = Starlette(routes=self._routes())
        self.script(script)

    def script(self, script: Sequence[Reply] | Script | None) -> None:
        """Answer like this from now on."""
        if script is None or callable(script):
            self._script: Script = script or default_reply
            return
        replies = list(script)

        def next_reply(body: dict[str, Any]) -> Reply:
            if replies:
                return replies.pop(0)
            return Reply(status=400, error_code="script_exhausted", message="the script has no reply left")

        self._script = next_reply

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.address}/v1"

    @property
    def last(self) -> Recorded:
        """The newest chat request."""
        return self.requests[-1]

    def refused(self) -> list[Any]:
        """The whole requests that broke a rule of the strictest provider."""
        return [record.body for record in self.requests if record.status == 400 and record.body is not None]

    async def wait_for(self, count: int, timeout: float = 10.0) -> Recorded:
        """Wait until that many chat requests have come in all; the newest one."""
        async with asyncio.timeout(timeout):
            while self.count < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.last

    def end_streams(self) -> None:
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/v1/chat/completions" and scope["method"] == "POST":
            await self._chat(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await _read(receive)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        record = Recorded(self.count, scope["path"], headers, _parsed(raw))
        self.requests.append(record)
        self.count += 1
        self._arrived.set()
        reply = self._refusal(raw, record) or self._script(record.body)
        record.status = reply.status
        watcher = asyncio.create_task(_watch(receive, record), name="model-server/watch")
        try:
            await self._send(record, reply, send)
        finally:
            watcher.cancel()

    def _refusal(self, raw: bytes, record: Recorded) -> Reply | None:
        if self._api_key is not None and record.headers.get("authorization") != f"Bearer {self._api_key}":
            return Reply(status=401, error_code="invalid_api_key", message="Incorrect API key provided.")
        try:
            check(raw, record.body)
        except Refused as refused:
            return Reply(status=400, error_code=refused.code, message=str(refused))
        return None

    async def _send(self, record: Recorded, reply: Reply, send: Send) -> None:
        await self._pause(record, reply.first_delay)
        if reply.status != 200:
            await _respond(send, reply.status, error_body(reply), retry_after=reply.retry_after)
        elif reply.end == "stall" and not reply.headers_first:
            await self._pause(record, None)
            return
        elif record.body.get("stream"):
            await self._stream(record, reply, send)
            return
        else:
            await self._pause(record, None if reply.end == "stall" else reply.delay * len(reply.pieces))
            if reply.end == "drop":
                return
            await _respond(send, 200, whole(record.index, record.body, reply))
        record.finished.set()

    async def _stream(self, record: Recorded, reply: Reply, send: Send) -> None:
        await send(_start(200, b"text/event-stream; charset=utf-8"))
        for chunk in pieces(record.index, record.body, reply):
            if reply.delay:
                await self._pause(record, reply.delay)
            if record.closed_early.is_set():
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if reply.end == "stall":
            await self._pause(record, None)
        if reply.end == "finish":
            record.finished.set()
            await send({"type": "http.response.body", "body": b""})

    async def _pause(self, record: Recorded, seconds: float | None) -> None:
        """Wait so long (None: until the client leaves), or until one of the two sides ends it."""
        if seconds == 0:
            return
        ends = [asyncio.create_task(event.wait()) for event in (record.closed_early, self._closing)]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def _routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._list_models),
            Route("/v1/embeddings", self.embeddings.__call__, methods=["POST"]),
            Route("/script", self._set_script, methods=["POST"]),
            Route("/requests", self._list_requests, methods=["GET", "DELETE"]),
        ]

    async def _list_models(self, request: Request) -> Response:
        if self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return JSONResponse(
                {"error": {"message": "Incorrect API key provided.", "type": "auth", "code": "invalid_api_key"}}, 401
            )
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in self._models]
        return JSONResponse({"object": "list", "data": listed})

    async def _set_script(self, request: Request) -> Response:
        replies = (await request.json()).get("replies")
        self.script(None if replies is None else [from_json(reply) for reply in replies])
        return JSONResponse({"ok": True})

    async def _list_requests(self, request: Request) -> Response:
        if request.method == "DELETE":
            self.requests.clear()
            self.count = 0
        return JSONResponse({"count": self.count, "requests": [record.summary() for record in self.requests]})


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def _watch(receive: Receive, record: Recorded) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not record.finished.is_set():
        record.closed_early.set()


def _start(status: int, media_type: bytes, *more: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", media_type), *more]}


async def _respond(send: Send, status: int, body: bytes, *, retry_after: str | None = None) -> None:
    more = [(b"content-length", str(len(body)).encode())]
    if retry_after is not None:
        more.append((b"retry-after", retry_after.encode()))
    await send(_start(status, b"application/json", *more))
    await send({"type": "http.response.body", "body": body})


async def _serve(port: int, script: Path | None) -> None:
    replies = [from_json(reply) for reply in json.loads(script.read_text())] if script is not None else None
    async with ModelServer(replies, port=port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until the process is ended; the base URL is printed once it answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path)
    options = parser.parse_args()
    try:
        asyncio.run(_serve(options.port, options.script))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
