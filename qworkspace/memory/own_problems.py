"""The problems that one instance of a memory tells: its successor uses the same keys."""

from __future__ import annotations

import logging
from collections.abc import Callable

from qworkspace.base.problems import Problem, Problems, Severity

logger = logging.getLogger(__name__)


class OwnProblems(Problems):
    """`problems` as one instance may use them: it clears what it has told itself, and nothing of anybody else's."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._keys: set[str] = set()
        self._quiet = False

    def report(
        self, key: str, message: str, *, severity: Severity = "error", agent_id: str | None = None
    ) -> Callable[[], None]:
        if self._quiet:
            logger.warning("%s", message)
            return lambda: None
        self._keys.add(key)
        self._problems.report(key, message, severity=severity, agent_id=agent_id)
        return lambda: self.clear(key)

    def clear(self, key: str) -> None:
        if key in self._keys:
            self._keys.discard(key)
            self._problems.clear(key)

    def of(self, agent_id: str | None = None) -> list[Problem]:
        return self._problems.of(agent_id)

    def hush(self) -> None:
        """What was told is over, and nothing more is: whoever acts from now on finds out for itself. Idempotent."""
        self._quiet = True
        for key in list(self._keys):
            self.clear(key)

    def speak(self) -> None:
        """Tell again."""
        self._quiet = False
