"""Our messages as pydantic_ai's, and its answers as ours."""

# Heavy: imported by `qworkspace.chat.hosted` only.

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelResponsePart as LibraryPart
from pydantic_ai.messages import TextPart as LibraryText
from pydantic_ai.messages import ToolCallPart as LibraryCall
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from qworkspace.base.text import clean_text
from qworkspace.chat.wire import FinishReason, Prompt
from qworkspace.sessions.models import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)

RAW_ARGUMENTS_KEPT = 4_000
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_OUTCOMES: dict[ToolOutcome, Literal["success", "failed", "denied", "interrupted"]] = {
    "ok": "success",
    "error": "failed",
    "denied": "denied",
    "interrupted": "interrupted",
}
_REASONS: dict[str | None, FinishReason] = {
    None: "stop",
    "stop": "stop",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "content_filter",
}


class ToolNames:
    """Names as providers accept them, `[a-zA-Z0-9_-]{1,64}`, and back."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sent: dict[str, str] = {}
        self._meant: dict[str, str] = {}
        for name in names:
            self.sent(name)

    def sent(self, name: str) -> str:
        """What stands for `name` in requests; the same as long as this object lives."""
        known = self._sent.get(name)
        if known is None:
            fit = _UNFIT.sub("_", name)[:64] or "tool"
            number = 2
            known = fit
            while known in self._meant:
                known = f"{fit[:60]}_{number}"
                number += 1
            self._sent[name] = known
            self._meant[known] = name
        return known

    def meant(self, sent: str) -> str:
        """The name that the model meant; one that it made up stays as it is."""
        return self._meant.get(sent, sent)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one provider wants of a history."""

    provider: str
    """Its name in pydantic_ai: reasoning goes back only to the provider that made it."""
    signed_reasoning_only: bool
    """Reasoning goes back when it is signed, in the whole history; else only that of the present turn does."""


def parameters(prompt: Prompt, names: ToolNames) -> ModelRequestParameters:
    """System text and tools of the request."""
    defined = [_definition(names.sent(tool.name), tool.description, tool.schema) for tool in prompt.tools]
    offered = {tool.name for tool in prompt.tools}
    past = {part.name for message in prompt.messages for part in message.parts if part.type == "tool_call"}
    gone = "Not available now: do not call it."
    defined += [_definition(names.sent(name), gone, _NO_ARGUMENTS) for name in sorted(past - offered)]
    system = clean_text(prompt.system).strip()
    return ModelRequestParameters(
        function_tools=defined,
        allow_text_output=True,
        instruction_parts=[InstructionPart(content=system)] if system else None,
    )


_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


def _definition(name: str, description: str, schema: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name=name, description=description, parameters_json_schema=schema)


def to_library(
    messages: Sequence[Message], names: ToolNames, dialect: Dialect, pictures: Mapping[str, bytes]
) -> list[ModelMessage]:
    """The history for the library. Nothing in it is empty; `pictures` are the files to be sent, by path."""
    last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    converted: list[ModelMessage] = []
    for index, message in enumerate(messages):
        if message.role == "user":
            converted.append(ModelRequest(parts=[UserPromptPart(_user_content(message, pictures))]))
        elif message.role == "tool":
            results = [part for part in message.parts if isinstance(part, ToolResultPart)]
            converted.append(ModelRequest(parts=[_result(part, names) for part in results]))
        else:
            present = index > last_user
            converted.append(_response(message, names, dialect, present=present))
    return converted


def _user_content(message: Message, pictures: Mapping[str, bytes]) -> str | list[str | BinaryContent]:
    content: list[str | BinaryContent] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.text.strip():
            content.append(part.text)
        elif isinstance(part, FilePart) and part.path in pictures:
            content.append(BinaryContent(pictures[part.path], media_type=part.media_type))
        elif isinstance(part, FilePart):
            content.append(f"[attached file: {part.path} ({part.media_type})]")
    if all(isinstance(item, str) for item in content):
        return "\n\n".join(str(item) for item in content) or "(an empty message)"
    return content


def _result(part: ToolResultPart, names: ToolNames) -> ToolReturnPart:
    text = clean_text(part.text)
    return ToolReturnPart(
        tool_name=names.sent(part.name),
        content=text if text.strip() else "(no output)",
        tool_call_id=part.id,
        outcome=_OUTCOMES[part.outcome],
    )


