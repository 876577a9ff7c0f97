"""What dream has still to work in: daily notes that are new or have changed, the oldest first, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import date

from qworkspace.base.clock import Clock
from qworkspace.errors import NotFound, QworkspaceError
from qworkspace.memory.dream_store import DreamStore, Dreamt, Piece
from qworkspace.memory.notes import Note, NoteInfo
from qworkspace.memory.slugs import day_of
from qworkspace.memory.vault import AgentMdManager

logger = logging.getLogger(__name__)

SMALLEST = 1_500  # characters of a batch; a window that takes less is of no use
MOST_REFUSALS = 3
"""A note that has led to so many refused answers is left aside until it changes."""


class Backlog:
    """The undreamt notes of one vault. `look` begins a dream; `next` gives its batches until none is left."""

    def __init__(self, vault: AgentMdManager, store: DreamStore, clock: Clock) -> None:
        self._vault = vault
        self._store = store
        self._clock = clock
        self._notes: list[NoteInfo] = []

    async def look(self) -> None:
        """List the notes: those that were never refused first, each by its day."""
        rows = await self._store.notes()
        found = [info for info in await self._daily() if not _is_done(rows.get(info.name), info)]
        self._notes = sorted(found, key=lambda info: (_refusals(rows.get(info.name)), _day(info), info.name))

    async def next(self, budget: int) -> list[Piece]:
        """The next notes that fit `budget` characters together; a longer one in pieces. Empty when all are done."""
        rows = await self._store.notes()
        pieces: list[Piece] = []
        for info in list(self._notes):
            row = rows.get(info.name)
            if pieces and (row is not None and row.refused):
                break  # one that was refused is asked about alone, so that it spoils no other
            piece = await self._piece(info, row, budget)
            if piece is None:
                self._notes.remove(info)
                continue
            budget -= len(piece.text)
            if pieces and (budget < 0 or not piece.whole):
                break
            pieces.append(piece)
            if not piece.whole or (row is not None and row.refused):
                break
        return pieces

    def skip(self, pieces: Sequence[Piece]) -> None:
        """Leave these notes for the next dream."""
        names = {piece.path for piece in pieces}
        self._notes = [info for info in self._notes if info.name not in names]

    async def due_before(self, today: date) -> bool:
        """Whether a note of an earlier day waits; those that are left aside do not count."""
        rows = await self._store.notes()
        for info in await self._daily():
            row = rows.get(info.name)
            if _day(info) < today and not _is_done(row, info) and _refusals(row) < MOST_REFUSALS:
                piece = await self._piece(info, row, SMALLEST)
                if piece is not None:
                    return True
        return False

    async def _daily(self) -> list[NoteInfo]:
        return [info for info in await self._vault.list() if info.section == "daily"]

    async def _piece(self, info: NoteInfo, row: Dreamt | None, budget: int) -> Piece | None:
        """What is left of the note, as far as it fits; None when nothing is."""
        try:
            note = await self._vault.read(info.name)
        except NotFound:
            return None
        except QworkspaceError as error:
            logger.warning("dream leaves out %s: %s", info.name, error.message)
            return None
        same = row is not None and row.version == note.version
        if row is not None and same and (row.whole or row.refused >= MOST_REFUSALS):
            if row.whole:  # touched without a change: known without reading from now on
                await self._store.note_done(_rest(info, note, len(note.text), 0), self._clock.now())
            return None
        piece = _rest(info, note, row.upto if row is not None and same else 0, budget)
        if piece.whole and not piece.text.strip():
            await self._store.note_done(piece, self._clock.now())
            return None
        return piece


def _rest(info: NoteInfo, note: Note, start: int, budget: int) -> Piece:
    """The note from `start` on, cut at the end of a line."""
    rest = note.text[start:]
    if len(rest) > budget:
        rest = rest[: budget + 1].rpartition("\n")[0] or rest[:budget]
    end = start + len(rest)
    return Piece(info.name, note.version, rest, end, end >= len(note.text), info.size, info.modified.isoformat())


def _is_done(row: Dreamt | None, info: NoteInfo) -> bool:
    """Whether the note looks as it did when it was worked in, without reading it."""
    return row is not None and row.whole and (row.size, row.modified) == (info.size, info.modified.isoformat())


def _refusals(row: Dreamt | None) -> int:
    return row.refused if row is not None else 0


def _day(info: NoteInfo) -> date:
    return day_of(info.name) or info.modified.date()
