"""The models of requests and answers: what validates, and what the OpenAPI document says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qworkspace.base.ids import agent_id, session_id
from qworkspace.errors import InvalidInput
from qworkspace.sessions.models import IfBusy, Part, Usage

T = TypeVar("T")


class Model(BaseModel):
    """Built at first use, so that many of them cost nothing at the start."""

    model_config = ConfigDict(defer_build=True, frozen=True)


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


def _is_none(value: object) -> bool:
    return value is None


SessionIdText = Annotated[str, AfterValidator(_checked(session_id))]
AgentIdText = Annotated[str, AfterValidator(_checked(agent_id))]
Label = Annotated[str, Field(max_length=200)]


def optional(description: str = "") -> Any:
    """A field of an answer that is only there when it has a value."""
    return Field(default=None, exclude_if=_is_none, description=description or None)


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
    return [{"type": "text", "text": value}] if isinstance(value, str) and value else value


class ChatBody(Body):
    """One turn. Without `session_id` a new conversation begins."""

    message: Annotated[list[ContentPart], BeforeValidator(_as_parts), Field(min_length=1, max_length=100)]
    session_id: SessionIdText | None = None
    user_id: Label = ""
    team_id: Label = ""
    if_busy: IfBusy = "queue"
    stream: bool = True
    metadata: dict[str, Any] = Field(default_factory=dict)


class ErrorFacts(Model):
    """What went wrong, for programs and for people."""

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorAnswer(Model):
    error: ErrorFacts


class TurnError(Model):
    """Why a turn failed."""

    code: str
    message: str
    retryable: bool = False


class ChatAnswer(Model):
    """A whole turn, for clients that do not stream."""

    turn_id: str
    session_id: str
    status: Literal["completed", "failed", "cancelled", "interrupted"]
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


# approvals


class ApprovalsQuery(Page):
    state: Literal["pending", "all"] = "pending"


class ApprovalBody(Body):
    decision: Literal["allow", "deny"]
    remember: bool = Field(default=False, description="Allow this from now on without asking")


# access


class PairBody(Body):
    code: str = Field(min_length=1, max_length=200)
    name: Label = ""


class PairingFacts(Model):
    code: str
    expires_at: datetime
    link: str = Field(description="The console's address with the code in its fragment; good for one browser")


class BrowserFacts(Model):
    id: str
    name: str
    paired_at: datetime
    seen_at: datetime
    current: bool = Field(description="The browser that asks")


class BrowserList(Model):
    browsers: list[BrowserFacts]


class RotateBody(Body):
    revoke_browsers: bool = False


class Rotated(Model):
    rotated: bool
    browsers_revoked: int


# files


class UploadFacts(Model):
    path: str = Field(description="For a content part of type file")
    name: str
    media_type: str
    size: int


class UploadList(Model):
    files: list[UploadFacts]


# health


class Health(Model):
    status: Literal["starting", "ready", "stopping"]
    version: str


class ProblemFacts(Model):
    key: str
    severity: Literal["warning", "error"]
    message: str | None = optional()
    agent_id: str | None = optional()
    since: datetime


class Ready(Health):
    degraded: list[ProblemFacts]


class AgentState(Model):
    id: str
    state: str
    enabled: bool
    generation: int | None = optional()
    active_turns: int = 0
    queued_turns: int = 0
    problems: list[ProblemFacts]
    details: dict[str, Any] | None = optional()


class Status(Model):
    status: Literal["starting", "ready", "stopping"]
    version: str
    started_at: datetime
    uptime_seconds: float
    home: str
    watch_mode: str = Field(description="How edits of files are noticed")
    active_agent: str
    agents: list[AgentState]
    problems: list[ProblemFacts]


# agents


class AgentBody(Body):
    """A new agent, from a template or as a copy of another one."""

    id: AgentIdText
    name: Label = ""
    template: Label | None = None
    copy_of: AgentIdText | None = Field(default=None, alias="copy")


class AgentPatch(Body):
    """What may be changed of an agent without its agent.json; what is left out stays."""

    name: Label | None = None
    description: str | None = Field(default=None, max_length=2000)
    enabled: bool | None = None
    start: Literal["lazy", "eager"] | None = None
    active: Literal[True] | None = Field(default=None, description="Make it the agent of requests that name none")


class AgentFacts(AgentState):
    name: str
    description: str
    language: str | None = optional()
    model: str | None
    active: bool
    start: str
    workspace_dir: str


class AgentList(Model):
    agents: list[AgentFacts]
    active_agent: str
    next_cursor: str | None


class EventsQuery(Body):
    agent_id: AgentIdText | None = None
