"""The vault: an agent's notes, and the only way in which the daemon reads and changes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.ids import new_id
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import Conflict, NotFound, VersionMismatch
from qworkspace.memory.appending import lines_to_add
from qworkspace.memory.changing import Changes, Wish
from qworkspace.memory.fresh import FreshLines
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.locking import VaultLock
from qworkspace.memory.names import INTERESTS, Names
from qworkspace.memory.notefile import Layout, decode, read_note
from qworkspace.memory.notes import Author, Change, Listing, Note, NoteInfo, Source, version_of
from qworkspace.memory.sections import replace_section

LOCK = Path(".state") / "vault.lock"


class AgentMdManager:
    """The markdown notes of one workspace: root `*.md` (working), daily notes, digest notes.

    Every change is recorded with what it takes to undo it, is whole or not there after a crash, and keeps what a
    person or another process writes in between. It is carried out even if the caller is cancelled.
    """

    def __init__(
        self,
        workspace: Path,
        settings: MemoryConfig,
        *,
        history: VaultHistory,
        clock: Clock,
        threads: Threads,
        problems: Problems,
        agent_id: str,
        zone: Callable[[], tzinfo],
        changed: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`changed(name)` is called in the event loop after each change that this object makes."""
        self.history = history
        self._names = Names(workspace, settings)
        self._clock = clock
        self._threads = threads
        self._problems = problems
        self._agent_id = agent_id
        self._zone = zone
        self._refused: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        lock = VaultLock(self._names.workspace / LOCK, threads)
        self._fresh = FreshLines(
            self._names,
            history,
            lock,
            clock=clock,
            threads=threads,
            problems=problems,
            agent_id=agent_id,
            changed=changed,
        )
        self._changes = Changes(self._names, history, lock, self._fresh, clock=clock, threads=threads, changed=changed)

    async def start(self) -> None:
        """Finish or roll back what an earlier process left half done. The database is open."""
        self._loop = asyncio.get_running_loop()
        await self._changes.start()

    async def close(self) -> None:
        """Let what is under way end, look once more after fresh lines, free everything. Idempotent."""
        await self._changes.close()
        self._report({})

    async def look_again(self) -> None:
        """Put back now what an editor's save has swallowed; it is done within a quarter of a second anyway."""
        await self._fresh.look()

    @property
    def workspace(self) -> Path:
        """The directory of the agent, its links followed."""
        return self._names.workspace

    def new_group(self, prefix: str) -> str:
        """An id for changes that are undone together."""
        return new_id(prefix, self._clock.now())

    def name(self, given: str) -> str:
        """The name of the note that is meant, `.md` forced; `InvalidPath` when it leaves the vault. Blocking, short."""
        return self._names.name(given)

    def today(self) -> str:
        """The daily note of the user's date, `memory/2026-01-31.md`; it need not exist."""
        return self._names.daily(f"{self._clock.now().astimezone(self._zone()):%Y-%m-%d}")

    async def read(self, name: str) -> Note:
        """`NotFound`, `InvalidPath`, `TooLarge`. Bytes that are no UTF-8 show as U+FFFD."""
        return await self._threads.run(self._read, name)

    async def list(self) -> Sequence[NoteInfo]:
        """All notes by name; links out are left out and reported."""
        listing, notes = await self._threads.run(self._looked)
        self._report(listing.refused)
        return notes

    def look(self) -> Listing:
        """The notes and what was refused. Blocking, reports nothing."""
        return self._names.look()

    def sources(self) -> Sequence[Source]:
        """The notes with their real files; what is refused is reported. Blocking: for threads."""
        listing = self._names.look()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._report, listing.refused)
        return listing.sources

    async def append(self, name: str, lines: str | Sequence[str], *, by: Author, key: str = "") -> Change:
        """Add whole lines at the end of the note, which is made if need be; with a `key` once only."""
        return await self._changes.append(Wish(await self._named(name), by, "append", key), lines_to_add(lines))

    async def write(self, name: str, text: str, *, by: Author, expected: str | None = None, key: str = "") -> Change:
        """Replace the whole note. `expected` is the version it must have, "" for none yet: `VersionMismatch`."""

        def make(data: bytes | None) -> bytes:
            _expect(name, data, expected)
            return _layout(data).encode(text)

        wish = Wish(await self._named(name, by), by, "write", key)
        return await self._changes.rewrite(wish, make, again=None if expected is None else make)

    async def replace_section(self, name: str, heading: str, text: str, *, by: Author) -> Change:
        """Replace what stands under `heading` (its text, any level), or add the section at the end."""
        return await self.edit(name, lambda note: replace_section(note, heading, text), by=by)

    async def edit(self, name: str, edit: Callable[[str], str], *, by: Author, key: str = "") -> Change:
        """Make the note `edit(text)`, in a thread; again when somebody changed the note meanwhile.

        A missing note is "", and one that is made "" while it is missing stays missing.
        """

        def make(data: bytes | None) -> bytes | None:
            text, layout = decode(data or b"")
            edited = edit(text)
            return None if data is None and not edited else data if edited == text else layout.encode(edited)

        return await self._changes.rewrite(Wish(await self._named(name, by), by, "write", key), make, again=make)

    async def delete(self, name: str, *, by: Author, expected: str | None = None) -> Change:
        """Remove the note; `undo` brings it back."""
        name = await self._named(name)

        def make(data: bytes | None) -> None:
            if data is None:
                raise NotFound("note", name)
            _expect(name, data, expected)

        def again(data: bytes | None) -> None:
            if data is not None:
                raise Conflict(f"{name!r} was changed at the moment of its removal, and stays", path=name)

        return await self._changes.rewrite(Wish(name, by, "delete"), make, again=again)

    async def undo(self, change_or_group: str | None = None, *, by: Author | None = None) -> Sequence[Change]:
        """Take a change, or a whole group, back; None: the last one that is not undone. `NotFound`, `Conflict`."""
        return await self._changes.undo(change_or_group, by or Author("person"))

    async def _named(self, name: str, by: Author | None = None) -> str:
        if name == INTERESTS and by is not None and by.kind == "dream":
            return name
        return await self._threads.run(self._names.name, name)

    def _read(self, given: str) -> Note:
        name = self._names.name(given)
        data = read_note(self._names.resolve(name))
        if data is None:
            raise NotFound("note", name)
        text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
        return Note(name, text, version_of(data), text.count("\n") + (not text.endswith("\n") and bool(text)))

    def _looked(self) -> tuple[Listing, Sequence[NoteInfo]]:
        listing = self._names.look()
        return listing, [info for source in listing.sources if (info := self._info(source)) is not None]

    def _info(self, source: Source) -> NoteInfo | None:
        try:
            found = source.path.stat()
        except OSError:
            return None  # gone meanwhile
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
        return NoteInfo(source.name, self._names.section(source.name), found.st_size, modified)

    def _report(self, refused: dict[str, str]) -> None:
        """Show what is refused now; what no longer is, is over."""
        for name, reason in refused.items():
            message = f"not served and not searched: {reason}"
            self._problems.report(self._key(name), message, severity="warning", agent_id=self._agent_id)
        for name in self._refused - refused.keys():
            self._problems.clear(self._key(name))
        self._refused = set(refused)

    def _key(self, name: str) -> str:
        return f"memory-note/{self._agent_id}/{name}"


Vault = AgentMdManager


def _layout(data: bytes | None) -> Layout:
    """Of a new text only its line ends are those of the note."""
    return replace(decode(data)[1], broken=False) if data is not None else Layout()


def _expect(name: str, data: bytes | None, expected: str | None) -> None:
    current = version_of(data) if data is not None else ""
    if expected is not None and expected != current:
        raise VersionMismatch(f"{name!r} has changed since it was read; read it again", current=current, path=name)
