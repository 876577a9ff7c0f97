"""Dream: the daily notes since the last one become `MEMORY.md`, topic notes and `interests.yaml`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePosixPath

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database
from qworkspace.base.ids import new_id
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import ContextTooLong, ModelError, NotFound
from qworkspace.memory import dream_prompts, dream_texts
from qworkspace.memory.asking import Ask, is_no_model
from qworkspace.memory.backlog import SMALLEST, Backlog
from qworkspace.memory.dream_answers import Answer, Refused, checked, read_answer
from qworkspace.memory.dream_store import DreamStore, Piece, Plan
from qworkspace.memory.dream_writing import MEMORY, EditedMeanwhile, Writer
from qworkspace.memory.interests import INTERESTS, load_interests
from qworkspace.memory.notes import NoteInfo
from qworkspace.memory.parts import Tell
from qworkspace.memory.slugs import day_of, slug
from qworkspace.memory.topics import topic_note
from qworkspace.memory.vault import AgentMdManager

logger = logging.getLogger(__name__)

BUDGET = 24_000
"""Characters of notes in one question; halved while the model says that it is too long."""
LARGEST_MEMORY = 40_000
"""Characters; a longer MEMORY.md is not rewritten, only topics are found."""
MOST_NAMES = 100  # of topic notes that the model is told
MOST_BATCHES = 50  # of one dream; what is left is for the next
ATTEMPTS = 3  # at one batch, while a person edits MEMORY.md


@dataclass(frozen=True, slots=True)
class DreamOutcome:
    """What a dream has done. `group` is what to undo, `days` are the notes it worked in, `diff` is for people.

    `changed` speaks of notes; topics alone are no change. `reason` says why nothing changed, or what is left to do.
    """

    changed: bool
    reason: str = ""
    group: str = ""
    days: tuple[str, ...] = ()
    diff: str = ""


class Dreamer:
    """Consolidates the notes of one vault; one dream at a time."""

    def __init__(
        self,
        vault: AgentMdManager,
        database: Database,
        ask: Ask,
        tell: Tell,
        *,
        workspace: Path,
        state_dir: Path,
        settings: MemoryConfig,
        clock: Clock,
        threads: Threads,
        problems: Problems,
        agent_id: str,
        language: str,
    ) -> None:
        self._vault = vault
        self._ask = ask
        self._tell = tell
        self._interests = workspace / INTERESTS
        self._digest_dir = settings.digest_dir
        self._clock = clock
        self._threads = threads
        self._problems = problems
        self._agent_id = agent_id
        self._language = language
        self._store = DreamStore(database)
        self._backlog = Backlog(vault, self._store, clock)
        self._writer = Writer(
            vault,
            workspace=workspace,
            state_dir=state_dir,
            digest_dir=settings.digest_dir,
            threads=threads,
            problems=problems,
            agent_id=agent_id,
        )
        self._lock = asyncio.Lock()

    async def dream(self) -> DreamOutcome:
        """Work in every undreamt day, today's included; finish first what a crash has left half-done."""
        async with self._lock:
            earlier = await self._finish()
            outcome = await self._run(new_id("dream", self._clock.now()))
            return outcome if outcome.changed or earlier is None else earlier

    async def recover(self) -> None:
        """Finish a dream whose answer was stored before the daemon ended, and show what is wrong; asks no model."""
        async with self._lock:
            await self._finish()
            await self._show_refused()

    async def catch_up_due(self) -> bool:
        """Whether a note of a day before today is not worked in. Quick: reads no note that has not changed."""
        return await self._backlog.due_before(self._today())

    def _today(self) -> date:
        return day_of(self._vault.today()) or self._clock.now().date()

    async def _finish(self) -> DreamOutcome | None:
        """Write an answer that is stored, tell what was not told."""
        plan = await self._store.stored()
        if plan is not None:
            try:
                await self._write(plan)
            except EditedMeanwhile:
                logger.info("a stored dream no longer fits MEMORY.md; its notes will be dreamt again")
        outcome = None
        for group, *_ in await self._store.untold():
            outcome = await self._told(group, "")
        return outcome

    async def _run(self, group: str) -> DreamOutcome:
        """All batches of one dream; what the model or a person prevents is left for the next."""
        await self._backlog.look()
        budget, number, reason = BUDGET, 0, "no note has changed since the last dream"
        while number < MOST_BATCHES and (batch := await self._backlog.next(budget)):
            number += 1
            try:
                await self._work_in(group, f"{group}/{number}", batch)
            except ContextTooLong as error:
                budget = budget // 2
                if budget < SMALLEST:
                    reason = self._failed(error)
                    break
                continue
            except Refused as error:
                reason = await self._refused(batch, str(error))
                continue
            except EditedMeanwhile:
                reason = "MEMORY.md is being edited; its notes will be dreamt later"
                break
            except ModelError as error:
                reason = self._failed(error)
                break
            reason = "the notes hold nothing new"
            self._problems.clear(f"memory-dream/{self._agent_id}")
        await self._show_refused()
        return await self._told(group, reason)

    async def _work_in(self, group: str, key: str, batch: Sequence[Piece]) -> None:
        """Ask about the notes and write what is answered; ask again about a MEMORY.md that was edited meanwhile."""
        for attempt in range(ATTEMPTS):
            plan = await self._answered(group, f"{key}.{attempt}", batch)
            await self._store.store(plan)
            try:
                await self._write(plan)
                return
            except EditedMeanwhile:
                if attempt == ATTEMPTS - 1:
                    raise

    async def _write(self, plan: Plan) -> None:
        try:
            changes = await self._writer.write(plan)
        except EditedMeanwhile:
            await self._store.drop(plan)
            raise
        await self._store.written(plan, changes, self._clock.now())

    async def _answered(self, group: str, key: str, batch: Sequence[Piece]) -> Plan:
        """An accepted answer; one that is refused is asked for once more, with the reason. `Refused`, `ModelError`."""
        memory = await self._memory()
        notes = {piece.path: piece.text for piece in batch}
        language = dream_texts.language(self._language, memory + "".join(notes.values()))
        listed = await self._vault.list()
        names = {info.name for info in listed} | notes.keys()
        known = await self._topics(listed)
        try:
            answer = await self._asked(memory, notes, names, dream_prompts.Setting(known, self._today(), language))
        except Refused as error:
            again = dream_prompts.Setting(known, self._today(), language, fault=str(error))
            answer = await self._asked(memory, notes, names, again)
        new = answer.memory if answer.memory is not None and answer.memory != memory else None
        day = self._today().isoformat()
        return Plan(group, key, tuple(batch), memory, new, answer.findings, day, language)

    async def _topics(self, listed: Sequence[NoteInfo]) -> list[str]:
        """Titles that a topic may be given again: those of interests.yaml, and the names of the newest topic notes."""
        interests = await self._threads.run(load_interests, self._interests)
        digest = sorted((info for info in listed if info.section == "digest"), key=lambda info: info.modified)
        names = [PurePosixPath(info.name).stem for info in digest[-MOST_NAMES:]]
        titles = {slug(topic.title): topic.title for topic in interests.topics}
        return [*titles.values(), *(name for name in names if name not in titles)]

    async def _asked(
        self, memory: str, notes: dict[str, str], names: Collection[str], setting: dream_prompts.Setting
    ) -> Answer:
        is_large = len(memory) > LARGEST_MEMORY
        self._show_large(memory if is_large else "")
        question = dream_prompts.question(None if is_large else memory, list(notes.items()), setting)
        answer = read_answer(await self._ask(dream_prompts.system(setting.language), question, purpose="dream"))
        if is_large:
            answer = Answer(None, answer.findings)
        made = {topic_note(self._digest_dir, found.topic.title) for found in answer.findings if found.text}
        # guarding a large text takes longer than the event loop may be held up
        return await self._threads.run(checked, answer, memory, notes, {*names, *made})

    async def _memory(self) -> str:
        try:
            return (await self._vault.read(MEMORY)).text
        except NotFound:
            return ""

    async def _told(self, group: str, reason: str) -> DreamOutcome:
        """Tell the person what the dream has changed, once; silent when it has changed nothing."""
        for untold, days, changes in await self._store.untold():
            if untold != group:
                continue
            diff = await self._threads.run(dream_texts.readable_diff, changes)
            if diff:
                language = dream_texts.language(self._language, diff)
                title, body = dream_texts.told(group, days, changes, diff, language)
                await self._tell(title, body, group)
            await self._store.told(group)
            return DreamOutcome(bool(diff), "" if diff else reason, group if diff else "", days, diff)
        return DreamOutcome(False, reason)

    async def _refused(self, batch: Sequence[Piece], reason: str) -> str:
        """Note that an answer may not be used; the person hears of it when it happens to these notes first."""
        self._backlog.skip(batch)
        count = await self._store.note_refused(batch, reason, self._clock.now())
        if count == 1:
            language = dream_texts.language(self._language, "".join(piece.text for piece in batch))
            title, body = dream_texts.refused([piece.path for piece in batch], reason, language)
            await self._tell(title, body, "")
        return f"the model's answer was refused: {reason}"

    async def _show_refused(self) -> None:
        key = f"memory-dream-refused/{self._agent_id}"
        rows = [row for row in (await self._store.notes()).values() if row.refused and not row.whole]
        if rows:
            there = {info.name for info in await self._vault.list()}
            rows = [row for row in rows if row.path in there]
        if not rows:
            self._problems.clear(key)
            return
        names = ", ".join(row.path for row in rows[:5]) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
        message = f"dream could not work in {names}: {rows[0].reason}; MEMORY.md is as it was"
        self._problems.report(key, message, severity="warning", agent_id=self._agent_id)

    def _show_large(self, memory: str) -> None:
        key = f"memory-dream-large/{self._agent_id}"
        if not memory:
            self._problems.clear(key)
            return
        message = (
            f"MEMORY.md has {len(memory):,} characters, dream rewrites {LARGEST_MEMORY:,} at most: it only finds topics"
            " until you shorten it"
        )
        self._problems.report(key, message, severity="warning", agent_id=self._agent_id)

    def _failed(self, error: ModelError) -> str:
        """Why the model did not answer; being offline is no problem to report."""
        if is_no_model(error):
            return f"no model is connected, the notes wait: {error.message}"
        message = f"dream has stopped, its notes wait: {error.message}"
        self._problems.report(f"memory-dream/{self._agent_id}", message, severity="warning", agent_id=self._agent_id)
        return message
