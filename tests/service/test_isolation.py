"""Fifty conversations with five agents at once: nothing of one is ever found in another."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_replies import Reply, default_reply
from tests.support.model_server import ModelServer
from tests.support.talking import Seen, Talker

AGENTS = ("ada", "bob", "cem", "dan", "eve")
LONG = "QWORKSPACE_KILLS" in os.environ  # as long as it should be before a release
SESSIONS = 10 if LONG else 5  # of each agent
MESSAGES = 20 if LONG else 12  # of each session
TOOLS_EVERY = 4
MARK = re.compile(r"<(\w+)/(s\d+)/(\d+)>")


class Watching:
    """What the model is shown, looked through at each request: one conversation, in order, and nothing else."""

    def __init__(self) -> None:
        self.mixed: list[str] = []

    def __call__(self, body: dict[str, Any]) -> Reply:
        marks = [found for message in body["messages"] for found in MARK.findall(json.dumps(message["content"]))]
        if len({(agent, session) for agent, session, _ in marks}) != 1:
            self.mixed.append(str(Counter(f"{agent}/{session}" for agent, session, _ in marks)))
        asked = [
            int(number)
            for message in body["messages"]
            if message["role"] == "user"
            for _, _, number in MARK.findall(str(message["content"]))[:1]
        ]
        if asked != list(range(len(asked))):
            self.mixed.append(f"{marks[0]}: {asked}")
        return replace(default_reply(body), chunk=1000, fragment=1000)


@pytest.fixture
def watching() -> Watching:
    return Watching()


@pytest.fixture
async def models(watching: Watching) -> AsyncIterator[ModelServer]:
    async with ModelServer(watching) as server:
        yield server


@pytest.fixture
async def daemon(models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon) -> DaemonProcess:
    home = write_home(tmp_path / "home", models=models.url, agents=AGENTS)
    return await asyncio.to_thread(make_daemon(home).start)


def message(agent: str, session: str, number: int) -> str:
    """Now and then it asks for the agent's own mark in a file that has the same name for all agents, and to read it."""
    mark = f"<{agent}/{session}/{number}>"
    if number % TOOLS_EVERY:
        return mark
    write = {"path": f"files/who-{session}.txt", "content": f"{mark}\n", "append": True}
    read = {"path": f"files/who-{session}.txt", "start_line": -1}
    return f"{mark} [[tool:write_file {json.dumps(write)}]] [[tool:read_file {json.dumps(read)}]] [[parallel]]"


async def converse(talker: Talker, session: str) -> None:
    """All messages of one session, two at a time: the second is sent when the first is taken."""
    for number in range(0, MESSAGES, 2):
        first = Seen()
        async with talker.sending(message(talker.agent, session, number), session, seen=first) as (_, events):
            second = await talker.say(message(talker.agent, session, number + 1), session)
            async for _ in events:
                continue
        for at, seen in enumerate((first, second)):
            mark = f"<{talker.agent}/{session}/{number + at}>"
            assert seen.text.startswith(f"echo: {mark}") and seen.text == seen.events[-1].data["text"]
            results = [event.data["text"] for event in seen.of("tool.result")]
            assert len(results) == (0 if (number + at) % TOOLS_EVERY else 2)
            assert not results or results[1].startswith(mark)


@pytest.mark.slow
async def test_conversations_do_not_mix(daemon: DaemonProcess, models: ModelServer, watching: Watching) -> None:
    talkers = [Talker(daemon, agent) for agent in AGENTS]
    sessions = [f"s{number}" for number in range(SESSIONS)]
    try:
        await asyncio.gather(*(converse(talker, session) for talker in talkers for session in sessions))
        assert watching.mixed == [] and models.refused() == []
        for talker in talkers:
            assert sorted(await talker.sessions()) == sorted(sessions)
            for session in sessions:
                await check_session(talker, session)
    finally:
        for talker in talkers:
            await talker.__aexit__(None, None, None)
    for agent in AGENTS:
        check_files(daemon.home / "workspaces" / agent / "files", agent, sessions)


async def check_session(talker: Talker, session: str) -> None:
    """The stored conversation is the one that was had, in order."""
    stored = await talker.messages(session)
    asked = [m["text"] for m in stored if m["role"] == "user"]
    assert asked == [message(talker.agent, session, number) for number in range(MESSAGES)]
    said = [found for m in stored if m["role"] != "user" for found in MARK.findall(json.dumps(m))]
    assert {(agent, of) for agent, of, _ in said} == {(talker.agent, session)}
    numbers = [int(number) for _, _, number in said]
    assert numbers == sorted(numbers)


def check_files(directory: Path, agent: str, sessions: list[str]) -> None:
    """The agent's files hold its own marks, each once, and there is no other file."""
    assert sorted(path.name for path in directory.iterdir()) == sorted(f"who-{session}.txt" for session in sessions)
    for session in sessions:
        lines = (directory / f"who-{session}.txt").read_text(encoding="utf-8").splitlines()
        assert lines == [f"<{agent}/{session}/{number}>" for number in range(0, MESSAGES, TOOLS_EVERY)]
