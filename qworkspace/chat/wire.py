"""What goes to a model and what comes back, in plain dataclasses: no provider's own types, nothing heavy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from qworkspace.config.models import ModelRef, Price, TimeoutsConfig
from qworkspace.sessions.models import FilePart, Message, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]
ReadFile = Callable[[FilePart], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call; `schema` is the JSON schema of its arguments (an object)."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to a model. `messages` is a repaired history whose last message is a user's or a tool's.

    `settings` may hold `temperature`, `max_tokens`, `top_p`, `seed`, `parallel_tool_calls`, `tool_choice`,
    `thinking`; what is not one of the usual settings goes to the provider as it stands. `read_file` gives the bytes
    of an attached picture, None when they cannot be had; without it files are only named.
    """

    system: str
    messages: list[Message]
    tools: list[ToolSpec] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    read_file: ReadFile | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the visible answer. An empty one says only that the model is at work (it writes a tool call)."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what the model thinks aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every stream that did not fail: the whole message and what it used."""

    message: Message
    usage: Usage
    reason: FinishReason = "stop"


ModelEvent = TextDelta | ReasoningDelta | Finished


class ChatModel(Protocol):
    """A model that answers prompts. Failures are `ModelError`s; `ContextTooLong` when the prompt does not fit."""

    @property
    def ref(self) -> ModelRef:
        """Which model this is."""

    @property
    def context_window(self) -> int:
        """Tokens of prompt and answer together."""

    @property
    def price(self) -> Price | None:
        """What tokens cost, None when nobody said."""

    @property
    def vision(self) -> bool:
        """Whether pictures may be sent."""

    @property
    def timeouts(self) -> TimeoutsConfig:
        """How long it may be silent."""

    def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        """The answer as it comes, ending with one `Finished`. Closing the generator closes the connection."""
