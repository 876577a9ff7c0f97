"""Days with one person and the real markdown memory: a simulated clock, and a model that knows what sentences say.

The model is a plain one: it gives what was said as facts whether memory holds them or not, names an older line of the
same matter as superseded only if it was shown it, and dreams by copying.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

from qworkspace.base.events import EventBus
from qworkspace.base.scope import Scope
from qworkspace.config.home import HomeConfig
from qworkspace.config.memory import MemoryConfig
from qworkspace.memory import marks
from qworkspace.memory.asking import Purpose
from qworkspace.memory.contract import Found, MemoryTurn
from qworkspace.memory.markdown import MarkdownMemory
from qworkspace.memory.parts import DaemonMemory, MemoryParts
from qworkspace.sessions.models import Source, user_message
from tests.support.stores import Bench

ZONE = ZoneInfo("Asia/Shanghai")
MORNING = datetime(2026, 1, 5, 6, tzinfo=ZONE)
"""A Monday; in UTC it is Sunday still."""


class Matter(NamedTuple):
    """What a sentence says, and which facts exclude each other."""

    fact: str
    about: str


class Model:
    """`Ask` by a table of sentences. `questions` are all it was asked."""

    def __init__(self, sentences: Mapping[str, Sequence[Matter]]) -> None:
        self.questions: list[tuple[Purpose, str]] = []
        self._sentences = sentences
        self._about = {matter.fact: matter.about for matters in sentences.values() for matter in matters}

    async def __call__(self, system: str, question: str, *, purpose: Purpose) -> str:
        self.questions.append((purpose, question))
        answer = self._facts(question) if purpose == "extract" else self._dream(question)
        return json.dumps(answer, ensure_ascii=False)

    def _facts(self, question: str) -> Any:
        known = [line.removeprefix("- ") for line in _inside("known", question).splitlines()]
        turns = re.split(r"^\[(\d+)\]", _inside("conversation", question), flags=re.MULTILINE)[1:]
        found: list[dict[str, Any]] = []
        for number, said in zip(turns[::2], turns[1::2], strict=True):
            for matter in (
                matter for text, of in self._sentences.items() if f"user: {text}\n" in said for matter in of
            ):
                earlier = [*(one["fact"] for one in reversed(found)), *known]
                old = [line for line in earlier if self._about.get(line) == matter.about and line != matter.fact]
                fact = {"fact": matter.fact, "about": "the user", "turn": int(number)}
                found.append(fact | {"supersedes": old[0] if old else ""})
        return {"facts": found}

    def _dream(self, question: str) -> Any:
        notes = re.findall(r'<note path="(.*?)">\n(.*?)\n</note>', question, re.DOTALL)
        kept = [line for line in _inside("memory_md", question).splitlines() if _holds(line)]
        topics = []
        for path, text in notes:
            new = [line for line in text.splitlines() if _holds(line)]
            kept += [line for line in new if marks.plain(line) not in map(marks.plain, kept)]
            if new:
                topics.append({"title": "About Ann", "text": "\n".join(new), "keywords": ["Ann"], "paths": [path]})
        struck = [line for _, text in notes for line in text.splitlines() if marks.is_struck(line)]
        memory = "# Memory\n\n" + "".join(f"{line}\n" for line in kept)
        return {"memory": memory, "superseded": [marks.plain(line) for line in struck], "topics": topics}


class Days:
    """`async with` opens the memory of an agent on a Monday morning; `evening` ends a day, `night` dreams."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.workspace = folder / "anna"
        self.model = model
        self.told: list[tuple[str, str, str]] = []
        self.bench = Bench(folder)
        self.clock = self.bench.clock
        self.clock.jump((MORNING - self.clock.now()).total_seconds())
        self.bus = EventBus(self.clock)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.workspace.mkdir, parents=True)
        await self.bench.__aenter__()
        self.daemon = DaemonMemory(self.bench.threads, self.clock, self.bench.directory)
        self.memory = MarkdownMemory(self._parts())
        await self.memory.start()
        self.memory.activate()
        await self.memory.ready()
        await self.memory.upkeep.index_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.memory.close()
        await self.daemon.close()
        await self.bench.__aexit__(kind, error, tb)

    # what happens

    async def say(self, text: str, session: str = "chat", *, source: Source = "chat") -> str:
        """A turn to its end, as the turn runner tells memory of it; the turn's id."""
        turn = await self.bench.talk(text, session=session, source=source)
        scope = Scope("a", self.workspace, session_id=session, turn_id=turn.id, source=source)
        await self.memory.replied(MemoryTurn(scope, user_message(text), (), self.clock.now(), "hi"))
        self.bus.publish("turn.completed", turn_id=turn.id, agent_id="a")
        return turn.id

    async def evening(self, *sessions: str) -> None:
        """The conversations are left, what was said is written down, and can be found."""
        for session in sessions or ("chat",):
            await self.memory.leaving(session, "new")
        await self.memory.queue.idle()
        await self.memory.index.settled()

    async def night(self) -> Mapping[str, Any]:
        """A dream, then the next morning."""
        outcome = await self.memory.dream()
        await self.morning()
        return outcome

    async def morning(self) -> None:
        """Time passes until six o'clock."""
        now = self.clock.now().astimezone(ZONE)
        six = now.replace(hour=6, minute=0, second=0, microsecond=0)
        await self.clock.advance((six + timedelta(days=six <= now) - now).total_seconds())
        await self.memory.queue.idle()
        await self.memory.index.settled()

    def edit(self, name: str, old: str, new: str) -> None:
        """A person's editor."""
        path = self.workspace / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        self.memory.files_changed([name])

    # what there is to be seen

    async def recall(self, text: str) -> Found:
        """What comes with that message into the prompt."""
        scope = Scope("a", self.workspace, session_id="new", turn_id="turn_new")
        turn = MemoryTurn(scope, user_message(text), (), self.clock.now())
        return await self.memory.auto_memory_search(turn)

    def files(self) -> dict[str, bytes]:
        """The bytes of all notes, and of what dream keeps beside them."""
        paths = sorted(path for path in self.workspace.rglob("*") if path.is_file())
        names = [path.relative_to(self.workspace).as_posix() for path in paths]
        return {name: path.read_bytes() for name, path in zip(names, paths, strict=True) if name[0] != "."}

    def lines(self, prefix: str = "") -> list[str]:
        """The lines of all notes below `prefix`."""
        return [
            line
            for name, data in self.files().items()
            if name.startswith(prefix) and name.endswith(".md")
            for line in data.decode().splitlines()
        ]

    def _parts(self) -> MemoryParts:
        async def tell(title: str, body: str, group: str) -> None:
            self.told.append((title, body, group))

        home = HomeConfig.model_validate({"embedding": {"provider": "none"}})
        return MemoryParts(
            agent_id="a",
            workspace=self.workspace,
            state_dir=self.workspace / ".state",
            config=MemoryConfig(),
            language="auto",
            home=lambda: home,
            zone=lambda: ZONE,
            dreams=lambda: False,
            sessions=self.bench.store,
            ask=self.model,
            tell=tell,
            daemon=self.daemon,
            clock=self.clock,
            threads=self.bench.threads,
            problems=self.bench.problems,
            bus=self.bus,
        )


def says(lines: Iterable[str], fact: str) -> list[str]:
    """The lines that say this fact as true."""
    return [line for line in lines if fact in marks.plain(line) and not marks.is_struck(line)]


def _holds(line: str) -> bool:
    return line.startswith("- ") and not marks.is_struck(line)


def _inside(tag: str, text: str) -> str:
    return text.partition(f"<{tag}>\n")[2].partition(f"\n</{tag}>")[0] + "\n"
