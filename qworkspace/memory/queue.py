"""The durable, serial queue of extractions: one worker, in order, never in the way of a reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database
from qworkspace.base.problems import Problems
from qworkspace.memory.contract import SummarizeReason
from qworkspace.memory.extract import Extractor
from qworkspace.memory.queue_rows import Task
from qworkspace.sessions.models import Source
from qworkspace.sessions.store import SessionStore


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How the queue is. `waits_for` is empty while nothing holds it up, else a reason in words."""

    waiting: int = 0
    running: bool = False
    aside: int = 0
    waits_for: str = ""


class SummarizeQueue:
    """Extractions of one agent, in `memory.db` (component `queue`)."""

    def __init__(
        self,
        database: Database,
        extractor: Extractor,
        sessions: SessionStore,
        *,
        interval: Callable[[], int],
        clock: Clock,
        problems: Problems,
        agent_id: str,
    ) -> None:
        raise NotImplementedError

    def activate(self) -> None:
        """Catch up on what was said and never queued, then work."""

    def deactivate(self) -> None:
        """Stop at once; what is queued stays queued."""

    async def close(self) -> None:
        """End the worker. Idempotent."""

    def wake(self) -> None:
        """Something that was waited for may be there, for example a model: try at once."""

    async def add(self, session_id: str, *, reason: SummarizeReason, upto_turn: str = "") -> str:
        """Queue what is new in the session, up to that turn (inclusive); the task's id. Durable when it returns."""
        raise NotImplementedError

    async def turn_ended(self, session_id: str, turn_id: str, source: Source) -> None:
        """A turn has its answer: queue at every `interval`-th user turn, else when the session has been idle."""

    async def summarize(self, session_id: str) -> int:
        """Extract what is new in the session now; the facts kept. Raises what the first failure was."""
        raise NotImplementedError

    async def retry(self, task_id: str) -> None:
        """Take a task that was set aside up again; `NotFound` for any other."""

    async def tasks(self, *, limit: int = 50) -> list[Task]:
        """The tasks, those that are not done first."""
        raise NotImplementedError

    async def idle(self) -> None:
        """Return when no task can be worked on now."""

    @property
    def busy(self) -> bool:
        """Whether a task is being worked on."""
        return False

    def status(self) -> QueueStatus:
        return QueueStatus()
