"""Dream: the daily notes since the last one become `MEMORY.md`, topic notes and `interests.yaml`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Tell = Callable[[str, str, str], Awaitable[None]]
"""`tell(title, body, group)`: put it into the inbox, once per group; undoing `group` takes the dream back."""


@dataclass(frozen=True, slots=True)
class DreamOutcome:
    """What a dream has done. `group` is what to undo, `days` are the notes it consolidated, `diff` is for people.

    Without a change `reason` says why.
    """

    changed: bool
    reason: str = ""
    group: str = ""
    days: tuple[str, ...] = ()
    diff: str = ""


class Dreamer:
    """Consolidates the notes of one vault; one dream at a time.

    Dreamer(vault, database, ask, tell, *, workspace: Path, settings: MemoryConfig, clock: Clock, threads: Threads,
            problems: Problems, agent_id: str, language: Callable[[], str])
    """

    async def dream(self) -> DreamOutcome:
        """Consolidate every undreamt day, today's included; finish first what a crash has left half-done."""
        raise NotImplementedError

    async def recover(self) -> None:
        """Finish a dream whose answer was stored before the daemon ended; asks no model. Call it at `activate`."""
        raise NotImplementedError

    async def catch_up_due(self) -> bool:
        """Whether a day before today is undreamt."""
        raise NotImplementedError
