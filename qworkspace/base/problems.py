"""What is wrong at the moment, where, and what a person can do about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.text import clean_text

logger = logging.getLogger(__name__)
Severity = Literal["warning", "error"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `key` names it: the same key is the same problem."""

    key: str
    message: str
    severity: Severity
    agent_id: str | None
    since: datetime


class Problems:
    """The problems of a daemon: logged once when they come, shown until they are cleared."""

    def __init__(self, clock: Clock, bus: EventBus) -> None:
        self._clock = clock
        self._bus = bus
        self._open: dict[str, Problem] = {}

    def report(
        self, key: str, message: str, *, severity: Severity = "error", agent_id: str | None = None
    ) -> Callable[[], None]:
        """Open the problem, or change its message; the returned function clears it."""
        key, message = clean_text(key), clean_text(message)  # they may name files whose names are no text
        known = self._open.get(key)
        if known is None or known.message != message:
            since = known.since if known is not None else self._clock.now()
            self._open[key] = Problem(key, message, severity, agent_id, since)
            logger.log(logging.ERROR if severity == "error" else logging.WARNING, "%s", message)
            self._bus.publish("problem.opened", agent_id=agent_id, key=key, message=message, severity=severity)
        return lambda: self.clear(key)

    def clear(self, key: str) -> None:
        """The problem is over. Unknown keys are no error."""
        problem = self._open.pop(clean_text(key), None)
        if problem is not None:
            logger.info("mended: %s", problem.message)
            self._bus.publish("problem.cleared", agent_id=problem.agent_id, key=key)

    def of(self, agent_id: str | None = None) -> list[Problem]:
        """The open problems, of one agent if named, oldest first."""
        return [p for p in self._open.values() if agent_id is None or p.agent_id == agent_id]
