"""A session store, a scripted model and notes in memory for the queue of extractions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from qworkspace.base.problems import Problem
from qworkspace.config.memory import MemoryConfig
from qworkspace.errors import NotFound, StorageError
from qworkspace.memory import history, queue_rows
from qworkspace.memory.asking import Purpose
from qworkspace.memory.contract import Found, Hit, Query
from qworkspace.memory.database import MemoryDb, memory_db
from qworkspace.memory.extract import Extractor
from qworkspace.memory.facts import words
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.notes import Author, Change, Note, version_of
from qworkspace.memory.queue import SummarizeQueue
from qworkspace.memory.vault import AgentMdManager
from tests.support.stores import Bench

T = TypeVar("T")
P = ParamSpec("P")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
Reply = str | Exception | Callable[[str], str | Awaitable[str]]


def facts(*texts: str, **more: Any) -> str:
    """What a model answers."""
    return json.dumps({"facts": [{"fact": text, "turn": 1, **more} for text in texts]}, ensure_ascii=False)


class ScriptedAsk:
    """Answers with the replies in their order, then with no facts."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.questions: list[str] = []
        self.systems: list[str] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self, system: str, question: str, *, purpose: Purpose) -> str:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(0)
            self.systems.append(system)
            self.questions.append(question)
            reply = self.replies.pop(0) if self.replies else facts()
            if isinstance(reply, Exception):
                raise reply
            answer = reply if isinstance(reply, str) else reply(question)
            return answer if isinstance(answer, str) else await answer
        finally:
            self.running -= 1


def found(texts: Mapping[str, str], query: Query) -> Found:
    """The lines that share a word with the query, as passages."""
    wanted = set(words(query.text))
    hits = [
        Hit(name, number, number, line, 1.0)
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if wanted & set(words(line))
    ]
    return Found(tuple(hits))


def lines(texts: Mapping[str, str]) -> list[str]:
    """The lines of all notes, without marks."""
    return [line.split(" <!--")[0] for text in texts.values() for line in text.splitlines()]


