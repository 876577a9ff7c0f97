"""The models of requests and answers: what validates, and what the OpenAPI document says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from qworkspace.api.basic_schemas import Model, optional
from qworkspace.base.ids import agent_id, session_id
from qworkspace.errors import InvalidInput
from qworkspace.sessions.models import IfBusy, Part, Usage

T = TypeVar("T")


class Body(Model):
    """What a client sends. Unknown keys are ignored: newer clients may speak to older daemons."""


def _checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """A border check as a validator: its error becomes the field's."""

    def validate(text: str) -> T:
        try:
            return check(text)
        except InvalidInput as error:
            raise ValueError(error.message) from None

    return validate


SessionIdText = Annotated[str, AfterValidator(_checked(session_id))]
AgentIdText = Annotated[str, AfterValidator(_checked(agent_id))]
Label = Annotated[str, Field(max_length=200)]


# lists


class Page(Body):
    """One page of a list; `cursor` is the `next_cursor` of the page before."""

    limit: int = Field(default=50, ge=1, le=200)
    cursor: str | None = Field(default=None, max_length=500)


class LongPage(Page):
    """A page of messages."""

    limit: int = Field(default=200, ge=1, le=200)


# chat


class ContentPart(Body):
    """A piece of a message: text, or a file that was uploaded before (`path` as the upload answered)."""

    type: Literal["text", "file"]
    text: str | None = None
    path: str | None = Field(default=None, max_length=1000)
    media_type: Label | None = None
    name: Label | None = None

    @model_validator(mode="after")
    def _complete(self) -> ContentPart:
        needed = "text" if self.type == "text" else "path"
        if not getattr(self, needed):
            raise ValueError(f"a part of type {self.type!r} needs {needed!r}")
        return self


def _as_parts(value: Any) -> Any:
    if value in ("", []):
        raise ValueError("it is empty; say something")
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise ValueError("it must be a text, or a list of parts")
    return value


class ChatBody(Body):
    """One turn. Without `session_id` a new conversation begins."""

    message: Annotated[
        list[ContentPart],
        BeforeValidator(_as_parts, json_schema_input_type=str | list[ContentPart]),
        Field(min_length=1, max_length=100),
    ]
    session_id: SessionIdText | None = None
    user_id: Label = ""
    team_id: Label = ""
    if_busy: IfBusy | None = Field(default=None, description="While a turn runs; null: as the agent's settings say")
    stream: bool = True
    metadata: dict[str, Any] = Field(default_factory=dict)


class TurnError(Model):
    """Why a turn failed."""

    code: str
    message: str
    retryable: bool = False


class ChatAnswer(Model):
    """A whole turn, for clients that do not stream."""

    turn_id: str
    session_id: str
    status: Literal["completed", "failed", "cancelled"]
    text: str
    usage: Usage
    error: TurnError | None = optional()


# sessions


class SessionsQuery(Page):
    query: str | None = Field(default=None, max_length=500, description="Words of the title or of what was said")
    user_id: Label | None = None


class SessionPatch(Body):
    """What may be changed of a session; what is left out stays."""

    title: str | None = Field(default=None, min_length=1, max_length=200)
    pinned: bool | None = None


class SessionFacts(Model):
    id: str
    title: str
    user_id: str
    source: str
    created_at: datetime
    updated_at: datetime
    pinned: bool
    message_count: int
    last_state: str | None
    live_turn_id: str | None = optional("The turn that runs or waits now")


class SessionList(Model):
    sessions: list[SessionFacts]
    next_cursor: str | None


class MessageFacts(Model):
    id: str
    turn_id: str
    role: Literal["user", "assistant", "tool"]
    text: str
    parts: list[Part]
    status: str
    created_at: datetime


class MessageList(Model):
    messages: list[MessageFacts]
    next_cursor: str | None


class TurnFacts(Model):
    id: str
    session_id: str
    state: str
    source: str
    user_id: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    text: str
    usage: Usage
    error: dict[str, Any] | None
    metadata: dict[str, Any]
    notes: int = Field(description="Pieces that were put into its context; see the turn's `context`")


class TurnList(Model):
    turns: list[TurnFacts]
    next_cursor: str | None


class Stopped(Model):
    stopped: bool = Field(description="False when nothing ran")


class Resumed(Model):
    turn_id: str
    session_id: str


class TurnContextFacts(Model):
    """What was put into a turn's context, and where it came from."""

    turn_id: str
    notes: list[dict[str, Any]]


# files


class UploadQuery(Body):
    name: Label = Field(default="", description="What a file is called that is the body itself")


class UploadFacts(Model):
    path: str = Field(description="For a content part of type file")
    name: str
    media_type: str
    size: int


class UploadList(Model):
    files: list[UploadFacts]
