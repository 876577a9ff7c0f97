"""What the strictest provider demands of a history, written without a look at the repair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from qworkspace.sessions.models import Message


def faults(messages: Sequence[Message]) -> list[str]:
    """Every reason to refuse the messages; none when they are fit to be sent."""
    return [*_order(messages), *_pairing(messages), *_contents(messages)]


def _order(messages: Sequence[Message]) -> Iterator[str]:
    if messages and messages[0].role != "user":
        yield f"the first message is of {messages[0].role}"
    allowed = {"user": {"assistant"}, "tool": {"assistant"}}
    for number, (one, two) in enumerate(pairwise(messages)):
        may_follow = allowed.get(one.role) or ({"tool"} if one.calls else {"user"})
        if two.role not in may_follow:
            yield f"message {number + 1} is of {two.role}, after one of {one.role}"


def _pairing(messages: Sequence[Message]) -> Iterator[str]:
    for number, message in enumerate(messages):
        following = messages[number + 1] if number + 1 < len(messages) else None
        asked = [call.id for call in message.calls]
        answered = [part.id for part in following.parts if part.type == "tool_result"] if following is not None else []
        if asked and asked != answered:
            yield f"message {number} calls {asked}, answered are {answered}"
        if len(set(asked)) != len(asked):
            yield f"message {number} calls one id twice: {asked}"


def _contents(messages: Sequence[Message]) -> Iterator[str]:
    fitting = {
        "user": {"text", "file"},
        "assistant": {"text", "reasoning", "file", "tool_call"},
        "tool": {"tool_result"},
    }
    for number, message in enumerate(messages):
        kinds = {part.type for part in message.parts}
        if not kinds - {"reasoning"}:
            yield f"message {number} is empty"
        if kinds - fitting[message.role]:
            yield f"message {number} of {message.role} holds {kinds - fitting[message.role]}"
        if any(part.type == "text" and not part.text.strip() for part in message.parts):
            yield f"message {number} holds a blank text"
