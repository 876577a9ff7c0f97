"""Streams of turns: cut and joined again, stopped, interrupted, refused, queued; through restarts of the daemon too."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_replies import Call, Reply, calls, stall, text
from tests.support.model_server import ModelServer
from tests.support.talking import Seen, Talker, spoken

ALLOWED = {"tools": {"run_shell": {"policy": "allow"}, "write_file": {"policy": "allow"}}}
CUTS = 30


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def daemon(models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon whose model does what the message says; its tools ask nobody."""
    home = write_home(tmp_path / "home", models=models.url, agent=ALLOWED, config={"lifecycle": {"shutdown_grace": 2}})
    return await asyncio.to_thread(make_daemon(home).start)


@pytest.fixture
async def talker(daemon: DaemonProcess) -> AsyncIterator[Talker]:
    async with Talker(daemon) as talker:
        yield talker


def tool(name: str, **args: object) -> str:
    return f"[[tool:{name} {json.dumps(args)}]]"


async def begun(talker: Talker, message: str, session: str = "s1", *, until: str = "text.delta", **more: Any) -> Seen:
    """Send a message and leave its stream when an event of that type has come."""
    async with talker.sending(message, session, **more) as (seen, events):
        async for event in events:
            if event.type == until:
                break
    return seen


async def test_a_stream_that_is_cut_again_and_again_loses_and_doubles_nothing(talker: Talker) -> None:
    chance = random.Random(7)
    call = tool("write_file", path="files/a.txt", content="a")
    async with talker.sending(f"{call} [[slow:0.01]] [[long:150]]") as (seen, events):
        async for _ in events:
            break
    cuts = 0
    while seen.end is None:
        wanted = chance.choice([0, 1, 2, 5, 9])
        async with talker.joining(seen) as (_, events):
            async for _ in events:
                wanted -= 1
                if wanted < 0 and cuts < CUTS:
                    break
        cuts += 1
    numbers = seen.numbers()
    assert cuts > 10
    assert numbers == list(range(1, len(numbers) + 1))
    [stored] = await talker.turns()
    assert seen.text == seen.end.data["text"] == stored["text"] == spoken(await talker.messages(), seen.turn)
    assert len(seen.text.split()) == 150


async def test_many_may_follow_one_turn_and_who_comes_late_sees_all(talker: Talker) -> None:
    seen = await begun(talker, "[[slow:0.02]] [[long:60]]")
    others = [Seen(session="s1") for _ in range(5)]
    await asyncio.gather(*(talker.rejoin(other) for other in others))
    await talker.rejoin(seen)
    assert {other.text for other in others} == {seen.text}
    late = await talker.rejoin(Seen(session="s1", events=[seen.events[0]]))
    assert late.text == seen.text
    nothing = await talker.request("GET", "sessions/s1/stream", headers={"Last-Event-ID": seen.last_id})
    assert nothing.status_code == 204


async def test_leaving_does_not_end_the_turn(talker: Talker, models: ModelServer) -> None:
    await begun(talker, "[[slow:0.02]] [[long:40]]")
    async with asyncio.timeout(20):
        while (await talker.turns())[0]["state"] != "completed":
            await asyncio.sleep(0.05)
    assert not models.last.closed_early.is_set()


async def test_stop_closes_the_providers_line_within_three_seconds(talker: Talker, models: ModelServer) -> None:
    async with talker.sending("[[slow:0.02]] [[long:2000]]") as (seen, events):
        async for event in events:
            if event.type == "text.delta":
                break
        began = time.monotonic()
        assert await talker.post("sessions/s1/stop") == {"stopped": True}
        await asyncio.wait_for(models.last.closed_early.wait(), 3)
        assert time.monotonic() - began < 3
        async for _ in events:
            continue
    assert seen.end is not None and seen.end.type == "turn.cancelled"
    assert seen.text == seen.end.data["text"] == spoken(await talker.messages(), seen.turn) != ""
    assert await talker.post("sessions/s1/stop") == {"stopped": False}
    after = await talker.say("go on")
    assert after.end is not None and after.end.type == "turn.completed"
    assert models.refused() == []


