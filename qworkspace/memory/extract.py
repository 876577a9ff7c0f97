"""From what was said to facts in the notes: asks the model, drops what is known, writes once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Literal, Protocol

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import Threads
from qworkspace.base.text import estimate_text
from qworkspace.errors import ContextTooLong, InvalidPath, NotFound, TooLarge
from qworkspace.memory.asking import Ask
from qworkspace.memory.contract import Found, Query
from qworkspace.memory.extract_prompts import Language, instructions, question
from qworkspace.memory.facts import Draft, mask, parse_facts, same, says, undated, whole
from qworkspace.memory.marks import plain
from qworkspace.memory.notes import Author, Change, Note
from qworkspace.memory.outcomes import STRIKABLE, Kept, Known, Outcome, Striking, lines_of
from qworkspace.memory.queue_rows import Mark
from qworkspace.memory.tokens import has_cjk
from qworkspace.memory.transcripts import SpokenTurn, pieces, turn_text
from qworkspace.sessions.models import Source, Turn
from qworkspace.sessions.store import SessionStore

REMEMBERED: frozenset[Source] = frozenset({"chat", "api", "channel"})
"""Who may be remembered; the daemon's own turns (heartbeat, jobs, dream, proactive, subagents) are not."""

ROOM = 8_000
LEAST_ROOM = 500
"""Tokens of a transcript. A model that finds it too long gets half of it, down to the least."""

MOST_TURNS = 10
"""Of one question, whose answer holds 20 facts at most: of a conversation full of facts none is left out."""

MOST_PIECES = 12
"""Of one turn: what a person pasted beyond about 100,000 tokens is not read."""

MOST_KNOWN = 60
MOST_LASTING = 20
"""Lines that the model is shown, and how many of those of the lasting files, whose words nobody may have said."""

MOST_QUERIES = 6
LONGEST_QUERY = 500
Search = Callable[[Query], Awaitable[Found]]


class Notes(Protocol):
    """What is needed of the vault."""

    def today(self) -> str: ...

    async def read(self, name: str) -> Note: ...

    async def append(self, name: str, lines: str | Sequence[str], *, by: Author, key: str = "") -> Change: ...

    async def edit(self, name: str, edit: Callable[[str], str], *, by: Author, key: str = "") -> Change: ...


@dataclass(frozen=True, slots=True)
class Extraction:
    """The outcome and how far it goes. With `more` a part of the session is left; with `waits` a turn still runs."""

    outcome: Outcome
    mark: Mark | None = None
    more: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """What of a session was not extracted yet: its remembered turns, and the last ended turn of any kind."""

    turns: int
    last: Mark | None


