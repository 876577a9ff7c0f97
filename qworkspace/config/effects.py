"""What an edit of a field leads to: the services that are rebuilt for it, or from when on it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qworkspace.config.plan import RESTART_FIELDS, Declared, movable
from qworkspace.config.schema import Kind

NEXT_TURN = "next turn"
NEXT_USE = "next use"
AT_ONCE = "at once"
RESTART = "restart"

HOME_EFFECTS = {
    **dict.fromkeys(RESTART_FIELDS, RESTART),
    "retention.log_bytes": RESTART,
    "retention.log_files": RESTART,
    **dict.fromkeys(("server", "agents", "watch"), AT_ONCE),
    **dict.fromkeys(("user_timezone", "providers", "default_model", "roles", "runner", "sandbox"), NEXT_TURN),
}
"""Sections and fields of config.json; the longest name counts, and for all others the next use."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A service as the workspaces of this daemon declare it: the sections of agent.json that it reads."""

    name: str
    sections: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()


BUILT_IN = (
    BuiltIn("local_workspace"),
    BuiltIn("sessions", depends_on=("local_workspace",)),
    BuiltIn(
        "memory",
        ("running.memory", "running.memory_manager_backend", "language"),
        depends_on=("local_workspace", "sessions"),
    ),
    BuiltIn("chats", depends_on=("sessions",)),
)
"""All services without plugins, so that a change can be described where no agent runs. A test compares them."""


def rebuilt(field: str, services: Sequence[Declared] = BUILT_IN) -> list[str]:
    """The services that an edit of that field of agent.json rebuilds: those that read it, and those that need them."""
    moving = movable(_nested(field, 0), _nested(field, 1), services)
    return [service.name for service in services if service.name not in moving]


def effect(kind: Kind, field: str, services: Sequence[Declared] = BUILT_IN) -> str:
    """What an edit of that field does, in words."""
    if kind == "agent":
        if field == "id":
            return "refused"
        names = rebuilt(field, services)
        return f"rebuilds {', '.join(f'`{name}`' for name in names)}" if names else NEXT_TURN
    above = [field]
    while "." in above[-1]:
        above.append(above[-1].rpartition(".")[0])
    return next((HOME_EFFECTS[name] for name in above if name in HOME_EFFECTS), NEXT_USE)


def _nested(field: str, value: Any) -> dict[str, Any]:
    """`a.b` as `{"a": {"b": value}}`"""
    for name in reversed(field.split(".")):
        value = {name: value}
    nested: dict[str, Any] = value
    return nested
