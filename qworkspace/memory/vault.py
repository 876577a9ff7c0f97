"""The vault: an agent's notes, and the only way in which the daemon reads and changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.notes import Author, Change, Listing, Note, NoteInfo, Source


class AgentMdManager:
    """The markdown notes of one workspace: root `*.md` (working), daily notes, digest notes."""

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
        raise NotImplementedError

    async def start(self) -> None:
        """Finish or roll back what an earlier process left half done. The database is open."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let what is under way end, look once more after fresh lines, free everything. Idempotent."""
        raise NotImplementedError

    def name(self, given: str) -> str:
        """The name of the note that is meant, `.md` forced; `InvalidPath` when it leaves the vault. Blocking, short."""
        raise NotImplementedError

    def today(self) -> str:
        """The daily note of the user's date, `memory/2026-01-31.md`; it need not exist."""
        raise NotImplementedError

    async def read(self, name: str) -> Note:
        """`NotFound`, `InvalidPath`, `TooLarge`. Bytes that are no UTF-8 show as U+FFFD."""
        raise NotImplementedError

    async def list(self) -> list[NoteInfo]:
        """All notes by name; links out are left out and reported."""
        raise NotImplementedError

    def look(self) -> Listing:
        """The notes and what was refused. Blocking, reports nothing."""
        raise NotImplementedError

    def sources(self) -> list[Source]:
        """The notes with their real files; what is refused is reported. Blocking: for threads."""
        raise NotImplementedError

    async def append(self, name: str, lines: str | Sequence[str], *, by: Author, key: str = "") -> Change:
        """Add whole lines at the end of the note, which is made if need be; with a `key` once only."""
        raise NotImplementedError

    async def write(self, name: str, text: str, *, by: Author, expected: str | None = None, key: str = "") -> Change:
        """Replace the whole note. `expected` is the version it must have, "" for none yet: `VersionMismatch`."""
        raise NotImplementedError

    async def replace_section(self, name: str, heading: str, text: str, *, by: Author) -> Change:
        """Replace what stands under `heading` (its text, any level), or add the section at the end."""
        raise NotImplementedError

    async def edit(self, name: str, edit: Callable[[str], str], *, by: Author, key: str = "") -> Change:
        """Make the note `edit(text)`; called again when somebody changed the note meanwhile. A missing note is ""."""
        raise NotImplementedError

    async def delete(self, name: str, *, by: Author, expected: str | None = None) -> Change:
        """Remove the note; `undo` brings it back."""
        raise NotImplementedError

    async def undo(self, change_or_group: str | None = None, *, by: Author | None = None) -> list[Change]:
        """Take a change, or a whole group, back; None: the last one that is not undone. `NotFound`, `Conflict`."""
        raise NotImplementedError


Vault = AgentMdManager
