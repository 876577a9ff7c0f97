"""What kind of file system a path is on, as far as the system tells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
_SILENT = ("nfs", "cifs", "smb", "9p", "vboxsf", "fuse.", "afs", "ceph", "glusterfs", "lustre", "virtiofs", "drvfs")
"""File systems on which another machine's edits cause no events here; the beginnings of their names."""


def without_events(paths: Iterable[str], mounts: Path = MOUNTS) -> tuple[str, str] | None:
    """The first of `paths` on a file system that gives no events, with that system's name; None when all do.

    Blocking. Where the system does not list its mounts, all do.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    kinds = {_unescaped(place): kind for place, kind in (line.split(" ")[1:3] for line in lines if line.count(" ") > 2)}
    if not any(kind.startswith(_SILENT) for kind in kinds.values()):
        return None
    for path in paths:
        kind = _kind_at(os.path.realpath(path), kinds)
        if kind.startswith(_SILENT):
            return path, kind
    return None


def _kind_at(path: str, kinds: Mapping[str, str]) -> str:
    """The kind of the nearest mount above `path`."""
    above = [path, *map(str, Path(path).parents)]
    return next((kinds[place] for place in above if place in kinds), "")


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
