"""The models of requests and answers about changes of configuration: plans, reloads, their history."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from qworkspace.api.basic_schemas import Model, optional
from qworkspace.api.schemas import Body, Label

Outcome = Literal["applied", "live", "failed", "rolled_back"]


class PlanQuery(Body):
    name: Label = Field(default="", description="What errors call the text that is sent; default agent.json")


class PlanProblem(Model):
    """Something that is valid and still will not work: an unknown key, a name that leads nowhere."""

    path: str
    message: str
    line: int | None = optional()
    column: int | None = optional()
    near: str | None = optional("The key that may be meant")


class PlanFacts(Model):
    """What a change would do. Services are named; fields are dotted names, never with their values."""

    model_config = ConfigDict(from_attributes=True)

    kind: Literal["nothing", "live", "reload"] = Field(
        description="live: it counts from the next turn on; reload: a new instance is built"
    )
    changed: list[str]
    moved: list[str] = Field(description="Services that go on untouched")
    rebuilt: list[str]
    added: list[str]
    removed: list[str]
    live: list[str] = Field(description="Changed fields that no service holds")
    restart: list[str] = Field(description="Changed fields that wait for the daemon's next start")
    problems: list[PlanProblem] = Field(default_factory=list)


class Timings(Model):
    """Milliseconds; null for what has not happened (yet)."""

    build_ms: float | None
    swap_ms: float | None
    drain_ms: float | None


class ReloadFacts(Model):
    """One reload; `generation` is the instance that acts after it."""

    generation: int
    at: datetime
    trigger: str
    changed: list[str]
    moved: list[str]
    rebuilt: list[str]
    outcome: Outcome
    error: dict[str, Any] | None = optional()
    timings: Timings


class ReloadList(Model):
    reloads: list[ReloadFacts]
    next_cursor: str | None


class ReloadAnswer(Model):
    """What a reload came to: its record, or only that nothing had to change, or that it waits."""

    outcome: Outcome | Literal["nothing", "waiting"] = Field(
        description="waiting: it is applied once there is room for one more instance"
    )
    generation: int | None = optional()
    at: datetime | None = optional()
    trigger: str | None = optional()
    changed: list[str] | None = optional()
    moved: list[str] | None = optional()
    rebuilt: list[str] | None = optional()
    error: dict[str, Any] | None = optional()
    timings: Timings | None = optional()


class ConfigWritten(Model):
    """agent.json after a write, and what the running agent made of it."""

    version: str = Field(description="The same as the ETag")
    reload: ReloadAnswer
    config: dict[str, Any] = Field(description="As written, secrets masked")
