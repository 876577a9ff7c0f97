"""The fence around an agent's file tools: each name is judged when it is given and again when it is used."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import aiofiles

from qworkspace.base.files import Root, real_path
from qworkspace.base.waiting import to_the_end
from qworkspace.chat.tools.beneath import Beneath, Changed
from qworkspace.chat.tools.places import OPEN_DIRECTORIES, Identity, Place, Protected, place_of
from qworkspace.errors import Conflict, Denied, InvalidPath, NotFound
from qworkspace.plugins.extensions import FileContent, FileEntry, Verdict

CHANGED_BYTES = 10_000_000
ATTEMPTS = 5

Edit = Callable[[bytes | None], bytes]


class Fence:
    """What of the workspace and the home a tool may read and write. It is the `FileAccess` of one workspace.

    `others()` gives the directories of agents that live outside of the home's `workspaces/`.
    """

    def __init__(self, workspace_dir: Path, home: Path, others: Callable[[], Iterable[Path]] = tuple) -> None:
        self._given = str(workspace_dir.absolute())
        self._root = Root(workspace_dir)
        self.root = self._root.path
        self.protected = Protected(self.root, real_path(home), others)
        self._writing = asyncio.Lock()

    def relative(self, name: str) -> str:
        """The one way to write `name`: relative, without `.` and `//`. An absolute path inside is accepted."""
        for prefix in (str(self.root), self._given):
            if name == prefix or name.startswith(prefix + "/"):
                name = name[len(prefix) :].lstrip("/") or "."
                break
        self._resolve(name, follow=False)
        return "/".join(_parts(name)) or "."

    def resolved(self, name: str) -> str:
        """Where `name` leads when symlinks are followed, relative too."""
        return self._root.relative(self._resolve(self.relative(name)))

    def judge(self, name: str, effect: Literal["read", "write"]) -> Verdict:
        """Whether a tool may, by the rules of the workspace alone: quick, may be called on the event loop."""
        try:
            name = self.relative(name)
            target = self.resolved(name)
        except InvalidPath as error:
            return Verdict("deny", error.message, hard=True)
        return self._may_read(name, target) if effect == "read" else self._may_write(name, target)

    def judge_path(self, path: Path) -> Verdict:
        """What the rules say about an absolute path anywhere, as a command may name it: with shell patterns too."""
        known = self.protected
        try:
            place = max(known.place_of_path(path), known.place_of_path(real_path(path)))
        except InvalidPath as error:
            return Verdict("deny", error.message)
        if any(char in str(path) for char in "*?["):
            place = max(place, known.place_of_pattern(path))
        if place is Place.CLOSED:
            return Verdict("deny", f"'{path}' belongs to the daemon and is closed to tools", hard=True)
        if place is Place.CONTROL:
            return Verdict("ask", f"'{path}' controls the agent: a person must allow each change")
        return Verdict("allow", "not a protected place")

    def readable(self, name: str) -> list[str]:
        """The components of where `name` leads, to be opened as they are; `Denied` when a tool may not read it."""
        name = self.relative(name)
        target = self.resolved(name)
        verdict = self._may_read(name, target)
        if verdict.decision != "allow":
            raise Denied(verdict.reason)
        return _parts(target)

    def place(self, name: str) -> Place:
        """The place of a relative name, taken as it stands."""
        parts = _parts(name)
        return max(place_of(parts), self.protected.place_of_path(self.root.joinpath(*parts)))

    async def read(self, name: str, *, limit: int, from_end: bool = False) -> FileContent:
        """At most `limit` bytes from the beginning or the end of a regular file."""
        reader = Reader(self)
        # the reader judges and opens `name`; the path that is given here is never looked at
        async with aiofiles.open(self.root, "rb", opener=lambda _path, _flags: reader.open(name)) as file:
            size = os.fstat(file.fileno()).st_size
            offset = max(0, size - limit) if from_end else 0
            await file.seek(offset)
            return FileContent(await file.read(limit), size, offset)

    async def write(self, name: str, data: bytes, *, control: bool = False) -> bool:
        """Replace or make the file, with its directories, in one step; True when it is new."""
        async with self._writing:
            return await to_the_end(asyncio.to_thread(self._store, name, data, control), name="write a file")

    async def change(self, name: str, edit: Edit, *, control: bool = False) -> bool:
        """Write what `edit` (run in a thread) makes of the content (None: no file); again if it changed meanwhile."""
        async with self._writing:
            return await to_the_end(asyncio.to_thread(self._edit, name, edit, control), name="change a file")

    def reader(self) -> Reader:
        """For looking through many files."""
        return Reader(self)

    async def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none when it is not there."""
        try:
            return [entry.name for entry in await asyncio.to_thread(Reader(self).entries, directory)]
        except NotFound:
            return []

    async def remove(self, name: str, *, control: bool = False) -> None:
        """Take a file or a link away; one that is gone is no error."""
        async with self._writing:
            await to_the_end(asyncio.to_thread(self._remove, name, control), name="remove a file")

    def _store(self, name: str, data: bytes, control: bool) -> bool:
        beneath, parts = self._writable(name, control)
        return beneath.replace(parts, data)

    def _edit(self, name: str, edit: Edit, control: bool) -> bool:
        for _ in range(ATTEMPTS):
            beneath, parts = self._writable(name, control)
            loaded = beneath.load(parts, CHANGED_BYTES)
            data, stamp = loaded if loaded is not None else (None, None)
            try:
                return beneath.replace(parts, edit(data), stamp)
            except Changed:
                continue
        raise Conflict(f"{name!r} keeps being changed by somebody else; read it again and try later")

    def _remove(self, name: str, control: bool) -> None:
        beneath, _ = self._writable(name, control)
        beneath.remove(_parts(self._root.relative(self._resolve(self.relative(name), follow=False))))

    def _writable(self, name: str, control: bool) -> tuple[Beneath, list[str]]:
        """What writes there, and the components of where `name` leads now; `Denied` when a tool may not."""
        name = self.relative(name)
        target = self.resolved(name)
        verdict = self._may_write(name, target)
        if verdict.decision == "deny" or (verdict.decision == "ask" and not control):
            raise Denied(verdict.reason)
        allowed = Place.CONTROL if verdict.decision == "ask" else Place.OPEN
        return Beneath(self.root, Identities(self.protected, allowed)), _parts(target)

    def _may_read(self, name: str, target: str) -> Verdict:
        if Place.CLOSED in (self.place(name), self.place(target)):
            return Verdict("deny", f"{name!r} belongs to the daemon and is closed to tools", hard=True)
        return Verdict("allow", "reading the workspace")

    def _may_write(self, name: str, target: str) -> Verdict:
        given, real = self.place(name), self.place(target)
        if Place.CLOSED in (given, real):
            return Verdict("deny", f"{name!r} belongs to the daemon and is closed to tools", hard=True)
        if given is Place.CONTROL and real in (Place.CONTROL, Place.OPEN):
            return Verdict("ask", f"{name!r} controls the agent: a person must allow each change")
        if real is Place.CONTROL:
            return Verdict("deny", f"{name!r} is a link to {target!r}, which controls the agent", hard=True)
        if given is Place.OPEN and real is Place.OPEN:
            return Verdict("allow", "a place for the agent's own files")
        return Verdict("deny", _elsewhere(name), hard=True)

    def _resolve(self, name: str, *, follow: bool = True) -> Path:
        try:
            return self._root.resolve(name, follow=follow)
        except OSError as error:  # a link vanished while it was followed
            raise InvalidPath(f"{name!r} changes while it is looked at: {error.strerror}") from error


