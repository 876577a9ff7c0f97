"""The one context variable: who is acting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Scope:
    """On whose behalf the running code acts. Ids are validated before they come here."""

    agent_id: str
    workspace_dir: Path
    session_id: str = ""
    turn_id: str = ""
    user_id: str = ""
    team_id: str = ""
    source: str = "chat"
    toolkit: Any = None


_current: ContextVar[Scope | None] = ContextVar("qworkspace_scope", default=None)


def current_scope() -> Scope | None:
    """The scope of the running task, or None outside of a turn."""
    return _current.get()


@contextmanager
def acting_as(scope: Scope) -> Iterator[Scope]:
    """Run the block as `scope`; the previous scope comes back at its end."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)
