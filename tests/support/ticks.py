"""Reads what `tests.support.ticking` wrote: was every slot ticked once, by the one instance that acted?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ticks:
    """`missing` and `doubled` slots; `most` instances that acted at once; `gaps` in which none did."""

    slots: int
    missing: int
    doubled: int
    most: int
    gaps: int
    instances: int

    @property
    def flawless(self) -> bool:
        return (self.missing, self.doubled, self.most, self.gaps) == (0, 0, 1, 0)


def read_ticks(path: Path) -> Ticks:
    """What the lines say. An end that is followed at once by a begin is a swap, not a gap."""
    slots: Counter[int] = Counter()
    acting: set[str] = set()
    most = gaps = 0
    instances: set[str] = set()
    lines = [line.split() for line in path.read_text().splitlines()]
    for index, (what, *rest) in enumerate(lines):
        if what == "begin":
            acting.add(rest[0])
            instances.add(rest[0])
        elif what == "end":
            acting.discard(rest[0])
            last = index + 1 == len(lines)
            gaps += not acting and not last and lines[index + 1][0] != "begin"
        else:
            slots[int(rest[0])] += 1
            gaps += rest[1] not in acting
        most = max(most, len(acting))
    numbers = sorted(slots)
    expected = numbers[-1] - numbers[0] + 1 if numbers else 0
    return Ticks(
        slots=len(numbers),
        missing=expected - len(numbers),
        doubled=sum(count > 1 for count in slots.values()),
        most=most,
        gaps=gaps,
        instances=len(instances),
    )
