"""What the strictest provider demands of a chat request; anything else is answered with a 400."""

from __future__ import annotations

import json
import re
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


class Refused(Exception):
    """The request breaks a rule; `code` as OpenAI would name it."""

    def __init__(self, message: str, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.code = code


def check(raw: bytes, body: Any) -> None:
    """Raise `Refused` unless `body` (parsed from `raw`) is a request that every provider accepts."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise Refused("'model' is required")
    _check_text(raw, body)
    names = _tool_names(body.get("tools"))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("'messages' must be a non-empty array")
    _check_order([message.get("role") if isinstance(message, dict) else None for message in messages])
    for index, message in enumerate(messages):
        _check_content(f"messages[{index}]", message)
    _check_calls(messages, names)


def _check_text(raw: bytes, body: Any) -> None:
    if not _ESCAPED_SURROGATE.search(raw):
        return
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("the body holds a lone surrogate: not valid Unicode") from None


def _tool_names(tools: Any) -> set[str]:
    if tools is None:
        return set()
    if not isinstance(tools, list) or not tools:
        raise Refused("'tools' must be a non-empty array or absent")
    names: set[str] = set()
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not _NAME.match(name):
            raise Refused(f"tool name {name!r} does not match [a-zA-Z0-9_-]{{1,64}}")
        if name in names:
            raise Refused(f"tool names must be unique: {name!r}")
        if function.get("parameters", {"type": "object"}).get("type") != "object":
            raise Refused(f"tool {name!r}: parameters must be an object schema")
        names.add(name)
    return names


_FOLLOWS: dict[str, set[str]] = {
    "": {"system", "user"},
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"tool", "assistant"},
}


def _check_order(roles: list[Any]) -> None:
    before = ""
    for index, role in enumerate(roles):
        if role not in _FOLLOWS or not role:
            raise Refused(f"messages[{index}]: unknown role {role!r}")
        if role not in _FOLLOWS[before]:
            raise Refused(f"messages[{index}]: unexpected role {role!r} after {before or 'the beginning'!r}")
        before = role
    if before not in ("user", "tool"):
        raise Refused(f"the last message must be a user's or a tool's, not {before!r}")


def _check_content(where: str, message: dict[str, Any]) -> None:
    content = message.get("content")
    if content is None and message["role"] == "assistant" and message.get("tool_calls"):
        return
    if isinstance(content, list) and content:
        for part in content:
            _check_part(where, part)
        return
    if not isinstance(content, str) or not content.strip():
        raise Refused(f"{where}: content must be non-empty")


def _check_part(where: str, part: Any) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and str(part.get("text", "")).strip():
        return
    if kind in ("image_url", "input_audio", "file") and part.get(kind):
        return
    raise Refused(f"{where}: an empty or unknown content part of type {kind!r}")


def _check_calls(messages: list[dict[str, Any]], names: set[str]) -> None:
    seen: set[str] = set()
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                raise Refused(f"{where}: tool result {call_id!r} has no call before it")
            waiting.discard(call_id)
            continue
        _none_waiting(waiting)
        calls = message.get("tool_calls")
        if calls is not None:
            waiting = _call_ids(where, calls, names, seen)
    _none_waiting(waiting)


def _none_waiting(waiting: set[str]) -> None:
    if waiting:
        raise Refused(f"tool calls without a result: {', '.join(sorted(waiting))}")


def _call_ids(where: str, calls: Any, names: set[str], seen: set[str]) -> set[str]:
    if not isinstance(calls, list) or not calls:
        raise Refused(f"{where}: 'tool_calls' must be a non-empty array or absent")
    ids: set[str] = set()
    for call in calls:
        call_id, function = call.get("id"), call.get("function") or {}
        if not isinstance(call_id, str) or not call_id or call_id in seen:
            raise Refused(f"{where}: tool call id {call_id!r} is empty or used before")
        if function.get("name") not in names:
            raise Refused(f"{where}: tool {function.get('name')!r} is not in 'tools'")
        _check_arguments(where, function.get("arguments"))
        seen.add(call_id)
        ids.add(call_id)
    return ids


def _check_arguments(where: str, text: Any) -> None:
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError):
        raise Refused(f"{where}: tool call arguments are not valid JSON: {text!r}") from None
    if not isinstance(arguments, dict):
        raise Refused(f"{where}: tool call arguments are not a JSON object: {text!r}")
