"""From what was said to facts in the notes: asks the model, drops what is known, writes once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import tzinfo

from qworkspace.base.clock import Clock
from qworkspace.memory.asking import Ask
from qworkspace.memory.contract import Found, Query
from qworkspace.sessions.store import SessionStore

Search = Callable[[Query], Awaitable[Found]]


class Extractor:
    """Extracts the facts of a session's new turns, and writes them into the vault."""

    def __init__(
        self,
        ask: Ask,
        vault: object,
        search: Search,
        sessions: SessionStore,
        *,
        clock: Clock,
        zone: Callable[[], tzinfo],
        language: Callable[[], str],
    ) -> None:
        raise NotImplementedError
