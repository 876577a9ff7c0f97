"""What installing the package brings along, without extras."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.benchmarks.harness import ROOT, Figure

OURS = ("qworkspace", "workspaces")


def run() -> list[Figure]:
    """Distributions and megabytes of `pip install qworkspace`, from what is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = _closure(project["dependencies"])
    size = sum(_size(metadata.distribution(name)) for name in names) + _own_size()
    return [
        Figure("install: distributions, chromadb is an extra", len(names) + 1, ""),
        Figure("install: size", size / 1e6, "MB"),
    ]


def _closure(requirements: list[str]) -> set[str]:
    """What the requirements need in the end, by normalised name."""
    seen: set[tuple[str, str]] = set()
    waiting = [(line, "") for line in requirements]
    while waiting:
        line, extra = waiting.pop()
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *needed.extras):
            key = (canonicalize_name(needed.name), wanted)
            if key not in seen:
                seen.add(key)
                waiting += [(more, wanted) for more in metadata.requires(needed.name) or []]
    return {name for name, _ in seen}


def _size(distribution: metadata.Distribution) -> int:
    """Bytes of its files; compiled caches are left out."""
    return sum(_bytes(Path(str(file.locate()))) for file in distribution.files or [])


def _own_size() -> int:
    return sum(_bytes(path) for folder in OURS for path in (ROOT / folder).rglob("*"))


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() and path.suffix != ".pyc" else 0
