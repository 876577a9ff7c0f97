"""Where the agents of a home live; no two of them in one place."""

from __future__ import annotations

import os
import re
from pathlib import Path

from qworkspace.config.home import ProfileRef
from qworkspace.config.positions import Path as KeyPath

DEFAULT_PARENT = "workspaces"
Identity = tuple[int, int]
_MANY = 16
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\Z")


class Misplaced(ValueError):
    """A profile whose directory cannot be its own; `path` leads to it in config.json."""

    def __init__(self, agent_id: str, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: KeyPath = ("agents", "profiles", agent_id, "workspace_dir")


def directories(home: Path, profiles: dict[str, ProfileRef]) -> dict[str, str]:
    """The absolute directory of each agent. `Misplaced` when two share one, one holds another, or one holds the home.

    Compared as texts first, then by what the file system says is the same directory, so links do not hide it.
    """
    root = os.path.normpath(home)
    found = {name: _place(root, name, profile.workspace_dir) for name, profile in profiles.items()}
    _refuse_home(root, found)
    _refuse_nested(found)
    _refuse_same(found)
    return found


def _place(root: str, name: str, text: str) -> str:
    if not text:
        return f"{root}{os.sep}{DEFAULT_PARENT}{os.sep}{name}"
    if _PLAIN.match(text) and os.sep == "/":
        return f"{root}/{text}"
    return os.path.normpath(os.path.join(root, os.path.expanduser(text)))  # noqa: PTH111, PTH118


def _refuse_home(root: str, found: dict[str, str]) -> None:
    inner = root.rstrip(os.sep) + os.sep
    daemon = inner + ".daemon"
    for name, place in found.items():
        if place.startswith(inner):
            if place.startswith(daemon) and (place + os.sep).startswith(daemon + os.sep):
                raise Misplaced(name, f"{daemon} belongs to the daemon; give the agent a directory of its own")
        elif inner.startswith(place.rstrip(os.sep) + os.sep):
            raise Misplaced(name, f"{place} holds the home itself; give the agent a directory of its own")


def _refuse_nested(found: dict[str, str]) -> None:
    outer_name, outer = "", ""
    for place, name in sorted((place + os.sep, name) for name, place in found.items()):
        if outer and place.startswith(outer):
            how = "the same directory as" if place == outer else "a directory inside that of"
            raise Misplaced(name, f"{name!r} has {how} {outer_name!r}: {place.rstrip(os.sep)}")
        outer_name, outer = name, place


def _refuse_same(found: dict[str, str]) -> None:
    seen: dict[Identity, str] = {}
    siblings: dict[str, list[str]] = {}
    for name, place in found.items():
        siblings.setdefault(place.rpartition(os.sep)[0], []).append(name)
    for parent, names in siblings.items():
        entries = _entries(parent) if len(names) >= _MANY else {}
        for name in names:
            identity = entries.get(found[name][len(parent) + 1 :]) or _identity(found[name])
            other = seen.setdefault(identity, name) if identity is not None else name
            if other != name:
                raise Misplaced(name, f"{name!r} and {other!r} share one directory: {found[name]} is {found[other]}")


def _entries(parent: str) -> dict[str, Identity]:
    """The directories in `parent` that are no links, read in one go: a thousand single looks take ten times as long."""
    try:
        device = os.stat(parent).st_dev  # noqa: PTH116
        with os.scandir(parent) as entries:
            return {entry.name: (device, entry.inode()) for entry in entries if not entry.is_symlink()}
    except OSError:
        return {}


def _identity(place: str) -> Identity | None:
    try:
        status = os.stat(place)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino
