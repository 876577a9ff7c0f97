"""What was told is found again: by a real daemon, with a scripted model, over restarts and kill -9."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_replies import Reply, default_reply, stall, text
from tests.support.model_server import ModelServer

WORDS_ONLY = {"embedding": {"provider": "none"}}
FACT = "Ann's dog is called Rex and is afraid of thunder."


def is_extraction(body: dict[str, Any]) -> bool:
    return "long-term memory of an assistant" in str(body["messages"][0]["content"])


def remembering(body: dict[str, Any]) -> Reply:
    """The fact, for whoever asks for facts and shows the dog; an echo for everybody else."""
    if not is_extraction(body):
        return default_reply(body)
    said = str(body["messages"][-1]["content"]).partition("<conversation>")[2]
    facts = [{"fact": FACT, "about": "Ann's dog", "kind": "person", "when": "", "turn": 1, "supersedes": ""}]
    return text(json.dumps({"facts": facts if "Rex" in said else []}))


def notes(home: Path) -> str:
    """All daily notes together."""
    return "".join(path.read_text() for path in sorted((home / "workspaces/default/memory").glob("*.md")))


async def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (value := await asyncio.to_thread(condition)):
            await asyncio.sleep(0.05)
    return value


async def events(daemon: DaemonProcess, message: str, session: str) -> list[tuple[str, dict[str, Any]]]:
    """A turn's events by type."""
    found: list[tuple[str, dict[str, Any]]] = []
    async with daemon.async_client() as client:
        body = {"session_id": session, "message": message}
        async with client.stream("POST", "/api/agents/default/chat", json=body) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((kind, json.loads(line.removeprefix("data: "))))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def test_what_was_told_is_written_down_and_recalled_in_another_conversation(home: Path) -> None:
    async with ModelServer(remembering) as server:
        write_home(home, models=server.url, config=WORDS_ONLY, memory=True)
        daemon = await asyncio.to_thread(DaemonProcess(home).start)
        try:
            said = ["My dog is called Rex.", "He is afraid of thunder.", "I am Ann.", "It rains.", "Good night."]
            for message in said:
                await asyncio.to_thread(daemon.chat, message, session="evening")
            await eventually(lambda: FACT in notes(home))
            [line] = [line for line in notes(home).splitlines() if FACT in line]
            assert "<!-- src: evening/turn_" in line and line.startswith("- ")
            told = dict(await events(daemon, "what is my dog afraid of? Rex", "morning"))
            [hit] = told["memory.recalled"]["hits"]
            assert FACT in hit["text"] and hit["path"].startswith("memory/") and hit["score"] > 0
            prompt = [r.body for r in server.requests if not is_extraction(r.body)][-1]
            assert FACT in str(prompt["messages"][-1]["content"]) and "memory_write" in str(prompt["messages"][0])
            names = [tool["function"]["name"] for tool in prompt["tools"]]
            assert {"memory_search", "memory_get", "memory_write"} <= set(names)
            assert server.refused() == []
        finally:
            await asyncio.to_thread(daemon.close)


async def test_the_agent_writes_searches_and_reads_its_notes_with_tools(home: Path) -> None:
    async with ModelServer(remembering) as server:
        write_home(home, models=server.url, config=WORDS_ONLY, memory=True)
        (home / "workspaces/default/PROFILE.md").write_text(
            "# Ann\n\n## Food\n\nEats everything.\n\n## Home\n\nBonn.\n"
        )
        daemon = await asyncio.to_thread(DaemonProcess(home).start)
        try:
            write = json.dumps({"text": "The boiler was repaired on 3 March."})
            answer = await asyncio.to_thread(daemon.chat, f"[[tool:memory_write {write}]] note that")
            assert "kept in memory/" in answer["text"] and "- The boiler was repaired on 3 March.\n" in notes(home)
            replace = json.dumps({"file": "PROFILE.md", "section": "Food", "text": "No fish."})
            await asyncio.to_thread(daemon.chat, f"[[tool:memory_write {replace}]] changed")
            profile = (home / "workspaces/default/PROFILE.md").read_text()
            assert "No fish." in profile and "everything" not in profile and "## Home\n\nBonn." in profile
            search = json.dumps({"query": "when was the boiler repaired?"})
            found = await asyncio.to_thread(daemon.chat, f"[[tool:memory_search {search}]] look")
            assert "The boiler was repaired" in found["text"] and "score" in found["text"]
            get = json.dumps({"path": "PROFILE.md", "start_line": 3, "end_line": 5})
            read = await asyncio.to_thread(daemon.chat, f"[[tool:memory_get {get}]] read")
            assert "PROFILE.md, lines 3-5" in read["text"]
            outside = json.dumps({"path": "../../../config.json"})
            refused = await asyncio.to_thread(daemon.chat, f"[[tool:memory_get {outside}]] read")
            assert "api_key" not in refused["text"]
        finally:
            await asyncio.to_thread(daemon.close)


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_conversation_that_was_left_is_remembered_once_although_the_daemon_ends(home: Path, end: str) -> None:
    async with ModelServer(lambda body: stall() if is_extraction(body) else default_reply(body)) as server:
        write_home(home, models=server.url, config=WORDS_ONLY, memory=True)
        daemon = await asyncio.to_thread(DaemonProcess(home).start)
        try:
            await asyncio.to_thread(daemon.chat, "My dog is called Rex.", session="evening")
            await asyncio.to_thread(daemon.chat, "/new", session="evening")
            await eventually(lambda: any(is_extraction(r.body) for r in server.requests))
            began = asyncio.get_running_loop().time()
            await asyncio.to_thread(daemon.kill if end == "kill" else daemon.terminate)
            assert asyncio.get_running_loop().time() - began < 8
            assert notes(home) == ""
            server.script(remembering)
            await asyncio.to_thread(daemon.start)
            await asyncio.to_thread(daemon.get, "/api/agents/default/sessions")  # nobody has to say anything
            await eventually(lambda: FACT in notes(home))
            await asyncio.to_thread(daemon.restart)
            await asyncio.to_thread(daemon.get, "/api/agents/default/sessions")
            status = await asyncio.to_thread(daemon.get, "/api/agents/default/memory/tasks")
            assert [task for task in status["tasks"] if task["state"] != "done"] == []
            assert notes(home).count(FACT) == 1
        finally:
            await asyncio.to_thread(daemon.close)
