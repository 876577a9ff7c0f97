"""The models of requests and answers about the daemon itself: agents, health, access, approvals, events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field, RootModel

from qworkspace.api.basic_schemas import Model, ProblemFacts, optional
from qworkspace.api.schemas import AgentIdText, Body, Label, Page

# approvals


class ApprovalsQuery(Page):
    state: Literal["pending", "all"] = "pending"


class ApprovalFacts(Model):
    """Something that an agent may only do when a person allows it."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    agent_id: str
    session_id: str
    turn_id: str
    call_id: str
    tool: str
    args: dict[str, Any]
    reason: str
    state: str
    created_at: datetime
    expires_at: datetime | None
    source: str = Field(description="Where the message came from that led to it: chat, api, a job, a channel, …")
    user_id: str = ""
    answered_at: datetime | None = optional()
    answered_by: str = ""
    remember: bool = False


class ApprovalList(Model):
    approvals: list[ApprovalFacts]
    next_cursor: str | None


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


class RetiredFacts(Model):
    """A replaced instance that still has turns."""

    generation: int
    turns: int
    since_seconds: float
    state: Literal["retired", "draining"] = Field(description="draining: it takes longer than usual")


class AgentState(Model):
    id: str
    state: str
    enabled: bool
    generation: int = Field(description="Counts the instances of the agent since the daemon began; 0: never started")
    active_turns: int
    queued_turns: int
    services: dict[str, Any] = Field(description="States of the started agent's services")
    retired: list[RetiredFacts] = Field(description="Replaced instances whose last turns run")
    edits_waiting: bool = Field(description="Edits wait until one of many replaced instances has ended")
    error: str | None = optional("Why its last start failed")
    problems: list[ProblemFacts]


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


# inbox


class InboxQuery(Page):
    unread: bool = Field(default=False, description="Only what nobody has read")
    agent: AgentIdText | None = None


class InboxItemFacts(Model):
    """Something to read."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    agent_id: str | None
    kind: str
    severity: Literal["info", "warning", "error"]
    title: str
    body: str
    created_at: datetime
    read: bool
    trace_id: str | None = optional()
    settled_at: datetime | None = optional("When that was over, for what lasts a while")


class InboxList(Model):
    items: list[InboxItemFacts]
    unread: int = Field(description="Unread items in all, whatever this page shows")
    next_cursor: str | None


class InboxRead(Model):
    read: int = Field(description="How many were unread")


class InboxCleared(Model):
    removed: int


# agents


class AgentBody(Body):
    """A new agent, from a template or as a copy of another one."""

    id: AgentIdText
    name: Label = ""
    template: Label | None = None
    copy_of: AgentIdText | None = Field(default=None, alias="copy")


class DeleteQuery(Body):
    files: bool = Field(default=False, description="Remove the agent's directory too, for good")


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


class AgentConfigBody(RootModel[dict[str, Any]]):
    """agent.json; its keys are described in the configuration reference."""

    model_config = ConfigDict(defer_build=True, frozen=True)


class EventsQuery(Body):
    agent_id: AgentIdText | None = None
