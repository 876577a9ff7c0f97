"""Turns that have their answer, until they are stored: only then can what was said in them be read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from qworkspace.base.events import Event, EventBus
from qworkspace.base.tasks import Tasks
from qworkspace.memory.contract import MemoryTurn

ENDED = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})


class Replies:
    """Tells `stored(turn)` of each turn that was added, once the journal has its end."""

    def __init__(self, bus: EventBus, stored: Callable[[MemoryTurn], Awaitable[None]], *, owner: str) -> None:
        self._bus = bus
        self._stored = stored
        self._tasks = Tasks(f"replies of {owner}")
        self._turns: dict[str, MemoryTurn] = {}
        self._unlisten: Callable[[], None] | None = None

    def add(self, turn: MemoryTurn) -> None:
        """Wait for the end of this turn."""
        self._turns[turn.scope.turn_id] = turn
        if self._unlisten is None:
            self._unlisten = self._bus.log.listen(self._heard)

    async def close(self) -> None:
        """Wait for none any more: what is stored is noticed at the next start. Idempotent."""
        self._turns.clear()
        self._hear_no_more()
        await self._tasks.close()

    def _heard(self, event: Event) -> None:
        turn = self._turns.pop(str(event.data.get("turn_id")), None) if event.type in ENDED else None
        if turn is not None:
            self._tasks.start(self._tell(turn), name=turn.scope.turn_id)
        if not self._turns:
            self._hear_no_more()

    async def _tell(self, turn: MemoryTurn) -> None:
        await self._stored(turn)

    def _hear_no_more(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
