"""The three gates for names of notes: sanitise, normalise and force `.md`, and be inside with links followed."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from qworkspace.base.files import components, real_path
from qworkspace.base.text import clean_text
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import InvalidPath
from qworkspace.memory.notes import Listing, Section, Source

CLOSED = {"skills", "plugins", "drivers", "secrets.json", "config.json", "agent.json", "jobs.json"}
WORKING = ("MEMORY.md", "PROFILE.md", "AGENTS.md", "SOUL.md", "HEARTBEAT.md")
INTERESTS = "interests.yaml"
"""The one file of the vault that is no note: only `dream` writes it, and its undo."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d\.md\Z")


class Names:
    """Which names are notes of a workspace, and where they really are. Blocking, short."""

    def __init__(self, workspace: Path, settings: MemoryConfig) -> None:
        self.workspace = real_path(workspace)
        self._daily = _parts(settings.daily_dir)
        self._digest = _parts(settings.digest_dir)
        self._allowed = [real_path(Path(path).expanduser()) for path in settings.allowed_roots]

    def daily(self, day: str) -> str:
        """The daily note of that day."""
        return "/".join((*self._daily, f"{day}.md"))

    def name(self, given: str) -> str:
        """The note that is meant, `.md` forced; `InvalidPath` when it is none or leaves the vault."""
        name = self._normalised(_with_suffix(_sanitised(given)))
        self.section(name)
        self.resolve(name)
        return name

    def section(self, name: str) -> Section:
        """Where a normalised name belongs; `InvalidPath` when nowhere."""
        parts = _parts(name)
        hidden = next((part for part in parts if part.startswith(".")), None)
        if hidden is not None or folded(parts[0]) in CLOSED:
            raise InvalidPath(f"{name!r} is closed to memory", path=name)
        if self._holds(self._daily, parts):
            return "daily"
        if self._holds(self._digest, parts):
            return "digest"
        if len(parts) == 1:
            return "working"
        places = f"'{'/'.join(self._daily)}/' and '{'/'.join(self._digest)}/'"
        raise InvalidPath(f"{name!r} is no place for a note; notes are 'NAME.md' and below {places}", path=name)

    def resolve(self, name: str) -> Path:
        """The real file of a normalised name, its links followed; `InvalidPath` when it is outside or closed."""
        lexical = self.workspace.joinpath(*_parts(name))
        real = real_path(lexical)
        if real.is_symlink():
            raise InvalidPath(f"{name!r} is a symbolic link that leads in a circle", path=name)
        self._expect_open(name, real)
        if real.parent.is_file():
            raise InvalidPath(f"{name!r} is below a file", path=name)
        if not real.name.lower().endswith(".md") and name != INTERESTS:
            raise InvalidPath(f"{name!r} leads to {real.name!r}, which is no note", path=name)
        return real

    def look(self) -> Listing:
        """All notes there are, and what is in their places but refused, with the reason."""
        found: dict[str, Path] = {}
        refused: dict[str, str] = {}
        for parts in dict.fromkeys([(), self._daily, self._digest]):
            self._scan(parts, found, refused, deep=bool(parts))
        return Listing(tuple(Source(name, found[name]) for name in sorted(found)), refused)

    def _normalised(self, text: str) -> str:
        name = "/".join(components(text))
        if not name:
            raise InvalidPath("the name of the note is empty")
        if os.path.lexists(self.workspace / name):
            return name
        name = "/".join(components(unicodedata.normalize("NFC", name)))
        if _DAY.match(name):
            return self.daily(name[:-3])
        return self._in_its_case(name) if "/" not in name else name

    def _in_its_case(self, name: str) -> str:
        """A working file is known in any case: `memory.md` is `MEMORY.md`."""
        there: list[str] = []
        with suppress(OSError):
            there = sorted(path.name for path in self.workspace.iterdir() if path.name.lower() == name.lower())
        return (there or [known for known in WORKING if known.lower() == name.lower()] or [name])[0]

    def _holds(self, place: tuple[str, ...], parts: tuple[str, ...]) -> bool:
        return parts[: len(place)] == place and 1 <= len(parts) - len(place) <= (2 if place else 1)

    def _expect_open(self, name: str, real: Path) -> None:
        for root in (self.workspace, *self._allowed):
            if real.is_relative_to(root):
                parts = real.relative_to(root).parts
                hidden = any(part.startswith(".") for part in parts)
                if hidden or (parts and root == self.workspace and folded(parts[0]) in CLOSED):
                    raise InvalidPath(f"{name!r} leads to a place that is closed to memory", path=name)
                return
        raise InvalidPath(
            f"{name!r} leads out of the workspace through a symbolic link; `running.memory.allowed_roots` may allow it",
            path=name,
        )

    def _scan(self, parts: tuple[str, ...], found: dict[str, Path], refused: dict[str, str], *, deep: bool) -> None:
        prefix = "/".join(parts)
        try:
            real = real_path(self.workspace.joinpath(*parts))
            self._expect_open(prefix or ".", real)
            entries = sorted(os.scandir(real), key=lambda entry: entry.name)
        except InvalidPath as error:
            refused[prefix] = error.message
            return
        except FileNotFoundError:
            return
        except OSError as error:
            refused[prefix or "."] = f"{prefix or '.'!r} cannot be read: {error.strerror}"
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.name.lower().endswith(".md") and not _is_directory(entry):
                self._take(name, entry, found, refused)
            elif deep and _is_directory(entry):
                self._scan((*parts, entry.name), found, refused, deep=False)

    def _take(self, name: str, entry: os.DirEntry[str], found: dict[str, Path], refused: dict[str, str]) -> None:
        try:
            if _sanitised(name) != name:
                raise InvalidPath(f"{name!r} cannot be used as a name: write it without backslashes and quotes")
            components(name)
            path = self.resolve(name) if entry.is_symlink() else Path(entry.path)
            if path.is_file() if entry.is_symlink() else entry.is_file():
                found[name] = path
            elif os.path.lexists(path):
                raise InvalidPath(f"{name!r} is no regular file")
        except InvalidPath as error:
            refused[name] = error.message


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def folded(name: str) -> str:
    """`name` as the most forgiving file system compares it: no case, one form of each character, nothing invisible."""
    if name.isascii():
        return name.lower().rstrip(". ")
    visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold()).rstrip(". ")


def _sanitised(given: str) -> str:
    """What models put around a name, or write for it, is taken off: quotes, brackets, backslashes, `./`."""
    text = clean_text(given).strip()
    for pair in ("``", '""', "''", "[[]]"):
        half = len(pair) // 2
        if len(text) > len(pair) and text.startswith(pair[:half]) and text.endswith(pair[half:]):
            text = text[half:-half].strip()
    return text.replace("\\", "/")


def _with_suffix(text: str) -> str:
    return text if text.lower().endswith(".md") or not text.strip("/. ") else f"{text}.md"


def _parts(name: str) -> tuple[str, ...]:
    return tuple(_pieces(name.split("/")))


def _pieces(pieces: Iterable[str]) -> Iterator[str]:
    yield from (piece for piece in pieces if piece not in ("", "."))