class Reader:
    """Reads many files and directories of one fence in a row. All of it blocks: use it in a thread."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._beneath = Beneath(fence.root, Identities(fence.protected, Place.CONTROL))

    def open(self, name: str) -> int:
        """A descriptor of a regular file, for reading."""
        return self._beneath.open(self._fence.readable(name))

    def entries(self, name: str) -> list[FileEntry]:
        """What is in a directory, by name, without what is closed."""
        parts = self._fence.readable(name)
        found = self._beneath.entries(parts)
        return [entry for entry in found if self._fence.place("/".join([*parts, entry.name])) is not Place.CLOSED]


class Identities:
    """Refuses a protected file or directory under whatever name: hard link, bind mount, another spelling."""

    def __init__(self, protected: Protected, allowed: Place) -> None:
        self._protected = protected
        self._allowed = allowed
        self._roots = protected.roots()
        self._files: dict[Identity, Place] | None = None

    def __call__(self, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        place = self._roots.get(identity, Place.OPEN)
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if self._files is None:
                self._files = self._protected.files()
            place = max(place, self._files.get(identity, Place.OPEN))
        if place > self._allowed:
            raise Denied("it is another name of a file that is closed to tools or controls the agent")


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _elsewhere(name: str) -> str:
    places = ", ".join(f"{directory}/" for directory in OPEN_DIRECTORIES)
    return f"{name!r} is not a place to write to ({places} and the agent's own .md files are); try 'files/{name}'"