class Extractor:
    """Extracts the facts of a session's new turns, and writes them into the vault."""

    def __init__(
        self,
        ask: Ask,
        vault: Notes,
        search: Search,
        sessions: SessionStore,
        *,
        clock: Clock,
        threads: Threads,
        zone: Callable[[], tzinfo],
        language: Callable[[], Literal["auto", "en", "zh"]],
    ) -> None:
        self._ask = ask
        self._vault = vault
        self._search = search
        self._sessions = sessions
        self._clock = clock
        self._threads = threads
        self._zone = zone
        self._language = language
        self._room = ROOM

    async def fresh(self, session_id: str, after: Mark | None) -> Fresh:
        """What was said since the mark."""
        turns, _ = _ended(await self._turns(session_id, after, ""))
        return Fresh(sum(turn.source in REMEMBERED for turn in turns), _mark(turns[-1]) if turns else None)

    async def extract(self, session_id: str, *, after: Mark | None, upto: str) -> Extraction:
        """The facts of the turns after the mark, up to `upto` (inclusive; "" for all), as many as one question takes.

        Raises `ModelError`; nothing is written yet.
        """
        turns, wait = _ended(await self._turns(session_id, after, upto))
        if wait and upto:
            return Extraction(self._nothing(), waits=True)
        while True:
            batch, count = await self._batch(turns)
            try:
                outcome = await self._facts(session_id, batch)
            except ContextTooLong:
                if self._room <= LEAST_ROOM:
                    raise
                self._room = max(LEAST_ROOM, self._room // 2)
                continue
            break
        if not await self._exists(session_id):
            return Extraction(self._nothing())
        return Extraction(outcome, _mark(turns[count - 1]) if count else None, more=count < len(turns))

    async def write(self, task_id: str, session_id: str, outcome: Outcome) -> None:
        """Write what was extracted. The same task writes it once, however often this is called."""
        by = Author("auto_memory", session_id, outcome.turn_id, group=task_id)
        if outcome.lines:
            await self._vault.append(outcome.note, outcome.lines, by=by, key=f"{task_id}:{outcome.note}")
        for path in dict.fromkeys(path for path, _ in outcome.struck):
            texts = [text for where, text in outcome.struck if where == path]
            if path != outcome.note and not await self._read(path):
                continue
            await self._vault.edit(path, Striking(texts), by=by, key=f"{task_id}:{path}:strike")

    # what was said

    async def _turns(self, session_id: str, after: Mark | None, upto: str) -> list[Turn]:
        """The session's turns after the mark and up to another, the oldest first. An `upto` that is gone means all."""
        found: list[Turn] = []
        cursor: str | None = None
        newest = None if upto else 0
        while True:
            page, cursor = await self._sessions.turns(session_id, 100, cursor)
            for turn in page:
                if after is not None and turn.id == after.turn_id:
                    return found[newest:][::-1] if newest is not None else []
                if turn.id == upto:
                    newest = len(found)
                found.append(replace(turn, text="", context=[], metadata={}))
            if cursor is None:  # the marked turn is gone, or there is no mark
                new = [turn for turn in found[newest or 0 :] if after is None or turn.created_at > after.moment]
                return new[::-1]

    async def _batch(self, turns: Sequence[Turn]) -> tuple[list[SpokenTurn], int]:
        """The first turns that fill the room, at least one that is remembered, and how many turns that is."""
        batch: list[SpokenTurn] = []
        size = 0
        for count, turn in enumerate(turns):
            if turn.source not in REMEMBERED:
                continue
            spoken = await self._spoken(turn)
            size += await self._threads.run(_size, spoken)
            if batch and (size > self._room or len(batch) == MOST_TURNS):
                return batch, count
            batch.append(spoken)
        return batch, len(turns)

    async def _spoken(self, turn: Turn) -> SpokenTurn:
        stored = await self._sessions.turn_messages(turn.id)
        return SpokenTurn(turn.id, turn.created_at, [item.message for item in stored], turn.user_id)

    async def _exists(self, session_id: str) -> bool:
        try:
            await self._sessions.get_session(session_id)
        except NotFound:
            return False
        return True

    # facts

    async def _facts(self, session_id: str, batch: Sequence[SpokenTurn]) -> Outcome:
        if not batch:
            return self._nothing()
        if len({turn.user for turn in batch}) == 1:
            batch = [replace(turn, user="") for turn in batch]
        known = await self._known(batch)
        kept = Kept(self._vault.today(), session_id, batch)
        for text in await self._threads.run(self._texts, batch):
            answer = await self._asked(text, known, kept)
            for draft in await self._threads.run(parse_facts, answer):
                await self._keep(kept, draft, known)
        return kept.outcome()

    def _texts(self, batch: Sequence[SpokenTurn]) -> list[str]:
        """What the model is given: the batch as one text, or the parts of its only turn."""
        zone = self._zone()
        if len(batch) == 1:
            return [mask(text) for text in pieces(1, batch[0], zone, self._room)[:MOST_PIECES]]
        return [mask("\n\n".join(turn_text(number, turn, zone) for number, turn in enumerate(batch, 1)))]

    async def _asked(self, text: str, known: Sequence[Known], kept: Kept) -> str:
        language = self._language_of(text)
        lines = [*list(dict.fromkeys(line.text for line in known))[:MOST_KNOWN], *kept.facts]
        today = self._clock.now().astimezone(self._zone()).date()
        return await self._ask(instructions(language), question(language, text, lines, today), purpose="extract")

    def _language_of(self, text: str) -> Language:
        language = self._language()
        return language if language != "auto" else "zh" if has_cjk(text) else "en"

    async def _keep(self, kept: Kept, draft: Draft, known: Sequence[Known]) -> None:
        fact = whole(draft)
        if not fact or kept.told_again(fact, draft) or kept.full:
            return
        near = [*known, *await self._near(fact)]
        said = [line for line in near if says(line.text, fact, draft.when)]
        if said:
            kept.keep(said, draft)
            return
        old = await self._superseded(draft.supersedes, near) if draft.supersedes else []
        kept.add(fact, draft, old)

    async def _superseded(self, quoted: str, near: Sequence[Known]) -> list[Known]:
        """The bullets that say exactly what the model has quoted, in all notes that are found to."""
        wanted = undated(plain(quoted))
        found = dict.fromkeys([*near, *await self._near(wanted)])
        return [line for line in found if line.strikable and same(undated(line.text), wanted)]

    # what is known

    async def _known(self, batch: Sequence[SpokenTurn]) -> list[Known]:
        """What the notes say about it: the best passages for the last messages, today's note, what holds for long."""
        asked = [turn.asked[:LONGEST_QUERY] for turn in batch if turn.asked.strip()][-MOST_QUERIES:]
        found: dict[Known, None] = {}
        for text in asked:
            found |= dict.fromkeys(await self._near(text))
        note = self._vault.today()
        newest = "\n".join((await self._read(note)).splitlines()[-MOST_KNOWN // 2 :])
        today = list(lines_of(note, newest))
        lasting = [line for name in STRIKABLE for line in lines_of(name, await self._read(name)) if line.bullet]
        room = MOST_KNOWN - len(today) - min(len(lasting), MOST_LASTING)
        return list(dict.fromkeys([*list(found)[:room], *today, *lasting[:MOST_LASTING], *found]))

    async def _near(self, text: str) -> list[Known]:
        found = await self._search(Query(text[:LONGEST_QUERY]))
        hits = [hit for hit in found.hits if hit.origin == "vault"]
        return [line for hit in hits for line in lines_of(hit.path, hit.text)]

    async def _read(self, name: str) -> str:
        try:
            return (await self._vault.read(name)).text
        except (NotFound, InvalidPath, TooLarge):
            return ""

    def _nothing(self) -> Outcome:
        return Outcome(self._vault.today(), "")


def _size(turn: SpokenTurn) -> int:
    return estimate_text(turn_text(1, turn, UTC))


def _ended(turns: Sequence[Turn]) -> tuple[list[Turn], bool]:
    """The turns before the first one that still waits or runs, and whether there is such a one."""
    for place, turn in enumerate(turns):
        if not turn.state.ended:
            return list(turns[:place]), True
    return list(turns), False


def _mark(turn: Turn) -> Mark:
    ended: datetime = turn.ended_at or turn.created_at
    return Mark(turn.id, max(ended, turn.created_at))
