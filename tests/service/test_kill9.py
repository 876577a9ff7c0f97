"""`kill -9` in the middle of turns: what was acknowledged is there, once and in order, and goes on.

Each round drives several sessions, kills the daemon at a random moment, looks at the files it left, starts it again
and compares what it tells with what the clients saw. `QWORKSPACE_KILLS` asks for more rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_replies import Reply, default_reply
from tests.support.model_server import ModelServer
from tests.support.talking import Seen, SseEvent, Talker, spoken

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")

POINTS = 100 if os.environ.get("QWORKSPACE_KILLS") is None else 200
KILLS = int(os.environ.get("QWORKSPACE_KILLS", "0"))
SESSIONS = 14
DRAFT_SECONDS = 2.3
PATIENCE = 15.0
SEED = 20261130
BIG = "a line of a file that must be whole or not there\n" * 400
NOTES = {"MEMORY.md": "# Memory\n\n- likes tea\n", "memory/2026-11-30.md": "- bought bread\n"}
POLICY = {"write_file": {"policy": "allow"}, "run_shell": {"policy": "allow"}}


def answer(body: dict[str, Any]) -> Reply:
    """Do what the message says, with some words before each call."""
    reply = default_reply(body)
    return replace(reply, text="Let me see to it.", delay=0.004, fragment=1000) if reply.calls else reply


@dataclass
class Sent:
    """A message, the streams that its sender saw of it, and how often it ran."""

    number: int
    text: str
    streams: list[Seen] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return any(seen.accepted for seen in self.streams)

    @property
    def ended(self) -> SseEvent | None:
        return self.streams[-1].end if self.streams else None


@dataclass
class Conversation:
    """One session as its user remembers it."""

    name: str
    sent: list[Sent] = field(default_factory=list)
    resumes: list[str] = field(default_factory=list)

    @property
    def unanswered(self) -> Sent | None:
        """The message of which its sender does not know whether it was taken."""
        return self.sent[-1] if self.sent and not self.sent[-1].accepted else None


class Crashes:
    """The rounds of this test, over one home and one strict model server."""

    def __init__(self, daemon: DaemonProcess, models: ModelServer) -> None:
        self.daemon = daemon
        self.models = models
        self.chance = random.Random(SEED)
        self.conversations: list[Conversation] = []
        self.past: list[list[Conversation]] = []
        self.points = 0
        self.kills = 0
        self.found: Counter[str] = Counter()
        self._numbers = 0
        self._events = 0
        self._enough = asyncio.Event()
        self._wanted: int | None = 0
        self._first: dict[str, float] = {}

    # driving

    async def round(self) -> None:
        """Drive all sessions, kill the daemon in the middle, start it again and compare."""
        if self.kills % 5 == 0:
            self.conversations = [Conversation(f"s{self.kills}-{number}") for number in range(SESSIONS)]
            self.past.append(self.conversations)
        self._begin()
        async with Talker(self.daemon, on_event=self._count) as talker:
            driving = [asyncio.create_task(self._drive(talker, each)) for each in self.conversations]
            enough = asyncio.create_task(self._enough.wait())
            finished = asyncio.ensure_future(asyncio.wait(driving))
            await asyncio.wait([enough, finished], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self.chance.random() * 0.05)
            self.daemon.kill()
            enough.cancel()
            await asyncio.gather(*driving)
            await finished
        self.kills += 1
        self.points += sum(not sent.ended for each in self.conversations for sent in each.sent[-2:])
        check_files(self.daemon.home)
        await asyncio.to_thread(self.daemon.start)
        await self.compare()

    def _begin(self) -> None:
        """Decide after how many events of all streams the daemon is killed. None: once a draft has been stored."""
        early, middle, late = 0, self.chance.randint(1, 100), self.chance.randint(100, 300)
        self._wanted = None if self.kills % 6 == 5 else self.chance.choice([early, middle, middle, late])
        self._events = 0
        self._first.clear()
        self._enough.clear()
        if self._wanted == early:
            self._enough.set()

    def _count(self, event: SseEvent) -> None:
        self._events += 1
        if self._wanted is not None and self._events >= self._wanted:
            self._enough.set()
        elif self._wanted is None and event.type == "text.delta":
            now = asyncio.get_running_loop().time()
            if now - self._first.setdefault(event.data["turn_id"], now) >= DRAFT_SECONDS:
                self._enough.set()

    async def _drive(self, talker: Talker, conversation: Conversation) -> None:
        """What one user does until the line breaks."""
        chance = self.chance
        try:
            await self._catch_up(talker, conversation)
            for _ in range(chance.choice([1, 1, 2])):
                sent = self._message(slow=self._wanted is None and chance.random() < 0.5)
                conversation.sent.append(sent)
                await self._send(talker, conversation, sent, wait=chance.random() < 0.5)
        except httpx.TransportError:
            return

    async def _catch_up(self, talker: Talker, conversation: Conversation) -> None:
        """Carry on what was interrupted, and send again what was perhaps not taken."""
        for turn_id in conversation.resumes:
            await talker.post(f"turns/{turn_id}/resume")
            self.found["resumed"] += 1
            await self._follow_resumed(talker, conversation, turn_id)
        waiting = conversation.unanswered
        if waiting is not None:
            await self._send(talker, conversation, waiting)

    async def _send(self, talker: Talker, conversation: Conversation, sent: Sent, *, wait: bool = True) -> None:
        seen = Seen()
        sent.streams.append(seen)
        busy = "interrupt" if sent.number % 7 == 0 else "queue"
        sending = talker.sending(sent.text, conversation.name, key=str(sent.number), seen=seen, if_busy=busy)
        async with sending as (_, events):
            assert seen.accepted, seen.status
            if wait:
                async for _ in events:
                    continue

    async def _follow_resumed(self, talker: Talker, conversation: Conversation, turn_id: str) -> None:
        seen = Seen(session=conversation.name, turn=turn_id)
        for sent in conversation.sent:
            if sent.streams and sent.streams[-1].turn == turn_id:
                sent.streams.append(seen)
        await talker.rejoin(seen)

    def _message(self, *, slow: bool) -> Sent:
        self._numbers += 1
        number, chance = self._numbers, self.chance
        tools = [
            tool("write_file", path=f"files/n{number}.txt", content="once\n", append=True),
            tool("read_file", path=f"files/n{number}.txt"),
            tool("write_file", path=f"files/big{number}.txt", content=BIG),
            tool("run_shell", command=f"echo once >> shell{number}.txt"),
        ]
        wanted = tools[:2] if chance.random() < 0.5 else chance.sample(tools, chance.randint(1, 3))
        style = chance.choice(["[[parallel]]", ""])
        pace = (
            f"[[slow:0.05]] [[long:{chance.randint(50, 90)}]]"
            if slow
            else f"[[slow:0.006]] [[long:{chance.randint(1, 40)}]]"
        )
        return Sent(number, f"m{number} {' '.join(wanted)} {style} {pace}")

    # comparing

    async def compare(self) -> None:
        """Hold what the daemon tells against what the users saw; decide what is resumed next."""
        async with Talker(self.daemon) as talker:
            for conversation in self.conversations:
                await self._compare(talker, conversation)

    async def _compare(self, talker: Talker, conversation: Conversation) -> None:
        conversation.resumes.clear()
        if not conversation.sent:
            return
        if (await talker.request("GET", f"sessions/{conversation.name}")).status_code == 404:
            assert not any(sent.accepted for sent in conversation.sent)
            return
        messages = await talker.messages(conversation.name)
        told = [message["text"] for message in messages if message["role"] == "user"]
        known = [sent.text for sent in conversation.sent]
        assert told in (known, known[:-1] if conversation.unanswered else known), f"{told}\n{known}"
        for turn, sent in zip(await talker.turns(conversation.name), conversation.sent, strict=False):
            self._compare_turn(turn, sent, messages)
            if turn["state"] == "interrupted" and self.chance.random() < 0.6:
                conversation.resumes.append(turn["id"])

    def _compare_turn(self, turn: dict[str, Any], sent: Sent, messages: list[dict[str, Any]]) -> None:
        self.found[turn["state"]] += 1
        assert turn["state"] in ("completed", "interrupted", "cancelled"), turn
        assert spoken(messages, turn["id"]) == turn["text"]
        seen = sent.streams[-1]
        assert seen.text.startswith(turn["text"]) or turn["text"].startswith(seen.text), (seen.text, turn["text"])
        if seen.end is not None and seen.end.type != "turn.failed":
            assert (f"turn.{turn['state']}", turn["text"]) == (seen.end.type, seen.end.data["text"])
            assert not seen.of("turn.started") or seen.text == turn["text"]

    async def finish(self) -> None:
        """Carry on what was interrupted, talk once more in each session, and look at all effects."""
        async with Talker(self.daemon) as talker:
            for conversations in self.past:
                await asyncio.gather(*(self._last_words(talker, each) for each in conversations))
                for conversation in conversations:
                    await self._compare(talker, conversation)
            assert self.models.refused() == []
            check_effects(self.daemon.home, await self._outcomes(talker))

    async def _last_words(self, talker: Talker, conversation: Conversation) -> None:
        await self._catch_up(talker, conversation)
        sent = Sent(0, "one more thing")
        conversation.sent.append(sent)
        sent.streams.append(await talker.say(sent.text, conversation.name))
        assert sent.ended is not None and sent.ended.type == "turn.completed"

    async def _outcomes(self, talker: Talker) -> dict[str, str]:
        """How each call of `write_file` and `run_shell` ended, by the file that it changed."""
        found: dict[str, str] = {}
        for session in await talker.sessions():
            messages = await talker.messages(session)
            parts = [part for message in messages for part in message["parts"]]
            outcomes = {(part["id"]): part["outcome"] for part in parts if part["type"] == "tool_result"}
            for part in parts:
                if part["type"] == "tool_call":
                    found[_effect(part)] = outcomes.get(part["id"], "none")
        return found


def tool(name: str, **args: object) -> str:
    return f"[[tool:{name} {json.dumps(args)}]]"


def _effect(call: dict[str, Any]) -> str:
    args = call["args"]
    return str(args["path"] if "path" in args else "files/" + args["command"].split()[-1])


def check_files(home: Path) -> None:
    """Nothing that the killed daemon left is damaged. Databases are looked at as copies: opening one changes it."""
    for path in home.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    for name, text in NOTES.items():
        assert (home / "workspaces" / "default" / name).read_text(encoding="utf-8") == text
    for path in (home / "workspaces" / "default" / "files").glob("big*.txt"):
        assert path.read_text(encoding="utf-8") == BIG, path
    for path in [home / ".daemon" / "home.db", home / "workspaces" / "default" / ".state" / "sessions.db"]:
        copy = home.parent / "copies" / path.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        copy.parent.mkdir()
        for part in path.parent.glob(path.name + "*"):
            shutil.copy(part, copy.parent)
        with closing(sqlite3.connect(copy)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def check_effects(home: Path, outcomes: dict[str, str]) -> None:
    """What ran has had its effect once; what was interrupted has had it once or not at all."""
    for name, outcome in outcomes.items():
        path = home / "workspaces" / "default" / name
        times = path.read_text(encoding="utf-8").count("once\n") if path.exists() and "big" not in name else None
        if "big" in name:
            assert outcome != "ok" or path.exists(), name
        elif outcome == "ok":
            assert times == 1, f"{name}: {times} times"
        elif "read" not in name:
            assert times in (None, 1), f"{name}: {times} times, {outcome}"


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer(answer, keep=100_000) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(max(400, 20 * KILLS))
async def test_what_was_acknowledged_survives_kill_9(
    models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    home = write_home(tmp_path / "home", models=models.url, agent={"tools": POLICY})
    for name, text in NOTES.items():
        path = home / "workspaces" / "default" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    daemon = make_daemon(home)
    await asyncio.to_thread(daemon.start)
    crashes = Crashes(daemon, models)
    while crashes.points < POINTS or crashes.kills < KILLS:
        await crashes.round()
    await crashes.finish()
    assert {"completed", "interrupted", "resumed"} <= crashes.found.keys()
    print(f"{crashes.kills} kills hit {crashes.points} turns; {models.count} requests; {dict(crashes.found)}")
    await asyncio.to_thread(daemon.terminate)
    assert "Traceback" not in daemon.text()
