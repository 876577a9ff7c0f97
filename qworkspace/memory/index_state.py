"""How an index is: what status shows, what problems it reports, what it tells while it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.memory.index_notes import BLANK

VectorState = Literal["none", "ready", "building", "reindex needed", "waiting"]
Phase = Literal["notes", "vectors", "ready"]

EVENT_SECONDS = 0.5
NAMED = 5  # notes in a message


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """`pending` counts notes that may not be found yet; 0 when everything that is written is found by its words.

    `embedded` of `chunks` are found by their meaning too. `refused`: note -> why it is not, or not wholly, searched,
    blank notes included. `problems` are for a person to act on.
    """

    files: int = 0
    chunks: int = 0
    pending: int = 0
    embedded: int = 0
    embedder: str = "none"
    vectors: VectorState = "none"
    partial: str = ""
    problems: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class Signs:
    """The index's problems and progress events, under keys of its own."""

    def __init__(self, path: Path, *, clock: Clock, problems: Problems, bus: EventBus, agent_id: str) -> None:
        self._path = path
        self._clock = clock
        self._problems = problems
        self._bus = bus
        self._agent_id = agent_id
        self._open: dict[str, str] = {}
        self._told = float("-inf")

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._open.values())

    def report(self, what: str, message: str, *, error: bool = False) -> None:
        """One of: `file`, `damaged`, `notes`, `vectors`, `store`, `work`."""
        self._open[what] = message
        severity: Literal["error", "warning"] = "error" if error else "warning"
        self._problems.report(self._key(what), message, severity=severity, agent_id=self._agent_id)

    def clear(self, what: str) -> None:
        if self._open.pop(what, None) is not None:
            self._problems.clear(self._key(what))

    def clear_all(self) -> None:
        for what in list(self._open):
            self.clear(what)

    def refused(self, refused: Mapping[str, str]) -> None:
        """Say which notes are not, or not wholly, searched. Blank ones are no problem."""
        wrong = {name: reason for name, reason in refused.items() if reason != BLANK}
        if not wrong:
            self.clear("notes")
            return
        named = "; ".join(f"{name!r}: {reason}" for name, reason in list(wrong.items())[:NAMED])
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        self.report("notes", f"notes that memory cannot search, or not wholly: {named}{more}")

    def progress(self, phase: Phase, done: int, total: int) -> None:
        """Tell the bus, a few times per second at most; the end always."""
        now = self._clock.monotonic()
        if phase == "ready" or now - self._told >= EVENT_SECONDS:
            self._told = now
            self._bus.publish("memory.index", agent_id=self._agent_id, phase=phase, done=done, total=total)

    def _key(self, what: str) -> str:
        return f"memory-index-{what}/{self._path}"
