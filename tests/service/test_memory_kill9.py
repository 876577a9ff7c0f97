"""`kill -9` in the middle of remembering: nothing that was acknowledged is lost, nothing is there twice.

Each round talks, appends, writes, dreams and edits notes by hand, kills the daemon at a random moment, holds the notes
it left against its history, and starts it again. `QWORKSPACE_KILLS` asks for more rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_replies import Reply, default_reply, text
from tests.support.model_server import ModelServer
from tests.support.note_states import check_history, copied, states
from tests.support.talking import Seen, Talker

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")

KILLS = int(os.environ.get("QWORKSPACE_KILLS", "6"))
SEED = 20261130
SESSIONS = 3
PATIENCE = 15.0
LASTING = 10  # every so many facts are for MEMORY.md
POINTS = ("extract", "dream", "append", "write", "talk", "time")
AGENT = {"running": {"memory": {"auto_memory_interval": 1}}}
CONFIG = {"embedding": {"provider": "none"}, "user_timezone": "UTC"}
MIXED = "memory/20"
"""The daily notes, in which a person writes too; all others only the daemon changes."""


class Mind:
    """The model: each answer about facts is worded anew, so that what is extracted twice is there twice."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._chance = random.Random(SEED)
        self._asked = 0

    def __call__(self, body: dict[str, Any]) -> Reply:
        system, question = (str(body["messages"][at]["content"]) for at in (0, -1))
        pause = self._chance.choice([0.0, 0.0, 0.05])
        if "long-term memory of an assistant" in system:
            self._hear("extract")
            return text(json.dumps({"facts": self._facts(question)}), first_delay=pause)
        if "You tidy the long-term memory" in system:
            self._hear("dream")
            return text(json.dumps(self._dream(question)), first_delay=pause)
        return replace(default_reply(body), delay=0.002)

    def _facts(self, question: str) -> list[dict[str, Any]]:
        self._asked += 1
        said = question.partition("<conversation>")[2]
        turns = re.split(r"^\[(\d+)\]", said, flags=re.MULTILINE)[1:]
        return [
            {"fact": f"The {name} was heard, wording {self._asked}", "turn": int(number)}
            for number, turn in zip(turns[::2], turns[1::2], strict=True)
            for name in re.findall(r"user: keep (fact\d+)", turn)
        ]

    def _dream(self, question: str) -> dict[str, Any]:
        memory = re.findall(r"^- .*$", question.partition("<memory_md>")[2].partition("</memory_md>")[0], re.MULTILINE)
        notes = re.findall(r'<note path="(.*?)">\n(.*?)\n</note>', question, re.DOTALL)
        lines = [line for _, note in notes for line in note.splitlines() if re.search(r"fact\d*0 was", line)]
        kept = [*memory, *(line for line in lines if line not in memory)]
        topic = {"title": "Facts", "text": "\n".join(lines), "keywords": ["fact"], "paths": [path for path, _ in notes]}
        return {"memory": "# Memory\n\n" + "".join(f"{line}\n" for line in kept), "topics": [topic] if lines else []}