class MemoryNotes:
    """Notes as the vault keeps them: a key works once."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.authors: list[Author] = []
        self._keys: set[str] = set()

    def today(self) -> str:
        return "memory/2026-01-01.md"

    async def read(self, name: str) -> Note:
        if name not in self.texts:
            raise NotFound("note", name)
        text = self.texts[name]
        return Note(name, text, version_of(text.encode()), text.count("\n"))

    async def append(self, name: str, lines: str | Sequence[str], *, by: Author, key: str = "") -> Change:
        added = [lines] if isinstance(lines, str) else list(lines)
        return await self.edit(name, lambda text: text + "".join(f"{line}\n" for line in added), by=by, key=key)

    async def edit(self, name: str, edit: Callable[[str], str], *, by: Author, key: str = "") -> Change:
        await asyncio.sleep(0)
        repeated = bool(key) and key in self._keys
        if not repeated:
            self._keys.add(key)
            self.texts[name] = edit(self.texts.get(name, ""))
            self.authors.append(by)
        return Change(key, by.group, EPOCH, by, name, "append", "done", repeated=repeated)

    async def search(self, query: Query) -> Found:
        return found(self.texts, query)

    @property
    def lines(self) -> list[str]:
        return lines(self.texts)


class VaultNotes(AgentMdManager):
    """The real vault of a directory."""

    def __init__(self, shop: Workshop) -> None:
        bench = shop.bench
        self.root = bench.directory
        super().__init__(
            self.root,
            MemoryConfig(),
            history=VaultHistory(shop.database),
            clock=bench.clock,
            threads=bench.threads,
            problems=bench.problems,
            agent_id="a",
            zone=lambda: UTC,
        )

    @property
    def texts(self) -> dict[str, str]:
        names = sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*.md"))
        return {name: (self.root / name).read_text(encoding="utf-8") for name in names}

    @property
    def lines(self) -> list[str]:
        return lines(self.texts)

    async def search(self, query: Query) -> Found:
        return found(self.texts, query)


class Dying:
    """Ends at the `at`-th point, before or after a step that it was put around: hangs, or fails from then on."""

    def __init__(self, at: int, *, hangs: bool) -> None:
        self.died = asyncio.Event()
        self._at = at
        self._hangs = hangs
        self._points = 0

    def around(self, step: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        async def stepping(*args: P.args, **kwargs: P.kwargs) -> T:
            await self._point()
            result = await step(*args, **kwargs)
            if self._hangs:  # a step that fails has not been done
                await self._point()
            return result

        return stepping

    async def _point(self) -> None:
        self._points += 1
        if self._points >= self._at:
            self.died.set()
            if not self._hangs:
                raise StorageError("the process is dead")
            await asyncio.Event().wait()


class Workshop:
    """A queue over real SQLite and the sessions of a `Bench`; `restart` leaves what a crash would leave."""

    def __init__(self, directory: Path, *replies: Reply, interval: int = 5) -> None:
        self.bench = Bench(directory)
        self.clock = self.bench.clock
        self.ask = ScriptedAsk(*replies)
        self.notes = MemoryNotes()
        self.interval = interval
        self.database = self._database()
        self.queue = self.make()

    async def __aenter__(self) -> Workshop:
        await self.bench.__aenter__()
        await self.database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.queue.close()
        await self.database.close()
        await self.bench.__aexit__(kind, error, traceback)

    @property
    def extractor(self) -> Extractor:
        return Extractor(
            self.ask,
            self.notes,
            self.notes.search,
            self.bench.store,
            clock=self.clock,
            threads=self.bench.threads,
            zone=lambda: UTC,
            language=lambda: "auto",
        )

    def make(self, actor: asyncio.Lock | None = None) -> SummarizeQueue:
        return SummarizeQueue(
            self.database,
            self.extractor,
            self.bench.store,
            interval=lambda: self.interval,
            clock=self.clock,
            problems=self.bench.problems,
            agent_id="a",
            actor=actor,
        )

    async def restart(self) -> None:
        """Another process goes on with the same files."""
        await self.queue.close()
        await self.database.close()
        self.database = self._database()
        await self.database.open()
        self.queue = self.make()
        self.queue.activate()
        await self.queue.idle()

    async def die(self, at: int, *, hangs: bool = True) -> bool:
        """Work up to the `at`-th point or to the end; whether there was such a point. Only `restart` goes on."""
        dying = Dying(at, hangs=hangs)
        database, ask, notes = self.database, self.ask, self.notes
        steps = (database.write, notes.append, notes.edit)
        database.write = dying.around(database.write)  # type: ignore[method-assign]
        notes.append = dying.around(notes.append)  # type: ignore[method-assign]
        notes.edit = dying.around(notes.edit)  # type: ignore[method-assign]
        self.ask = dying.around(ask)  # type: ignore[assignment]
        self.queue = self.make()
        self.queue.activate()
        ends = [asyncio.ensure_future(self.queue.idle()), asyncio.ensure_future(dying.died.wait())]
        _, running = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in running:
            end.cancel()
        await asyncio.wait(ends)
        await self.queue.close()
        self.ask = ask
        database.write, notes.append, notes.edit = steps  # type: ignore[method-assign]
        return dying.died.is_set()

    async def advance(self, seconds: float) -> None:
        """Time passes, and what it set off has come to its end."""
        await self.clock.advance(seconds)
        await self.queue.idle()

    async def states(self) -> list[tuple[str, str]]:
        """(session, state) of all tasks."""
        return [(task.session_id, task.state) for task in await self.queue.tasks()]

    @property
    def problems(self) -> list[Problem]:
        return self.bench.problems.of("a")

    def _database(self) -> MemoryDb:
        return memory_db(
            self.bench.directory,
            {"vault": history.MIGRATIONS, "queue": queue_rows.MIGRATIONS},
            threads=self.bench.threads,
            clock=self.clock,
            problems=self.bench.problems,
            agent_id="a",
        )


class VaultWorkshop(Workshop):
    """With the real vault in place of notes in memory."""

    vault: VaultNotes

    async def __aenter__(self) -> VaultWorkshop:
        await super().__aenter__()
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.queue.close()
        await self.vault.close()
        await super().__aexit__(kind, error, traceback)

    async def restart(self) -> None:
        await self.queue.close()
        await self.vault.close()
        await self.database.close()
        self.database = self._database()
        await self.database.open()
        await self._open()
        self.queue.activate()
        await self.queue.idle()

    async def _open(self) -> None:
        self.notes = self.vault = VaultNotes(self)  # type: ignore[assignment]
        await self.vault.start()
        self.queue = self.make()
