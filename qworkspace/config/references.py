"""`${NAME}` in configuration: replaced on reading, and kept on writing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qworkspace.config.hiding import MASK, Secret

Path = tuple[str | int, ...]
Lookup = Callable[[str], str | None]

_REFERENCE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(slots=True)
class Missing:
    """A `${NAME}` that nothing resolves, and where it stands."""

    path: Path
    name: str


@dataclass(slots=True)
class Substitution:
    """A JSON value with its references replaced; `missing` lists those that stayed as they were."""

    value: Any
    missing: list[Missing] = field(default_factory=list)


def substitute(value: Any, lookup: Lookup) -> Substitution:
    """Replace `${NAME}` in all texts; `$${NAME}` stands for a literal `${NAME}`.

    Nothing is missed in a table with `"enabled": false`: what is off needs no keys.
    """
    walk = _Walk(lookup)
    if isinstance(value, dict):
        # One look at C speed tells the sections that have none; a large home has a thousand profiles and no reference.
        plain = [key for key, item in value.items() if "${" not in json.dumps(item)]
        result = walk.visit({key: None if key in plain else item for key, item in value.items()})
        return Substitution(result | {key: value[key] for key in plain}, walk.missing)
    return Substitution(walk.visit(value), walk.missing)


class _Walk:
    """One pass over a value; the path is kept on a stack, as a large file has many values and few references."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._stack: list[str | int] = []
        self.missing: list[Missing] = []

    def visit(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value) if "${" in value else value
        if isinstance(value, dict):
            before = len(self.missing)
            result = {key: self._inner(key, item) for key, item in value.items()}
            if value.get("enabled") is False:
                del self.missing[before:]
            return result
        if isinstance(value, list):
            return [self._inner(index, item) for index, item in enumerate(value)]
        return value

    def _inner(self, key: str | int, item: Any) -> Any:
        if isinstance(item, str) and "${" not in item:
            return item
        self._stack.append(key)
        result = self.visit(item)
        self._stack.pop()
        return result

    def _text(self, text: str) -> str:
        used = False

        def replace(match: re.Match[str]) -> str:
            nonlocal used
            if match[1]:
                return match[0][1:]
            found = self._lookup(match[2])
            if found is None:
                self.missing.append(Missing((*self._stack,), match[2]))
                return match[0]
            used = True
            return found

        result = _REFERENCE.sub(replace, text)
        return Secret(result) if used else result


def keep_hidden(new: Any, current: Any, lookup: Lookup) -> Any:
    """`new` as it may be stored: a mask, or the resolved value of a reference, becomes what `current` has there."""
    if isinstance(new, dict) and isinstance(current, dict):
        return {key: keep_hidden(item, current.get(key), lookup) for key, item in new.items()}
    if isinstance(new, list) and isinstance(current, list):
        padded = current + [None] * (len(new) - len(current))
        return [keep_hidden(item, padded[index], lookup) for index, item in enumerate(new)]
    if not (isinstance(new, str) and isinstance(current, str)) or new == current:
        return new
    resolved = "${" in current and new == substitute(current, lookup).value
    return current if new == MASK or resolved else new


def masked_path(value: Any, path: Path = ()) -> Path | None:
    """Where a mask stands in `value` that nothing could replace, or None."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    elif value == MASK:
        return path
    found = (masked_path(item, (*path, key)) for key, item in items)
    return next((place for place in found if place is not None), None)
