"""The OpenAI SDK's client with a cheaper way through: what streams is read in a tenth of the CPU time.

The SDK walks each request through its parameter types and builds six validated objects for each token. Here the
request goes out as it was made, and all tokens that came in one piece from the network become one chunk. Everything
else (address, key, headers, errors, connections) stays the SDK's.
"""

# Heavy: imported by `qworkspace.chat.providers` only.

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from typing import Any, cast

import httpx2
from openai import APIConnectionError, APIError, APITimeoutError, AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai.resources.chat import AsyncChat
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

DRAIN_SECONDS = 0.1
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
_TAGS = ("<think>", "</think>")
_SPECIAL = ("refusal", "function_call", "annotations", "audio")
_KNOWN = frozenset({"role", "tool_calls", *_SPECIAL, *_TEXT_FIELDS})


class LeanOpenAI(AsyncOpenAI):
    """`AsyncOpenAI` whose `chat.completions.create` is `LeanCompletions`."""

    @cached_property
    def chat(self) -> AsyncChat:
        return cast(AsyncChat, _LeanChat(self))


class _LeanChat:
    def __init__(self, client: AsyncOpenAI) -> None:
        self.completions = LeanCompletions(client)


class LeanCompletions:
    """`create` as the SDK has it, without walking the request through its types first."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def create(
        self,
        *,
        stream: bool,
        extra_headers: dict[str, str] | None = None,
        extra_body: dict[str, Any] | None = None,
        timeout: Any = None,
        **body: Any,
    ) -> Any:
        """The stream of chunks, or the whole completion."""
        given = {key: value for key, value in body.items() if not isinstance(value, Omit | NotGiven)}
        options: dict[str, Any] = {"headers": extra_headers or {}}
        if extra_body:
            options["extra_json"] = extra_body
        if timeout is not None and not isinstance(timeout, NotGiven):
            options["timeout"] = timeout
        return await self._client.post(
            "/chat/completions",
            body={**given, "stream": stream},
            cast_to=ChatCompletion,
            options=cast(Any, options),
            stream=stream,
            stream_cls=LeanStream,
        )


class LeanStream(AsyncStream[ChatCompletionChunk]):
    """Chunks of a streamed completion; pieces of text that arrive together are one chunk."""

    async def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        try:
            async for chunk in self._chunks():
                yield cast(ChatCompletionChunk, chunk)
        except httpx2.TimeoutException as error:
            raise APITimeoutError(request=self.response.request) from error
        except httpx2.TransportError as error:
            raise APIConnectionError(request=self.response.request) from error
        finally:
            await self.response.aclose()

    async def _chunks(self) -> AsyncIterator[Any]:
        lines, thoughts = _Lines(), _Thoughts()
        pieces = self.response.aiter_bytes()
        async for piece in pieces:
            pending: _Chunk | None = None
            for data in lines.events(piece):
                if data == "[DONE]":
                    if pending is not None:
                        yield pending
                    await _drain(pieces)
                    return
                for chunk in self._read(data, thoughts):
                    if pending is not None and isinstance(chunk, _Chunk) and pending.absorb(chunk):
                        continue
                    if pending is not None:
                        yield pending
                    pending = chunk if isinstance(chunk, _Chunk) else None
                    if pending is None:
                        yield chunk
            if pending is not None:
                yield pending

    def _read(self, data: str, thoughts: _Thoughts) -> list[Any]:
        event = json.loads(data)
        if not isinstance(event, dict):
            raise APIError("the stream holds something that is no object", self.response.request, body=event)
        error = event.get("error")
        if error:
            message = error.get("message") if isinstance(error, dict) else None
            raise APIError(str(message or error), self.response.request, body=error)
        chunk = _simple(event)
        if thoughts.over:
            return [chunk or ChatCompletionChunk.construct(**event)]
        if chunk is None or chunk.kind != "content":
            return [*_spoken(event, thoughts.rest()), chunk or ChatCompletionChunk.construct(**event)]
        return _spoken(event, thoughts.split(str(chunk.choices[0].delta.content)))


def _spoken(event: dict[str, Any], texts: list[str]) -> list[_Chunk]:
    """A chunk like `event` for each text; a tag is not joined with what stands beside it."""
    return [
        _Chunk(event, [_Choice(_Delta({"content": text}), None)], "" if text in _TAGS else "content") for text in texts
    ]


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read to the end of the body, so that the connection can be used again; not for long."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in pieces:
                continue
    except (TimeoutError, httpx2.TransportError):
        return


class _Lines:
    """Server-sent events out of bytes; an event's data lines are joined, all its other fields are ignored."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def events(self, piece: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].decode("utf-8", "replace").strip())
            elif not line and self._data:
                yield "\n".join(self._data)
                self._data.clear()