def _response(message: Message, names: ToolNames, dialect: Dialect, *, present: bool) -> ModelResponse:
    kept = [
        part for part in message.parts if isinstance(part, ReasoningPart) and _goes_back(part, dialect, present=present)
    ]
    details = {target: found for part in kept if (target := _target(part)) and (found := _details(part))}
    parts: list[LibraryPart] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.text.strip():
            last = parts[-1] if parts else None
            if isinstance(last, LibraryText):
                last.content += part.text
            else:
                parts.append(LibraryText(part.text))
        elif isinstance(part, ToolCallPart):
            parts.append(_call(part, names, dialect, details.get(part.id)))
        elif isinstance(part, ReasoningPart) and part in kept and not _target(part):
            parts.append(_thinking(part, dialect))
    if all(isinstance(part, ThinkingPart) for part in parts):
        parts.append(LibraryText("(no answer)"))
    return ModelResponse(parts=parts, provider_name=dialect.provider)


def _call(part: ToolCallPart, names: ToolNames, dialect: Dialect, details: dict[str, Any] | None) -> LibraryCall:
    args = part.args if part.raw is None else {"unreadable_arguments": clean_text(part.raw)[:RAW_ARGUMENTS_KEPT]}
    call = LibraryCall(tool_name=names.sent(part.name), args=args, tool_call_id=part.id)
    if details is not None:
        call.provider_name = dialect.provider
        call.provider_details = details
    return call


# A `ReasoningPart.provider` is "<provider>", "<provider>/<id of the thinking part>", or "<provider>#<id of a call>":
# the last one is no thought but what the provider wants back with that call, as JSON in the signature.


def _goes_back(part: ReasoningPart, dialect: Dialect, *, present: bool) -> bool:
    owner = re.split("[/#]", part.provider or "", maxsplit=1)[0]
    return owner == dialect.provider and (part.signature is not None or (present and not dialect.signed_reasoning_only))


def _target(part: ReasoningPart) -> str:
    return (part.provider or "").partition("#")[2]


def _details(part: ReasoningPart) -> dict[str, Any] | None:
    try:
        details = json.loads(part.signature or "")
    except ValueError:
        return None
    return details if isinstance(details, dict) else None


def _thinking(part: ReasoningPart, dialect: Dialect) -> ThinkingPart:
    identity = (part.provider or "").partition("/")[2] or None
    return ThinkingPart(clean_text(part.text), id=identity, signature=part.signature, provider_name=dialect.provider)


def from_library(response: ModelResponse, names: ToolNames, taken: set[str]) -> Message:
    """The answer as ours. Call ids that are empty or in `taken` are replaced; lone surrogates become U+FFFD."""
    parts: list[Part] = []
    for part in response.parts:
        if isinstance(part, LibraryText) and part.content:
            _add_text(parts, part.content)
        elif isinstance(part, ThinkingPart) and (part.content or part.signature):
            parts.append(_reasoning(part))
        elif isinstance(part, LibraryCall):
            parts += _from_call(part, names, taken)
    return Message(role="assistant", parts=tuple(parts))


def _add_text(parts: list[Part], text: str) -> None:
    if parts and isinstance(parts[-1], TextPart):
        text = parts.pop().text + text  # type: ignore[union-attr]  # just seen to be a TextPart
    parts.append(TextPart(text=clean_text(text)))


def _reasoning(part: ThinkingPart) -> ReasoningPart:
    provider = part.provider_name and part.provider_name + (f"/{part.id}" if part.id else "")
    return ReasoningPart(text=clean_text(part.content), signature=part.signature, provider=provider)


def _from_call(part: LibraryCall, names: ToolNames, taken: set[str]) -> list[Part]:
    identity = part.tool_call_id
    if not identity or identity in taken:
        identity = f"call_{secrets.token_hex(8)}"
    taken.add(identity)
    args, raw = arguments(part.args)
    call = ToolCallPart(id=identity, name=names.meant(clean_text(part.tool_name)), args=args, raw=raw)
    if not part.provider_details:
        return [call]
    details = ReasoningPart(
        text="", signature=json.dumps(part.provider_details), provider=f"{part.provider_name}#{identity}"
    )
    return [details, call]


def arguments(sent: str | dict[str, Any] | None) -> tuple[dict[str, Any], str | None]:
    """The arguments of a call, and the raw text when that is no JSON object."""
    if not sent:
        return {}, None
    text = sent if isinstance(sent, str) else json.dumps(sent)
    try:
        args = json.loads(text, strict=False)
        if "\\u" in text:
            args = json.loads(clean_text(json.dumps(args, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return {}, clean_text(text)
    return (args, None) if isinstance(args, dict) else ({}, clean_text(text))


def finish_reason(reason: str | None) -> FinishReason:
    """Why the model stopped, in our words."""
    return _REASONS.get(reason, "other")
