"""The workspace templates that come with the package: copied, never run in place."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from qworkspace.base.files import make_directory, write_atomic
from qworkspace.errors import NotFound

_AGENT_FILE = "agent.json"


def template_names() -> list[str]:
    """The templates there are."""
    return sorted(entry.name for entry in _root().iterdir() if entry.is_dir() and (entry / _AGENT_FILE).is_file())


def template(name: str) -> dict[str, str]:
    """The files of a template, by relative path."""
    if name not in template_names():
        raise NotFound("template", name, f"there are: {', '.join(template_names()) or 'none'}")
    return dict(sorted(_texts(_root() / name, "")))


def copy_missing(texts: dict[str, str], directory: Path) -> list[str]:
    """Write those files that are not there yet; the names of what was written."""
    written = []
    for name, text in texts.items():
        target = directory / name
        if target.exists() or target.is_symlink():
            continue
        make_directory(target.parent)
        write_atomic(target, text)
        written.append(name)
    return written


def _root() -> Traversable:
    """In a wheel `qworkspace/_templates`; in a source checkout `workspaces/` beside the package."""
    package = files("qworkspace")
    packed = package / "_templates"
    if packed.is_dir():
        return packed
    return Path(str(package)).parent / "workspaces"


def _texts(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in folder.iterdir():
        if entry.name.startswith((".", "__")):
            continue
        if entry.is_dir():
            found += _texts(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, entry.read_text(encoding="utf-8")))
    return found
