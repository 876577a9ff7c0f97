"""Named things with owners; registering returns its undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from qworkspace.errors import Duplicate, NotFound

T = TypeVar("T")
Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One registered thing, who registered it, and its rank (lower runs first)."""

    name: str
    value: T
    owner: str
    priority: int


class Registry(Generic[T]):
    """Things of one kind by name. `add` refuses a taken name and returns the undo of what it did."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def add(self, name: str, value: T, *, owner: str, priority: int = 100) -> Undo:
        """Register `value`; the returned function takes exactly this entry away again, once."""
        taken = self._entries.get(name)
        if taken is not None:
            raise Duplicate(f"{self.kind} {name!r} of {owner!r} is already registered by {taken.owner!r}")
        entry = Entry(name, value, owner, priority)
        self._entries[name] = entry

        def undo() -> None:
            if self._entries.get(name) is entry:
                del self._entries[name]

        return undo

    def get(self, name: str) -> T:
        """The value of that name, or `NotFound`."""
        return self.entry(name).value

    def entry(self, name: str) -> Entry[T]:
        """The whole entry of that name, or `NotFound`."""
        try:
            return self._entries[name]
        except KeyError:
            raise NotFound(self.kind, name, f"known: {', '.join(sorted(self._entries)) or 'none'}") from None

    def find(self, name: str) -> T | None:
        """The value of that name, or None."""
        entry = self._entries.get(name)
        return entry.value if entry is not None else None

    def entries(self) -> list[Entry[T]]:
        """All entries by priority, then in the order in which they came."""
        return sorted(self._entries.values(), key=lambda entry: entry.priority)

    def values(self) -> list[T]:
        """All values by priority, then in the order in which they came."""
        return [entry.value for entry in self.entries()]

    def remove_owner(self, owner: str) -> int:
        """Take away everything that `owner` registered; the number of entries removed."""
        mine = [name for name, entry in self._entries.items() if entry.owner == owner]
        for name in mine:
            del self._entries[name]
        return len(mine)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self.entries()])

    def __len__(self) -> int:
        return len(self._entries)
