"""The models that are there from the first request on: how the daemon is, and how it says what went wrong."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Built at first use, so that many of them cost nothing at the start."""

    model_config = ConfigDict(defer_build=True, frozen=True)


def _is_none(value: object) -> bool:
    return value is None


def optional(description: str = "") -> Any:
    """A field of an answer that is only there when it has a value."""
    return Field(default=None, exclude_if=_is_none, description=description or None)


class ErrorFacts(Model):
    """What went wrong, for programs and for people."""

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorAnswer(Model):
    error: ErrorFacts


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
