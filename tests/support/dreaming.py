"""A vault that dreams, a scripted model, and a fuse that ends the process at a chosen step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.config.memory import MemoryConfig
from qworkspace.memory import documents, dream_store, history
from qworkspace.memory.asking import Ask, Purpose
from qworkspace.memory.database import MemoryDb, memory_db
from qworkspace.memory.documents import Documents
from qworkspace.memory.dream import Dreamer
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.vault import AgentMdManager

COMPONENTS = {"vault": history.MIGRATIONS, "dream": dream_store.MIGRATIONS, "documents": documents.MIGRATIONS}
AGENT = "ada"


class Killed(BaseException):
    """The process ends here."""


class Fuse:
    """Raises `Killed` at the step that it was set to; counts steps."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.steps = 0

    def burn(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise Killed


class Mortal:
    """An object whose every awaited call is followed by a step of the fuse, but for those that only look."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        acts = asyncio.iscoroutinefunction(found) and name not in ("read", "list")
        return self._mortal(found) if acts else found

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._mortal(self._inner)(*args, **kwargs)

    def _mortal(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            result = await function(*args, **kwargs)
            self._fuse.burn()
            return result

        return call


class Script:
    """A model that gives the answers it was given, in order; functions are called, errors raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.questions: list[str] = []
        self.systems: list[str] = []

    async def __call__(self, system: str, question: str, *, purpose: Purpose) -> str:
        self.questions.append(question)
        self.systems.append(system)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(question)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


class Night:
    """A workspace with notes; `again` is what a restart of the daemon makes of it."""

    def __init__(self, path: Path, ask: Ask, *, language: str = "auto", fuse: Fuse | None = None) -> None:
        self.path = path
        self.ask = ask
        self.language = language
        self.fuse = fuse or Fuse()
        self.clock = SimulatedClock(datetime(2026, 1, 5, 23, tzinfo=UTC))
        self.tellings: list[tuple[str, str, str]] = []
        self.threads = Threads(2)
        self._begin()

    def _begin(self) -> None:
        bus = EventBus(self.clock)
        self.problems = Problems(self.clock, bus)
        state = self.path / ".state"
        self.db: MemoryDb = memory_db(
            state, COMPONENTS, threads=self.threads, clock=self.clock, problems=self.problems, agent_id=AGENT
        )
        settings = MemoryConfig()
        self.vault = AgentMdManager(
            self.path,
            settings,
            history=VaultHistory(self.db),
            clock=self.clock,
            threads=self.threads,
            problems=self.problems,
            agent_id=AGENT,
            zone=lambda: UTC,
        )
        common: dict[str, Any] = {
            "workspace": self.path,
            "settings": settings,
            "clock": self.clock,
            "threads": Mortal(self.threads, self.fuse),
            "problems": self.problems,
            "agent_id": AGENT,
            "language": self.language,
        }
        vault: Any = Mortal(self.vault, self.fuse)
        database: Any = Mortal(self.db, self.fuse)
        ask: Any = Mortal(self.ask, self.fuse)
        tell: Any = Mortal(self._tell, self.fuse)
        self.dreamer = Dreamer(vault, database, ask, tell, state_dir=state, **common)
        self.documents = Documents(vault, database, ask, **common)

    async def _tell(self, title: str, body: str, group: str) -> None:
        self.tellings.append((title, body, group))

    async def __aenter__(self) -> Self:
        await self.db.open()
        await self.vault.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end()
        await asyncio.to_thread(self.threads.close)

    async def _end(self) -> None:
        await self.vault.close()
        await self.db.close()

    async def again(self) -> None:
        """The daemon starts anew."""
        await self._end()
        self.fuse.at = 0
        self._begin()
        await self.db.open()
        await self.vault.start()
        await self.dreamer.recover()

    def put(self, name: str, text: str | bytes) -> None:
        """A person writes a file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def text(self, name: str) -> str:
        path = self.path / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def wrong(self) -> list[str]:
        """The messages of the open problems."""
        return [problem.message for problem in self.problems.of()]
