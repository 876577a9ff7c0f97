"""How much fits into a model's window: estimates, windows of well-known models, and what to summarise when it fills.

Pure functions: nothing here asks a model or a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qworkspace.base.text import estimate_text as estimate_text
from qworkspace.chat.wire import Prompt, ToolSpec
from qworkspace.config.models import Price
from qworkspace.sessions.models import FilePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

DEFAULT_WINDOW = 128_000
COMPACT_AT = 0.75
PICTURE_TOKENS = 1_200
MESSAGE_TOKENS = 4
TOOL_TOKENS = 12
_LONGEST_QUOTE = 6_000

_WINDOWS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), tokens)
    for pattern, tokens in (
        (r"gpt-4\.1", 1_000_000),
        (r"gpt-4(-\d{4}.*)?$", 8_192),
        (r"gpt-4-32k", 32_000),
        (r"gpt-3\.5", 16_385),
        (r"gpt-5\.[4-9](?!.*(mini|nano))", 1_000_000),
        (r"gpt-5\.3$", DEFAULT_WINDOW),
        (r"gpt-5", 400_000),
        (r"gpt-[6-9]", 1_000_000),
        (r"o1-(mini|preview)", DEFAULT_WINDOW),
        (r"o\d(-|$)", 200_000),
        (r"claude-(fable|mythos|opus-4-[6-9]|sonnet-4-[6-9]|(opus|sonnet|haiku)-5)", 1_000_000),
        (r"claude", 200_000),
        (r"gemini-(1\.0|pro)", 32_768),
        (r"gemini", 1_000_000),
        (r"gemma-?4", 262_144),
        (r"gemma-?2?(:|-|$)", 8_192),
        (r"deepseek-(v4|flash)", 1_000_000),
        (r"kimi-k3", 1_000_000),
        (r"kimi-k2(?!-0711)", 262_144),
        (r"grok-4\.[2-4]|grok-4(-1)?-fast", 1_000_000),
        (r"grok-4\.[5-9]", 500_000),
        (r"grok-4", 256_000),
        (r"grok-2", 32_768),
        (r"mistral-large-4", 1_000_000),
        (r"llama-?2", 4_096),
        (r"llama-?3(-|:|$)", 8_192),
        (r"mi(s|x)tral(-7b|-8x7b|:|$)|open-mi(s|x)tral", 32_768),
        (r"qwen2(\.5)?(:|-|$)", 32_768),
        (r"phi-?3", 4_096),
    )
)
"""Windows that differ from the default, as the makers document them; the first pattern that begins the name counts."""


def window_of(name: str) -> int:
    """Tokens of a well-known model, by its name without what stands before a slash; else 128k."""
    bare = name.rsplit("/", 1)[-1].lower()
    return next((tokens for pattern, tokens in _WINDOWS if pattern.match(bare)), DEFAULT_WINDOW)


def estimate_message(message: Message) -> int:
    """About how many tokens one message is."""
    return MESSAGE_TOKENS + sum(_estimate_part(part) for part in message.parts)


def _estimate_part(part: object) -> int:
    if isinstance(part, TextPart | ReasoningPart | ToolResultPart):
        return estimate_text(part.text)
    if isinstance(part, ToolCallPart):
        return TOOL_TOKENS + estimate_text(part.raw if part.raw is not None else str(part.args))
    return PICTURE_TOKENS if isinstance(part, FilePart) and part.media_type.startswith("image/") else TOOL_TOKENS


def estimate_tool(tool: ToolSpec) -> int:
    """About how many tokens a tool's definition is."""
    return TOOL_TOKENS + estimate_text(tool.description) + len(str(tool.schema)) // 4


def estimate_prompt(prompt: Prompt) -> int:
    """About how many tokens the whole request is."""
    tools = sum(estimate_tool(tool) for tool in prompt.tools)
    return estimate_text(prompt.system) + tools + sum(estimate_message(message) for message in prompt.messages)


def fits(prompt: Prompt, window: int, *, compact_at: float = COMPACT_AT) -> bool:
    """Whether the request leaves the window's last quarter to the answer."""
    return estimate_prompt(prompt) <= window * compact_at


def cost(price: Price | None, sent: int, received: int) -> float | None:
    """What so many tokens cost in the price's currency; None without a price."""
    if price is None:
        return None
    return (sent * price.input + received * price.output) / 1_000_000


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The first `older` messages are to be summarised; the rest stays as it is."""

    older: int
    tokens: int
    """About how many tokens the older ones are."""


def plan_compaction(history: Sequence[Message], window: int, *, keep_turns: int = 4) -> CompactionPlan | None:
    """What of `history` (all before the current question) to summarise; None when there is nothing.

    The newest `keep_turns` turns stay, fewer when they fill more than a third of the window. A cut is made before a
    user's message only, so a call is never separated from its result.
    """
    starts = [index for index, message in enumerate(history) if message.role == "user"]
    kept = min(keep_turns, len(starts))
    sizes = [estimate_message(message) for message in history]
    while kept > 0 and sum(sizes[starts[-kept] :]) > window / 3:
        kept -= 1
    cut = starts[-kept] if kept else len(history)
    if cut == 0:
        return None
    return CompactionPlan(older=cut, tokens=sum(sizes[:cut]))


def shorten_results(messages: Sequence[Message], room: int, *, keep: int = 2) -> list[Message]:
    """`messages` with the texts of their older tool results taken out until they are about `room` tokens.

    For one long turn that fills the window by itself. The newest `keep` messages of results stay whole.
    """
    shortened = list(messages)
    total = sum(estimate_message(message) for message in messages)
    places = [index for index, message in enumerate(messages) if message.role == "tool"]
    for index in places[: max(0, len(places) - keep)]:
        if total <= room:
            break
        before = estimate_message(shortened[index])
        shortened[index] = _without_texts(shortened[index])
        total -= before - estimate_message(shortened[index])
    return shortened


def _without_texts(message: Message) -> Message:
    parts = []
    for part in message.parts:
        if isinstance(part, ToolResultPart) and len(part.text) > 200:
            where = f"; the whole of it is in {part.file}" if part.file else ""
            part = part.model_copy(update={"text": f"{part.text[:120]}… (cut to save room{where})"})
        parts.append(part)
    return message.model_copy(update={"parts": tuple(parts)})


def transcript(messages: Sequence[Message], room: int) -> list[str]:
    """`messages` as plain text, in pieces of about `room` tokens at most; very long messages are cut in the middle."""
    pieces: list[str] = []
    piece: list[str] = []
    size = 0
    longest = min(_LONGEST_QUOTE, max(200, room * 2))
    for message in messages:
        line = _quoted(message, longest)
        tokens = estimate_text(line) + 1
        if piece and size + tokens > room:
            pieces.append("\n\n".join(piece))
            piece, size = [], 0
        piece.append(line)
        size += tokens
    if piece:
        pieces.append("\n\n".join(piece))
    return pieces


def _quoted(message: Message, longest: int) -> str:
    lines: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            lines.append(_middle_cut(part.text, longest))
        elif isinstance(part, ToolCallPart):
            arguments = part.raw if part.raw is not None else str(part.args)
            lines.append(f"[calls {part.name}: {_middle_cut(arguments, longest // 4)}]")
        elif isinstance(part, ToolResultPart):
            lines.append(f"[{part.name} answered ({part.outcome}): {_middle_cut(part.text, longest // 2)}]")
        elif isinstance(part, FilePart):
            lines.append(f"[file {part.path}]")
    return f"{message.role.upper()}: " + "\n".join(lines)


def _middle_cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"
