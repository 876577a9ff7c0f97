"""The words of a conversation: messages, turn requests, turns, tool calls. No provider's own types.

Annotations are real here, and validators are built at the first use: the daemon's start need not wait for either.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from qworkspace.base.ids import AgentId, SessionId
from qworkspace.base.text import clean_text as clean_text
from qworkspace.base.text import clean_value

Source = Literal["chat", "api", "channel", "heartbeat", "jobs", "dream", "proactive", "subagents"]
IfBusy = Literal["queue", "interrupt", "reject"]
Text = Annotated[str, AfterValidator(clean_text)]
Arguments = Annotated[dict[str, Any], AfterValidator(clean_value)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class TextPart(_Part):
    type: Literal["text"] = "text"
    text: Text


class ReasoningPart(_Part):
    """What the model thought aloud. `signature` goes back to the provider that made it, unchanged."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    provider: Text | None = None


class FilePart(_Part):
    """A file or picture of the workspace; `path` is relative to it."""

    type: Literal["file"] = "file"
    path: Text
    media_type: Text = "application/octet-stream"
    name: Text = ""


class ToolCallPart(_Part):
    """The model asks for a tool. `args` is what it sent, parsed; `raw` keeps text that is no JSON object."""

    type: Literal["tool_call"] = "tool_call"
    id: Text
    name: Text
    args: Arguments = Field(default_factory=dict)
    raw: Text | None = None


ToolOutcome = Literal["ok", "error", "denied", "interrupted"]


class ToolResultPart(_Part):
    """What a tool answered, as the model sees it. `file` holds the whole output when it was shortened."""

    type: Literal["tool_result"] = "tool_result"
    id: Text
    name: Text
    text: Text
    outcome: ToolOutcome = "ok"
    file: Text | None = None
    duration_ms: int | None = None


Part = Annotated[TextPart | ReasoningPart | FilePart | ToolCallPart | ToolResultPart, Field(discriminator="type")]
Role = Literal["user", "assistant", "tool"]


class Message(BaseModel):
    """One message of a history. `tool` messages hold only tool results, `assistant` ones may hold calls."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The visible text, parts joined without a separator."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> list[ToolCallPart]:
        return [part for part in self.parts if isinstance(part, ToolCallPart)]


def user_message(text: str) -> Message:
    return Message(role="user", parts=(TextPart(text=text),))


class Usage(BaseModel):
    """Tokens of one or more model calls; `cost` in the provider's currency, None when no price is known."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    cost: float | None = None
    estimated: bool = False

    def plus(self, other: Self) -> Self:
        cost = None if self.cost is None and other.cost is None else (self.cost or 0.0) + (other.cost or 0.0)
        return type(self)(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            requests=self.requests + other.requests,
            cost=cost,
            estimated=self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What somebody wants of an agent: made in one place, before anything of it is stored."""

    agent_id: AgentId
    session_id: SessionId
    message: Message
    user_id: str = ""
    team_id: str = ""
    source: Source = "chat"
    if_busy: IfBusy = "queue"
    idempotency_key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class TurnState(StrEnum):
    """`SessionStore` is the one writer."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        return self not in (TurnState.QUEUED, TurnState.RUNNING)


class CallState(StrEnum):
    """How far a tool call came: what may be run again after a crash, and what may not."""

    PENDING = "pending"
    STARTED = "started"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as the journal holds it."""

    id: str
    session_id: SessionId
    state: TurnState
    source: Source
    user_id: str
    team_id: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    text: str
    usage: Usage
    error: dict[str, Any] | None
    metadata: dict[str, Any]
    context: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its place in a session."""

    id: str
    turn_id: str
    session_id: SessionId
    message: Message
    status: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation."""

    id: SessionId
    title: str
    user_id: str
    source: Source
    created_at: datetime
    updated_at: datetime
    pinned: bool
    message_count: int
    last_state: TurnState | None
