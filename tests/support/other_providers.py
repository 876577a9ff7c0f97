"""Providers that do not speak OpenAI's language, reduced to what one conversation with a tool needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.loopback import Loopback

SIGNATURE = "c2lnbmVk"


class OtherProvider(Loopback):
    """Records requests. Answers the first one with a thought and a call of `look`, later ones with text."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.fails_with: Response | None = None
        path = "/v1/messages" if isinstance(self, AnthropicServer) else "/{rest:path}"
        super().__init__(Starlette(routes=[Route(path, self._answer, methods=["POST"])]))

    async def _answer(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        if self.fails_with is not None:
            return self.fails_with
        events = self.call() if len(self.requests) == 1 else self.text()
        return StreamingResponse(events, media_type="text/event-stream")

    def call(self) -> Iterator[str]:
        raise NotImplementedError

    def text(self) -> Iterator[str]:
        raise NotImplementedError


def _event(data: dict[str, Any]) -> str:
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n"


class AnthropicServer(OtherProvider):
    """The Messages API."""

    def call(self) -> Iterator[str]:
        yield from self._begin()
        yield from self._block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "I should look."},
            {"type": "signature_delta", "signature": SIGNATURE},
        )
        yield from self._block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me look."})
        yield from self._block(
            2,
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"where": '},
            {"type": "input_json_delta", "partial_json": '"under the bed"}'},
        )
        yield from self._end("tool_use")

    def text(self) -> Iterator[str]:
        yield from self._begin()
        yield from self._block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Found it."})
        yield from self._end("end_turn")

    def overloaded(self) -> None:
        """Answer 529 from now on."""
        body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        self.fails_with = JSONResponse(body, 529, headers={"retry-after": "5"})

    def too_long(self) -> None:
        """Answer that the prompt is too long from now on."""
        message = "prompt is too long: 210000 tokens > 200000 maximum"
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        self.fails_with = JSONResponse(body, 400)

    def _begin(self) -> Iterator[str]:
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 40, "output_tokens": 1},
        }
        yield _event({"type": "message_start", "message": message})

    def _block(self, index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> Iterator[str]:
        yield _event({"type": "content_block_start", "index": index, "content_block": block})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})

    def _end(self, reason: str) -> Iterator[str]:
        delta = {"stop_reason": reason, "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 25}})
        yield _event({"type": "message_stop"})


class GoogleServer(OtherProvider):
    """The Gemini API's streamGenerateContent."""

    def call(self) -> Iterator[str]:
        call = {"functionCall": {"name": "look", "args": {"where": "under the bed"}}, "thoughtSignature": SIGNATURE}
        yield self._chunk({"text": "Let me look."})
        yield self._chunk(call, last=True)

    def text(self) -> Iterator[str]:
        yield self._chunk({"text": "Found "})
        yield self._chunk({"text": "it."}, last=True)

    def _chunk(self, part: dict[str, Any], *, last: bool = False) -> str:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if last:
            candidate["finishReason"] = "STOP"
        usage = {"promptTokenCount": 40, "candidatesTokenCount": 25, "totalTokenCount": 65}
        return _event({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini"})
