"""Replies as OpenAI's bytes, streamed and whole; encoded once per reply and model."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from tests.support.model_replies import Call, Reply

DONE = b"data: [DONE]\n\n"


def pieces(index: int, body: dict[str, Any], reply: Reply) -> list[bytes]:
    """The server-sent events of a streamed answer, one per element."""
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    if reply.calls:
        return _encode(index, str(body["model"]), reply, with_usage, prompt_tokens(body))
    return _cached(str(body["model"]), reply, with_usage, prompt_tokens(body) if with_usage else 0)


@lru_cache(maxsize=256)
def _cached(model: str, reply: Reply, with_usage: bool, tokens: int) -> list[bytes]:
    return _encode(0, model, reply, with_usage, tokens)


def _encode(index: int, model: str, reply: Reply, with_usage: bool, tokens: int) -> list[bytes]:
    chunks = [_chunk(index, model, {"role": "assistant", "content": ""})]
    if reply.reasoning:
        chunks.append(_chunk(index, model, {"reasoning_content": reply.reasoning}))
    chunks += [_chunk(index, model, {"content": piece}) for piece in reply.pieces]
    for number, call in enumerate(reply.calls):
        chunks += _call_chunks(index, model, number, call, reply.fragment)
    if reply.end != "finish":
        return chunks
    chunks.append(_chunk(index, model, {}, finish_reason=_reason(reply)))
    if with_usage:
        chunks.append(_chunk(index, model, None, usage=_usage(tokens, reply)))
    return [*chunks, DONE]


def _call_chunks(index: int, model: str, number: int, call: Call, fragment: int) -> list[bytes]:
    arguments = call.arguments
    head = {
        "index": number,
        "id": _call_id(index, number, call),
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    rest = [
        {"index": number, "function": {"arguments": arguments[at : at + fragment]}}
        for at in range(0, len(arguments), fragment)
    ]
    return [_chunk(index, model, {"tool_calls": [delta]}) for delta in (head, *rest)]


def _chunk(index: int, model: str, delta: dict[str, Any] | None, **more: Any) -> bytes:
    finish_reason = more.pop("finish_reason", None)
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    data = {"id": f"chatcmpl-{index}", "object": "chat.completion.chunk", "created": 1, "model": model}
    return b"data: " + json.dumps(data | {"choices": choices} | more).encode() + b"\n\n"


def whole(index: int, body: dict[str, Any], reply: Reply) -> bytes:
    """The answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(index, number, call),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(reply.calls)
        ]
    answer = {
        "id": f"chatcmpl-{index}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(reply)}],
        "usage": _usage(prompt_tokens(body), reply),
    }
    return json.dumps(answer).encode()


def error_body(reply: Reply) -> bytes:
    """An error in OpenAI's shape."""
    message = reply.message or f"scripted error {reply.status}"
    kind = "invalid_request_error" if reply.status < 500 else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "code": reply.error_code or None}}).encode()


def prompt_tokens(body: dict[str, Any]) -> int:
    """About four characters a token, as a provider would count."""
    return sum(len(str(message.get("content") or "")) for message in body["messages"]) // 4 + 1


def _usage(tokens: int, reply: Reply) -> dict[str, int]:
    given, said = reply.usage or (tokens, len(reply.pieces) + sum(len(call.arguments) // 4 + 1 for call in reply.calls))
    return {"prompt_tokens": given, "completion_tokens": said, "total_tokens": given + said}


def _reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _call_id(index: int, number: int, call: Call) -> str:
    return call.id or f"call_{index}_{number}"