@pytest.mark.parametrize("message", ["[[stall]] a", "[[tool:current_time {}]] [[stall]]"])
async def test_stop_ends_a_turn_that_waits_for_a_silent_provider(
    talker: Talker, models: ModelServer, message: str
) -> None:
    await begun(talker, message, until="turn.started")
    await models.wait_for(1 + message.count("tool:"))
    began = time.monotonic()
    assert await talker.post("sessions/s1/stop") == {"stopped": True}
    await asyncio.wait_for(models.last.closed_early.wait(), 3)
    assert time.monotonic() - began < 3
    assert (await talker.say("go on")).text.startswith("echo: go on")
    assert models.refused() == []


@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX")
async def test_stop_ends_the_whole_process_group_of_a_tool(daemon: DaemonProcess, talker: Talker) -> None:
    command = "(trap '' TERM; sleep 300) & sleep 301 & echo ready > ready.txt; wait"
    await begun(talker, tool("run_shell", command=command, timeout=100), until="tool.call")
    ready = daemon.home / "workspaces" / "default" / "files" / "ready.txt"
    async with asyncio.timeout(20):
        while not ready.exists():
            await asyncio.sleep(0.02)
    children = psutil.Process(daemon.pid).children(recursive=True)
    assert len(children) >= 3
    began = time.monotonic()
    assert await talker.post("sessions/s1/stop") == {"stopped": True}
    assert time.monotonic() - began < 3
    assert [child for child in children if _lives(child)] == []
    assert [turn["state"] for turn in await talker.turns()] == ["cancelled"]
    assert (await talker.say("go on")).text == "echo: go on"


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_newer_message_interrupts(talker: Talker, models: ModelServer) -> None:
    async with talker.sending("[[slow:0.02]] [[long:2000]]") as (first, events):
        async for event in events:
            if event.type == "text.delta":
                break
        line = models.last
        second = await talker.say("rather this", if_busy="interrupt")
        async for _ in events:
            continue
    assert first.end is not None and first.end.type == "turn.cancelled" and first.text
    assert line.closed_early.is_set()
    assert second.text == "echo: rather this"
    shown = [message["content"] for message in models.last.body["messages"] if message["role"] != "system"]
    assert shown == ["[[slow:0.02]] [[long:2000]]", first.text, "rather this"]