class _Thoughts:
    """Splits an answer that begins with `<think>`, so that each of the two tags is a piece of its own."""

    def __init__(self) -> None:
        self.over = False
        self._held = ""
        self._inside = False
        self._ended = False

    def split(self, text: str) -> list[str]:
        """The pieces to pass on now; half a tag waits, blank ones before the answer are left out."""
        text = self._held + text
        self._held = ""
        return self._thought(text) if self._inside else self._begun(text.lstrip(), text)

    def rest(self) -> list[str]:
        """What waits for more that will not come."""
        held, self._held = self._held, ""
        return [held] if held else []

    def _thought(self, text: str) -> list[str]:
        before, tag, after = text.partition(_TAGS[1])
        if tag:
            self._inside, self._ended = False, True
            return [*filter(None, (before, tag)), *self.split(after)]
        kept = next((n for n in range(len(_TAGS[1]) - 1, 0, -1) if text.endswith(_TAGS[1][:n])), 0)
        self._held = text[len(text) - kept :]
        return [text[: len(text) - kept]] if len(text) > kept else []

    def _begun(self, bare: str, text: str) -> list[str]:
        if not bare:
            return []
        if not self._ended and _TAGS[0].startswith(bare) and bare != _TAGS[0]:
            self._held = text
            return []
        if not self._ended and bare.startswith(_TAGS[0]):
            self._inside = True
            return [_TAGS[0], *self.split(bare.removeprefix(_TAGS[0]))]
        self.over = True
        return [bare if self._ended else text]


class _Function:
    __slots__ = ("arguments", "name")

    def __init__(self, name: str | None, arguments: str | None) -> None:
        self.name = name
        self.arguments = arguments


class _ToolCall:
    __slots__ = ("function", "id", "index", "model_extra", "type")

    def __init__(self, call: dict[str, Any]) -> None:
        function = call.get("function") or {}
        self.index = call.get("index", 0)
        self.id = call.get("id")
        self.type = call.get("type")
        self.function = _Function(function.get("name"), function.get("arguments"))
        self.model_extra = {key: value for key, value in call.items() if key not in ("index", "id", "type", "function")}


class _Delta:
    __slots__ = ("annotations", "content", "reasoning", "reasoning_content", "refusal", "tool_calls")

    def __init__(self, delta: dict[str, Any]) -> None:
        self.content = delta.get("content")
        self.reasoning = delta.get("reasoning")
        self.reasoning_content = delta.get("reasoning_content")
        self.tool_calls = [_ToolCall(call) for call in delta.get("tool_calls") or ()]
        self.refusal = None
        self.annotations = None


class _Choice:
    __slots__ = ("delta", "finish_reason", "index", "logprobs")

    def __init__(self, delta: _Delta, finish_reason: str | None) -> None:
        self.delta = delta
        self.finish_reason = finish_reason
        self.index = 0
        self.logprobs = None


class _Chunk:
    """What `ChatCompletionChunk` is to those who read its attributes. `kind` names the text that it is a piece of."""

    __slots__ = ("choices", "created", "id", "kind", "model", "moderation", "service_tier", "usage")

    def __init__(self, event: dict[str, Any], choices: list[_Choice], kind: str) -> None:
        usage = event.get("usage")
        self.id = event.get("id")
        self.model = event.get("model")
        self.created = event.get("created")
        self.choices = choices
        self.usage = CompletionUsage.construct(**usage) if usage else None
        self.moderation = None
        self.service_tier = event.get("service_tier")
        self.kind = kind

    def absorb(self, later: _Chunk) -> bool:
        """Take the text of `later` into this one; False when it is a piece of something else."""
        if not self.kind or later.kind != self.kind:
            return False
        mine, more = self.choices[0].delta, later.choices[0].delta
        if self.kind != "call":
            setattr(mine, self.kind, getattr(mine, self.kind) + getattr(more, self.kind))
            return True
        call, rest = mine.tool_calls[0], more.tool_calls[0]
        if rest.id or rest.function.name or rest.index != call.index or rest.model_extra:
            return False
        call.function.arguments = (call.function.arguments or "") + (rest.function.arguments or "")
        return True


def _simple(event: dict[str, Any]) -> _Chunk | None:
    """A chunk with a piece of one text or of one tool call, with the end, or with the usage; None for any other."""
    choices = event.get("choices")
    if not isinstance(choices, list) or len(choices) > 1 or event.get("moderation"):
        return None
    if not choices:
        return _Chunk(event, [], "")
    choice = choices[0]
    delta = choice.get("delta") or {}
    if choice.get("logprobs") or not _KNOWN.issuperset(delta) or any(delta.get(name) for name in _SPECIAL):
        return None
    kind = _kind(delta)
    end = choice.get("finish_reason")
    if kind is None:
        return None
    return _Chunk(event, [_Choice(_Delta(delta), end)], "" if end or event.get("usage") else kind)


def _kind(delta: dict[str, Any]) -> str | None:
    """Which text the delta continues; "" when it holds none, None when it holds several."""
    calls = delta.get("tool_calls") or ()
    spoken = [name for name in _TEXT_FIELDS if delta.get(name)]
    if len(spoken) + len(calls) > 1 or not all(isinstance(delta[name], str) for name in spoken):
        return None
    return spoken[0] if spoken else "call" if calls else ""
