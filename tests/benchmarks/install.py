"""What installing the package brings along, without extras."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

from tests.benchmarks.harness import Figure


def run() -> list[Figure]:
    """Distributions and megabytes of `pip install qworkspace`, from what is installed here."""
    names = _closure("qworkspace")
    size = sum(_size(metadata.distribution(name)) for name in names)
    return [
        Figure("install: distributions", len(names), ""),
        Figure("install: size", size / 1e6, "MB"),
    ]


def _closure(root: str) -> set[str]:
    """The distribution and all it requires, by normalised name."""
    found: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(root, frozenset())]
    while waiting:
        name, extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found and not extras:
            continue
        found.add(key)
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({**_environment(), "extra": extra}) for extra in (extras or {""})
            ):
                waiting.append((needed.name, frozenset(needed.extras)))
    return found


def _environment() -> dict[str, str]:
    return {name: str(value) for name, value in default_environment().items()}


def _size(distribution: metadata.Distribution) -> int:
    """Bytes of its files; compiled caches are left out."""
    files = [Path(str(file.locate())) for file in distribution.files or [] if not str(file).endswith(".pyc")]
    return sum(path.stat().st_size for path in files if path.is_file())