class Crashes:
    """The rounds of this test. `sure` is what was acknowledged, `perhaps` what was only sent."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.folder = daemon.home / "workspaces" / "default"
        self.chance = random.Random(SEED)
        self.sure: set[str] = set()
        self.perhaps: set[str] = set()
        self.written: list[str] = []
        self.kills = 0
        self.heard: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self._numbers = 0
        self._wanted = ("time", 0)
        self._now = asyncio.Event()

    def hear(self, what: str) -> None:
        """Something has happened: the daemon may be killed by it."""
        self.heard[what] += 1
        point, times = self._wanted
        if what == point and self.heard[what] >= times:
            self._now.set()

    async def round(self) -> None:
        point = POINTS[self.kills % len(POINTS)]
        self._wanted = (point, self.heard[point] + self.chance.randint(1, 4))
        self._now.clear()
        async with Talker(self.daemon) as talker:
            doing = [asyncio.create_task(self._until_killed(work, talker)) for work in self._works()]
            limit = self.chance.random() * 2 if point == "time" else PATIENCE
            waiting = asyncio.create_task(self._now.wait())
            await asyncio.wait([waiting], timeout=limit)
            await asyncio.sleep(self.chance.choice([0.0, 0.02, 0.1, 0.3]) * self.chance.random())
            self.daemon.kill()
            self.killed[point if waiting.done() else "time"] += 1
            waiting.cancel()
            await asyncio.gather(*doing)
        self.kills += 1
        self._check_bytes(settled=False)
        await asyncio.to_thread(self.daemon.start)
        async with Talker(self.daemon) as talker:
            await talker.get("memory/files")  # what was left half done is finished first
            found = await talker.post("memory/search", json={"query": "which fact was heard"})
            assert "failed" not in found["partial"] and "damaged" not in found["partial"]

    def _works(self) -> list[Callable[[Talker], Awaitable[None]]]:
        talks = [self._talk] * SESSIONS
        return [*talks, self._append, self._write, self._dream, self._edit_by_hand]

    async def _until_killed(self, work: Callable[[Talker], Awaitable[None]], talker: Talker) -> None:
        try:
            while True:
                await work(talker)
        except httpx.TransportError:
            return

    async def _talk(self, talker: Talker) -> None:
        session, by_tool = f"s{self.kills // 4}-{self.chance.randrange(SESSIONS)}", self.chance.random() < 0.3
        name = self._name("tool" if by_tool else "fact")
        seen = Seen()
        call = f"[[tool:memory_write {json.dumps({'text': f'The {name} was written'})}]]"
        await talker.say(call if by_tool else f"keep {name}", session, seen=seen)
        if seen.end is not None and seen.end.type == "turn.completed":
            self.sure.add(name)
        self.hear("talk")
        if self.chance.random() < 0.1:
            await talker.say("/new", session)

    async def _append(self, talker: Talker) -> None:
        name = self._name("api")
        path = {"path": "memory/api.md"} if self.chance.random() < 0.5 else {}
        request = talker.request("POST", "memory/append", json={"text": f"- The {name} came", **path})
        change = (await self._acknowledged(request))["change"]["id"]
        self.sure.add(name)
        self.hear("append")
        if self.chance.random() < 0.2:
            self.sure.remove(name)
            await self._acknowledged(talker.request("POST", "memory/undo", json={"id": change}))
            self.perhaps.remove(name)
        await asyncio.sleep(self.chance.random() * 0.3)

    async def _write(self, talker: Talker) -> None:
        """A whole note; of what was written since the last acknowledged one each may be there."""
        self._numbers += 1
        new = f"# Written {self._numbers}\n" + f"a line of version {self._numbers}\n" * self.chance.randint(0, 500)
        self.written.append(new)
        await self._acknowledged(talker.request("PUT", "memory/files/digest/written.md", json={"text": new}))
        self.written = [new]
        self.hear("write")
        await asyncio.sleep(self.chance.random() * 0.5)

    async def _dream(self, talker: Talker) -> None:
        await self._acknowledged(talker.request("POST", "memory/dream", json={}))
        await asyncio.sleep(self.chance.random() * 0.3)

    async def _edit_by_hand(self, talker: Talker) -> None:
        name = self._name("hand")
        note = self.folder / "memory" / f"{datetime.now(UTC):%Y-%m-%d}.md"
        await asyncio.to_thread(_append, note, f"- The {name} was there\n")
        self.sure.add(name)
        await asyncio.sleep(0.1 + self.chance.random() * 0.2)
        await talker.request("GET", "memory/status")

    async def _acknowledged(self, request: Awaitable[httpx.Response]) -> Any:
        answer = await request
        assert answer.status_code == 200, f"{answer.text}\n{self.daemon.said()[-6000:]}"
        return answer.json()

    def _name(self, kind: str) -> str:
        self._numbers += 1
        name = f"{kind}{self._numbers}"
        self.perhaps.add(name)
        return name

    # comparing

    def _check_bytes(self, *, settled: bool) -> None:
        """Each note that only the daemon changes is as its history says; before it was started again, or pending."""
        with copied(self.folder / ".state" / "memory.db", self.daemon.home.parent / "copies") as database:
            known = states(database)
            check_history(database)
        for path, allowed in known.items():
            if not path.startswith(MIXED):
                assert len(allowed) == 1 or not settled, f"{path} is still pending"
                assert _bytes(self.folder / path) in allowed, f"{path} is neither before nor after"

    def _check_names(self) -> None:
        """What was acknowledged is there once, what was only sent at most once."""
        times = self._times()
        assert {name: times[name] for name in self.sure if times[name] != 1} == {}
        assert {name: count for name, count in times.items() if count > 1 or name not in self.perhaps} == {}
        written = _bytes(self.folder / "digest/written.md")
        assert written is None or written.decode() in self.written
        lines = (self.folder / "MEMORY.md").read_text(encoding="utf-8").splitlines()
        lasting = {name for name in self.sure if re.fullmatch(r"fact\d*0", name)}
        told = Counter(name for line in lines for name in re.findall(r"fact\d+", line))
        assert lasting <= told.keys() and set(told.values()) <= {1}, told
        with pytest.raises(StopIteration):
            print(next(line for line in self._notes().splitlines() if line.count("- The ") > 1), "is two lines")

    def _notes(self) -> str:
        return "".join(path.read_text(encoding="utf-8") for path in sorted((self.folder / "memory").glob("*.md")))

    def _times(self) -> Counter[str]:
        return Counter(re.findall(r"The ((?:fact|tool|api|hand)\d+) ", self._notes()))

    async def finish(self) -> None:
        async with Talker(self.daemon) as talker:
            await self._eventually(self._queue_is_done, talker)
            await talker.post("memory/dream", json={})
            await self._eventually(self._is_indexed, talker)
            self._check_names()
            for name in self.chance.sample(sorted(self.sure), 20):
                found = await talker.post("memory/search", json={"query": f"{name}", "max_results": 10})
                assert any(name in hit["text"] for hit in found["results"]), name
            assert (await talker.get("memory/status"))["problems"] == []
        await asyncio.to_thread(self.daemon.terminate)
        self._check_bytes(settled=True)

    async def _queue_is_done(self, talker: Talker) -> bool:
        tasks = (await talker.get("memory/tasks"))["tasks"]
        facts = {name for name in self.sure if name.startswith("fact")}
        return all(task["state"] == "done" for task in tasks) and facts <= self._times().keys()

    async def _is_indexed(self, talker: Talker) -> bool:
        status = await talker.get("memory/status")
        return bool(status["pending"] == 0 and status["files"] > 0)

    async def _eventually(self, condition: Callable[[Talker], Awaitable[bool]], talker: Talker) -> None:
        end = asyncio.get_running_loop().time() + 60
        while not await condition(talker):
            assert asyncio.get_running_loop().time() < end, f"{condition.__name__}: {self._missing()}"
            await asyncio.sleep(0.05)

    def _missing(self) -> set[str]:
        return self.sure - self._times().keys()


def _append(note: Path, line: str) -> None:
    note.parent.mkdir(exist_ok=True)
    with note.open("a", encoding="utf-8") as file:
        file.write(line)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer(keep=1_000) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(max(300, 10 * KILLS))
async def test_what_memory_acknowledged_survives_kill_9(
    models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(write_home(tmp_path / "home", models=models.url, agent=AGENT, config=CONFIG, memory=True))
    crashes = Crashes(daemon)
    models.script(Mind(crashes.hear))
    await asyncio.to_thread(daemon.start)
    while crashes.kills < KILLS:
        await crashes.round()
    await crashes.finish()
    assert models.refused() == [] and "Traceback" not in daemon.text()
    print(f"{dict(crashes.killed)}, {dict(crashes.heard)}, {len(crashes.sure)} of {len(crashes.perhaps)} sure")