async def test_who_does_not_want_to_wait_is_told(talker: Talker) -> None:
    await begun(talker, "[[slow:0.02]] [[long:100]]")
    refused = await talker.request(
        "POST", "chat", json={"session_id": "s1", "message": "now!", "if_busy": "reject", "stream": False}
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
    assert (await talker.say("now!", "s2", if_busy="reject")).text == "echo: now!"
    assert [message["role"] for message in await talker.messages()].count("user") == 1


async def test_messages_that_wait_are_answered_in_order(talker: Talker) -> None:
    await begun(talker, "first [[slow:0.02]] [[long:50]]")
    waiting = [await begun(talker, f"number {number}", until="notice") for number in range(5)]
    assert [seen.events[0].data["position"] for seen in waiting] == [1, 2, 3, 4, 5]
    await asyncio.gather(*(talker.rejoin(seen) for seen in waiting))
    assert [seen.text for seen in waiting] == [f"echo: number {number}" for number in range(5)]
    told = [(m["role"], m["text"]) for m in await talker.messages()]
    assert [said for role, said in told if role == "user"][1:] == [f"number {number}" for number in range(5)]
    turns = await talker.turns()
    assert [turn["id"] for turn in turns[1:]] == [seen.turn for seen in waiting]
    ends = [turn["ended_at"] for turn in turns]
    assert ends == sorted(ends)


async def test_a_message_that_is_sent_twice_is_one_turn(talker: Talker) -> None:
    first, second = await asyncio.gather(talker.say("once", key="k"), talker.say("once", key="k"))
    assert first.turn == second.turn and first.text == second.text == "echo: once"
    assert [message["role"] for message in await talker.messages()] == ["user", "assistant"]


async def test_sigterm_gives_the_grace_then_interrupts_and_the_turn_goes_on_later(
    daemon: DaemonProcess, talker: Talker, models: ModelServer
) -> None:
    once = Call("write_file", {"path": "files/once.txt", "content": "once\n", "append": True})

    def first_life(body: dict[str, Any]) -> Reply:
        return calls(once) if body["messages"][-1]["role"] == "user" else stall("so far so good")

    models.script(first_life)
    async with talker.sending("go on") as (seen, events):
        async for event in events:
            if event.type == "text.delta":
                break
        began = time.monotonic()
        ending = asyncio.create_task(asyncio.to_thread(daemon.terminate))
        async for _ in events:
            continue
        assert await ending == 0
    assert 1.9 < time.monotonic() - began < 12
    assert seen.end is not None and seen.end.type == "turn.failed"
    assert (seen.end.data["code"], seen.end.data["retryable"]) == ("interrupted", True)
    assert seen.end.data["text"] == seen.text == "so far so good"
    assert models.last.closed_early.is_set()

    await asyncio.to_thread(daemon.start)
    [turn] = await talker.turns()
    assert (turn["state"], turn["text"]) == ("interrupted", seen.text)
    models.script([text("all is good")])
    await talker.post(f"turns/{turn['id']}/resume")
    again = await talker.rejoin(Seen(session="s1", turn=turn["id"], events=list(seen.events)))
    assert again.end is not None and again.end.type == "turn.completed"
    anew = "".join(e.data["text"] for e in again.events[len(seen.events) :] if e.type == "text.delta")
    assert anew == again.end.data["text"] == (await talker.turn(turn["id"]))["text"] == "all is good"
    assert (daemon.home / "workspaces" / "default" / "files" / "once.txt").read_text(encoding="utf-8") == "once\n"


async def test_a_follower_finds_its_turn_again_after_a_restart(daemon: DaemonProcess, talker: Talker) -> None:
    """The daemon dies under a client that follows; the client comes back with the last id it saw."""
    async with talker.sending("[[slow:0.02]] [[long:3000]]") as (seen, events):
        with pytest.raises(httpx.TransportError):
            async for _ in events:
                if len(seen.events) == 20:
                    daemon.kill()
    await asyncio.to_thread(daemon.start)
    await talker.rejoin(seen)
    assert seen.end is not None and (seen.end.type, seen.end.data["code"]) == ("turn.failed", "interrupted")
    nothing = await talker.request("GET", "sessions/s1/stream", headers={"Last-Event-ID": seen.last_id})
    assert nothing.status_code == 204


async def test_a_reader_that_is_too_slow_is_cut_off_and_may_come_back(
    models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    config = {"server": {"event_backlog": 50}}
    daemon = make_daemon(write_home(tmp_path / "home", models=models.url, agent=ALLOWED, config=config))
    await asyncio.to_thread(daemon.start)
    # the thought is more than the system's own buffers take; what comes after it waits for the reader
    models.script([text("word " * 150, reasoning="x" * 6_000_000, delay=0.02)])
    async with Talker(daemon, buffer=65_536) as slow, Talker(daemon) as talker:
        async with slow.sending("go on and on") as (seen, events):
            await anext(events)
            async with asyncio.timeout(60):
                while (await talker.turn(seen.turn))["state"] == "running":
                    await asyncio.sleep(0.1)
            async for _ in events:
                continue
        assert seen.end is None and len(seen.of("text.delta")) < 50
        await talker.rejoin(seen)
        assert seen.end is not None and seen.end.type == "turn.completed"
        assert seen.text == seen.end.data["text"] == "word " * 150
        assert seen.numbers() == list(range(1, len(seen.events) + 1))
