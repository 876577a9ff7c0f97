"""When a task, or the whole queue, is tried again. Moments are those of the monotonic clock."""

from __future__ import annotations

from collections import Counter

from qworkspace.base.clock import Clock
from qworkspace.memory.queue_rows import Task

IDLE_SECONDS = 600.0
FIRST_PAUSE = 15.0
LONGEST_PAUSE = 600.0
LONGEST_WISH = 3_600.0
FIRST_HOLD = 5.0
LONGEST_HOLD = 60.0
PROBE_AFTER = 3


class Pauses:
    """The queue pauses for a model or a disk; a task that fails by itself is held back, the others go on.

    Some providers answer 500 to one particular text. When a task has met `PROBE_AFTER` outages, the next one is tried
    without a pause; if that succeeds, there was no outage, and the first task is to blame for its failures.
    """

    def __init__(self, clock: Clock) -> None:
        self.reason = ""
        self._clock = clock
        self._until = 0.0
        self._length = 0.0
        self._held: dict[str, tuple[float, float]] = {}
        self._outages: Counter[str] = Counter()
        self._to_blame: set[str] = set()

    @property
    def paused(self) -> bool:
        return self._until > self._clock.monotonic()

    def pause(self, reason: str, wish: float | None = None) -> None:
        """Nothing is tried for a while: 15 s, twice as long each time, 10 minutes at most; longer by `wish`."""
        self.reason = reason
        self._length = min(LONGEST_PAUSE, self._length * 2 or FIRST_PAUSE)
        self._until = self._clock.monotonic() + max(self._length, min(wish or 0.0, LONGEST_WISH))

    def end(self) -> None:
        """Everything is tried at once."""
        self._until = 0.0
        self._held.clear()

    def hold_back(self, task_id: str) -> None:
        """The task has failed by itself: 5 s, then four times as long each time."""
        self._hold(task_id, FIRST_HOLD, 4.0)

    def hold_open(self, task: Task) -> None:
        """The turn up to which it goes has not ended: 1 s, twice as long each time."""
        self._hold(task.id, 1.0, 2.0)

    def met_outage(self, task_id: str, *, others: bool) -> bool:
        """The task has met what looks like an outage; whether another one is to be tried at once."""
        self._outages[task_id] += 1
        if not others or self._outages[task_id] % PROBE_AFTER:
            return False
        self.hold_back(task_id)
        return True

    def to_blame(self, task_id: str) -> bool:
        """Whether others have succeeded where this one met an outage."""
        return task_id in self._to_blame

    def succeeded(self, task_id: str) -> None:
        """Whatever was waited for is there."""
        self.forget(task_id)
        self.reason = ""
        self._length = 0.0
        self._to_blame |= {other for other, count in self._outages.items() if count >= PROBE_AFTER}
        self._outages.clear()

    def forget(self, task_id: str) -> None:
        """The task has come to an end."""
        self._held.pop(task_id, None)
        self._outages.pop(task_id, None)
        self._to_blame.discard(task_id)

    def held(self) -> frozenset[str]:
        """The tasks that are not to be tried yet."""
        now = self._clock.monotonic()
        return frozenset(task_id for task_id, (until, _) in self._held.items() if until > now)

    def next(self) -> float | None:
        """When something is to be tried again."""
        if self.paused:
            return self._until
        now = self._clock.monotonic()
        return min((until for until, _ in self._held.values() if until > now), default=None)

    def _hold(self, task_id: str, first: float, factor: float) -> None:
        _, length = self._held.get(task_id, (0.0, 0.0))
        length = min(LONGEST_HOLD, length * factor or first)
        self._held[task_id] = (self._clock.monotonic() + length, length)
