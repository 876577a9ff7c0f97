"""auto_resource: documents dropped into the resource directory become notes in the digest directory.

Each content is read once. A changed document brings its note up to date; when a document is removed its note stays,
for it is knowledge and says where it comes from. A note that a person has deleted comes back when its document changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import Conflict, InvalidPath, ModelError, NotFound, TooLarge
from qworkspace.memory import document_notes, dream_texts
from qworkspace.memory.asking import Ask, is_no_model, is_outage
from qworkspace.memory.document_files import Dropbox, Dropped, Loaded
from qworkspace.memory.document_notes import Summary
from qworkspace.memory.document_rows import MIGRATIONS, DocumentRows, Row
from qworkspace.memory.dream_guard import cleaned
from qworkspace.memory.notes import Author
from qworkspace.memory.resources import Document, Unreadable
from qworkspace.memory.slugs import day_of, slug
from qworkspace.memory.vault import AgentMdManager

__all__ = ["MIGRATIONS", "Documents"]

SHOWN = 10  # documents named in one problem
TRIES = 3
"""Attempts at a summary while the provider is out of order; then the note is written without."""


class Documents:
    """The documents of one workspace; one reading at a time."""

    def __init__(
        self,
        vault: AgentMdManager,
        database: Database,
        ask: Ask,
        *,
        workspace: Path,
        settings: MemoryConfig,
        clock: Clock,
        threads: Threads,
        problems: Problems,
        agent_id: str,
        language: str,
    ) -> None:
        self._vault = vault
        self._ask = ask
        self._digest_dir = settings.digest_dir
        self._clock = clock
        self._threads = threads
        self._problems = problems
        self._agent_id = agent_id
        self._language = language
        self._rows = DocumentRows(database)
        self._dropbox = Dropbox(workspace, settings.resource_dir, [Path(root) for root in settings.allowed_roots])
        self._lock = asyncio.Lock()

    async def read_new(self) -> int:
        """Read what is new or changed; the number of notes that were written or brought up to date.

        What cannot be read is shown as a problem until it is changed or removed, and not tried again before.
        """
        async with self._lock:
            found = await self._threads.run(self._dropbox.look)
            await self._rows.gone({dropped.name for dropped in found})
            rows = await self._rows.all()
            written = 0
            for dropped in found:
                row = rows.get(dropped.name)
                if row is None or not row.is_of(dropped):
                    written += await self._read(dropped, row)
            await self._show_refused()
            return written

    async def _read(self, dropped: Dropped, row: Row | None) -> bool:
        """Whether a note was written."""
        try:
            loaded = await self._threads.run(self._dropbox.load, dropped, self._stopwatch())
        except Unreadable as error:
            await self._rows.refused(dropped, str(error), self._clock.now())
            return False
        if loaded is None:  # it is being written at the moment: the next look finds it
            return False
        known = await self._rows.of_content(loaded.digest)
        if known is not None:
            await self._rows.same(dropped, known, self._clock.now())
            return False
        summary = await self._summary(loaded.document, row)
        if summary is None:
            await self._rows.tried(dropped, self._clock.now())
            return False
        try:
            await self._write(dropped, loaded, row, summary)
        except (InvalidPath, TooLarge, Conflict) as error:  # of its note, not of the disk: the others go on
            await self._rows.refused(dropped, f"its note cannot be written: {error.message}", self._clock.now())
            return False
        return True

    async def _write(self, dropped: Dropped, loaded: Loaded, row: Row | None, summary: Summary) -> None:
        """Write the note, once even over a crash, and remember what was written."""
        document, source, digest = loaded.document, dropped.name, loaded.digest
        before = row if row is not None and row.note and not await self._rows.is_shared(row.note, source) else None
        note = before.note if before is not None else await self._free_name(source, digest)
        day = day_of(self._vault.today()) or self._clock.now().date()
        language = dream_texts.language(self._language, document.text)
        make = partial(document_notes.document_note, day=day, language=language, summary=summary)
        new = await self._threads.run(make, document, note, source, digest)
        number = row.number + 1 if row is not None else 1
        edit = _updating(before.written if before is not None else "", new)
        key = f"document/{source}/{number}/{digest}"
        change = await self._vault.edit(note, edit, by=Author("resource"), key=key)
        if change.repeated:  # written before a crash, perhaps with another summary
            new = (await self._vault.read(note)).text
        await self._rows.read(dropped, digest, note, new, number, self._clock.now())

    async def _summary(self, document: Document, row: Row | None) -> Summary | None:
        """What the model says; None when it is worth trying again later."""
        if not document_notes.is_long(document):
            return Summary()
        language = dream_texts.language(self._language, document.text)
        question = await self._threads.run(document_notes.question, document)
        try:
            answer = await self._ask(document_notes.SYSTEM[language], question, purpose="resource")
        except ModelError as error:
            if is_outage(error) and not is_no_model(error) and (row.tries if row is not None else 0) < TRIES - 1:
                return None
            return Summary(missing="no model was connected" if is_no_model(error) else error.message.rstrip("."))
        return Summary(cleaned(answer).strip()[: document_notes.SUMMARY_CHARS], missing="the model gave none")

    async def _free_name(self, source: str, digest: str) -> str:
        """The note for a document: named after it, unless another note has that name."""
        stem = slug(Path(source).stem)
        for name in (stem, f"{stem}-{slug(Path(source).suffix)}", f"{stem}-{digest[:8]}"):
            note = f"{self._digest_dir}/{name}.md"
            try:
                text = (await self._vault.read(note)).text
            except NotFound:
                return note
            if document_notes.is_of(text, source):
                return note
        return f"{self._digest_dir}/{stem}-{digest[:16]}.md"

    async def _show_refused(self) -> None:
        """One problem that names what cannot be read, until it is changed or removed."""
        key = f"memory-documents/{self._agent_id}"
        refused = await self._rows.all_refused()
        if not refused:
            self._problems.clear(key)
            return
        names = "; ".join(f"{row.path}: {row.reason}" for row in refused[:SHOWN])
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        message = f"cannot be read into memory: {names}{more}"
        self._problems.report(key, message, severity="warning", agent_id=self._agent_id)

    def _stopwatch(self) -> Callable[[], float]:
        began = self._clock.monotonic()
        return lambda: self._clock.monotonic() - began


def _updating(before: str, new: str) -> Callable[[str], str]:
    return lambda text: document_notes.updated(text, before, new)
