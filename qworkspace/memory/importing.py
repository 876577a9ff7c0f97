"""Notes of other assistants: read from a directory with the common layouts, added to a vault, never twice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qworkspace.base.files import read_text, real_path
from qworkspace.base.tasks import Threads
from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidInput, InvalidPath, NotFound, QworkspaceError
from qworkspace.memory.notefile import expect_size
from qworkspace.memory.notes import Author
from qworkspace.memory.segments import new_lines, segments_of
from qworkspace.memory.vault import AgentMdManager

MOST_FILES = 20_000
_DAY = re.compile(r"(\d{4})[-_.]?(\d\d)[-_.]?(\d\d)\Z")
_KNOWN = {"memory": "MEMORY", "memories": "MEMORY", "user": "PROFILE", "profile": "PROFILE", "about_user": "PROFILE"}
_INSTRUCTIONS = {"agents", "soul", "identity", "tools", "heartbeat", "bootstrap", "claude", "gemini", "system"}
_PROJECT = {"readme", "changelog", "license", "contributing"}
_NOTE_PLACES = {"memory", "memories", "daily", "journal", "diary", "notes"}

Outcome = Literal["added", "merged", "skipped"]


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one file: `target` is the note, `lines` the number of lines added to it."""

    source: str
    target: str
    outcome: Outcome
    lines: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or would do when `dry_run`; `group` undoes it, empty when nothing was added."""

    files: tuple[Imported, ...]
    dry_run: bool
    group: str = ""


async def import_vault(source: Path, vault: AgentMdManager, *, threads: Threads, dry_run: bool = False) -> ImportReport:
    """Merge the notes of `source` (a directory or one file, which stays as it is) into the vault.

    Nothing is overwritten: what a note does not say yet is added at its end. A second import adds nothing, not even
    what a person has removed since; after an undo it adds all again. `NotFound`, `InvalidInput`.
    """
    found = await threads.run(_found, source, vault.workspace)
    group = vault.new_group("import")
    importer = _Importer(vault, Author("import", group=group), dry_run)
    files = [await importer.take(file) for file in found]
    added = any(file.outcome != "skipped" for file in files)
    return ImportReport(tuple(files), dry_run, group if added and not dry_run else "")


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    target: str
    text: str = ""
    reason: str = ""


class _Importer:
    """One import: remembers what the notes hold, so that a dry run tells what a run does."""

    def __init__(self, vault: AgentMdManager, by: Author, dry_run: bool) -> None:
        self._vault = vault
        self._by = by
        self._dry_run = dry_run
        self._texts: dict[str, str] = {}

    async def take(self, file: _File) -> Imported:
        if file.reason:
            return Imported(file.name, file.target, "skipped", reason=file.reason)
        try:
            return await self._take(file)
        except QworkspaceError as error:  # one bad file must not stop the others
            return Imported(file.name, file.target, "skipped", reason=error.message)

    async def _take(self, file: _File) -> Imported:
        target = self._vault.name(file.target)
        present = await self._present(target)
        lines = new_lines(file.text, {segment.sense for segment in segments_of(present)})
        if not lines:
            return Imported(file.name, target, "skipped", reason="the note says all of it already")
        if not present.strip():
            lines = file.text.strip("\n").split("\n")
        key = await self._free_key(f"import/{target}/{hashlib.sha256(file.text.encode()).hexdigest()[:24]}")
        if not key:
            return Imported(file.name, target, "skipped", reason="it was imported before")
        if not self._dry_run:
            await self._vault.append(target, lines, by=self._by, key=key)
        self._texts[target] = "\n".join([present, *lines])
        return Imported(file.name, target, "merged" if present.strip() else "added", sum(map(bool, lines)))

    async def _present(self, target: str) -> str:
        if target not in self._texts:
            try:
                self._texts[target] = (await self._vault.read(target)).text
            except NotFound:
                self._texts[target] = ""
        return self._texts[target]

    async def _free_key(self, key: str) -> str:
        """A key under which this text may be added: the first, or one more when that was undone; empty for none."""
        for number in range(1, 100):
            known = await self._vault.history.known(f"{key}/{number}")
            if known is None:
                return f"{key}/{number}"
            if known.state == "done":
                return ""
        return ""


def _found(source: Path, workspace: Path) -> list[_File]:
    root = real_path(source.expanduser())
    if not root.exists():
        raise NotFound("directory", str(source), "name one with MEMORY.md or memory/*.md")
    if root.is_relative_to(workspace) or workspace.is_relative_to(root):
        raise InvalidInput(f"{str(source)!r} and the agent's own workspace lie within each other")
    if not (root.is_dir() or root.is_file()):
        raise InvalidInput(f"{str(source)!r} is neither a directory nor a file")
    base = root if root.is_dir() else root.parent
    files: list[_File] = []
    try:
        for path in [root] if root.is_file() else _paths(root):
            if len(files) >= MOST_FILES:
                raise InvalidInput(f"{str(source)!r} holds more than {MOST_FILES} notes; import its parts")
            files.append(_file(path, base))
    except OSError as error:
        raise InvalidInput(f"{str(source)!r} cannot be read: {error.strerror}") from error
    return sorted(files, key=lambda file: (file.target, file.name))


def _paths(root: Path) -> Iterator[Path]:
    yield from _markdown(root)
    for place in sorted(root.iterdir()):
        if place.name.lower() in _NOTE_PLACES and place.is_dir():
            yield from (path for path in sorted(place.rglob("*")) if _is_markdown(path))


def _markdown(directory: Path) -> Iterator[Path]:
    yield from (path for path in sorted(directory.iterdir()) if _is_markdown(path))


def _is_markdown(path: Path) -> bool:
    return path.suffix.lower() in (".md", ".markdown") and not path.name.startswith(".") and not path.is_dir()


def _file(path: Path, base: Path) -> _File:
    name = clean_text(path.relative_to(base).as_posix())  # names of files need not be text
    stem = path.stem.lower()
    if "/" not in name and stem in _INSTRUCTIONS:
        return _File(name, "", reason="instructions of the other assistant, no memory; copy it by hand if you want it")
    if "/" not in name and stem in _PROJECT:
        return _File(name, "", reason="no memory")
    target = clean_text(_target(path.relative_to(base)))
    try:
        if not real_path(path).is_relative_to(base):
            raise InvalidPath("a link that leads out of the directory")
        if not path.is_file():
            raise InvalidPath("no regular file")
        expect_size(path.stat().st_size, name)
        text = read_text(path)
    except QworkspaceError as error:
        return _File(name, target, reason=error.message)
    except OSError as error:
        return _File(name, target, reason=f"it cannot be read: {error.strerror}")
    return _File(name, target, text) if text.strip() else _File(name, target, reason="it is blank")


def _target(relative: Path) -> str:
    """The note that a file belongs to: long-term memory, the profile, the note of its day, or one of its own name."""
    stem, places = relative.stem, [part for part in relative.parts[:-1] if part.lower() not in _NOTE_PLACES]
    day = _DAY.match("-".join([*places, stem])) or _DAY.match(stem)
    if day:
        return f"{day[1]}-{day[2]}-{day[3]}.md"
    if len(relative.parts) <= 2 and stem.lower() in _KNOWN:
        return f"{_KNOWN[stem.lower()]}.md"
    if len(relative.parts) == 1:
        return f"{stem}.md"
    return "memory/" + (f"{places[0]}/" if places else "") + "-".join([*places[1:], stem]) + ".md"
