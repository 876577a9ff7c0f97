"""A history that the strictest provider accepts, whatever happened while it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qworkspace.sessions.models import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)

NO_ANSWER = Message(role="assistant", parts=(TextPart(text="(interrupted before an answer)"),))
OPENING = user_message("(the beginning of this conversation is not shown)")
NO_RESULT = "interrupted: no result was stored; whether the call took effect is unknown, check first"


def repair(messages: Sequence[Message]) -> list[Message]:
    """The same conversation, well formed.

    A user's message comes first, user and assistant alternate, each call is answered by one result in the tool message
    right after it, each result has a call, and nothing is empty. A well-formed history comes back equal.
    """
    results = _results_of_calls(messages)
    fixed: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            continue
        kept = _kept(message, index, results)
        if kept is not None:
            _add(fixed, kept)
            if kept.role == "assistant" and kept.calls:
                answers = [results.get((index, call.id)) or _no_result(call) for call in kept.calls]
                fixed.append(Message(role="tool", parts=tuple(answers)))
    return fixed


def closed(messages: Sequence[Message]) -> list[Message]:
    """A repaired history that ends with an answer, so that a user's message may follow."""
    fixed = repair(messages)
    return [*fixed, NO_ANSWER] if fixed and not _answered(fixed[-1]) else fixed


def _add(fixed: list[Message], message: Message) -> None:
    last = fixed[-1] if fixed else None
    if message.role == "user":
        if last is not None and not _answered(last):
            fixed.append(NO_ANSWER)
    elif last is None:
        fixed.append(OPENING)
    elif _answered(last):
        fixed[-1] = _joined(last, message)
        return
    fixed.append(message)


def _answered(message: Message) -> bool:
    return message.role == "assistant" and not message.calls


def _joined(first: Message, second: Message) -> Message:
    """Two assistant messages in a row as one. What the first one thought does not fit in front of the second's."""
    before: list[Part] = [part for part in first.parts if not isinstance(part, ReasoningPart)]
    last = before[-1]
    if isinstance(last, TextPart) and second.text:
        before[-1] = TextPart(text=last.text + "\n\n")  # a part of white space alone is refused by some providers
    return Message.model_construct(role="assistant", parts=(*before, *second.parts))


def _kept(message: Message, index: int, results: dict[tuple[int, str], ToolResultPart]) -> Message | None:
    """The parts that belong into a message of that role; None when nothing is left."""
    parts = tuple(_user_parts(message.parts) if message.role == "user" else _assistant_parts(message.parts))
    if not any(_says_something(part) for part in parts):
        return None
    return message if parts == message.parts else Message.model_construct(role=message.role, parts=parts)


def _says_something(part: Part) -> bool:
    return bool(part.text.strip()) if isinstance(part, TextPart) else isinstance(part, FilePart | ToolCallPart)


def _user_parts(parts: Iterable[Part]) -> Iterator[Part]:
    return (part for part in parts if isinstance(part, TextPart | FilePart) and _says_something(part))


def _assistant_parts(parts: Iterable[Part]) -> Iterator[Part]:
    """Without a second call of the same id, which nothing could answer."""
    seen: set[str] = set()
    for part in parts:
        if isinstance(part, ReasoningPart) or (_says_something(part) and not _repeated(part, seen)):
            yield part


def _repeated(part: Part, seen: set[str]) -> bool:
    if not isinstance(part, ToolCallPart):
        return False
    known = part.id in seen
    seen.add(part.id)
    return known


def _results_of_calls(messages: Sequence[Message]) -> dict[tuple[int, str], ToolResultPart]:
    """(index of the message, call id) -> its result: the first one after the call that no later call owns."""
    waiting: dict[str, int] = {}
    results: dict[tuple[int, str], ToolResultPart] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant":
            waiting |= {call.id: index for call in message.calls}
        elif message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResultPart) and part.id in waiting:
                    results[waiting.pop(part.id), part.id] = part
    return results


def _no_result(call: ToolCallPart) -> ToolResultPart:
    return ToolResultPart(id=call.id, name=call.name, text=NO_RESULT, outcome="interrupted")
