"""Questions to a person, through restarts: asked once, answered whenever, carried out once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_server import ModelServer
from tests.support.talking import Seen, Talker

ASKING = {"write_file": {"policy": "ask"}}
CALL = {"path": "files/once.txt", "content": "once\n", "append": True}
MESSAGE = f"do it [[tool:write_file {json.dumps(CALL)}]]"


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


class House:
    """A daemon whose agent asks before it writes."""

    def __init__(self, daemon: DaemonProcess, models: ModelServer) -> None:
        self.daemon = daemon
        self.models = models
        self.file = daemon.home / "workspaces" / "default" / "files" / "once.txt"

    async def crash(self) -> None:
        """`kill -9`, and a new start."""
        self.daemon.kill()
        await asyncio.to_thread(self.daemon.start)

    async def ask(self, session: str = "s1") -> tuple[Seen, str]:
        """A message whose call waits for a person; the question's id."""
        async with Talker(self.daemon) as talker, talker.sending(MESSAGE, session) as (seen, events):
            async for event in events:
                if event.type == "tool.approval":
                    return seen, str(event.data["approval_id"])
        raise AssertionError(f"nobody was asked: {seen}")

    async def answer(self, approval: str, decision: str) -> int:
        """Answer the question; the status."""
        async with Talker(self.daemon) as talker:
            answered = await talker.request("POST", f"/api/approvals/{approval}", json={"decision": decision})
            return answered.status_code

    async def open(self) -> list[dict[str, Any]]:
        """The open questions."""
        async with Talker(self.daemon) as talker:
            return list((await talker.get("/api/approvals", params={"state": "pending"}))["approvals"])

    async def turn(self, seen: Seen, state: str) -> dict[str, Any]:
        """The turn once it is in that state."""
        async with Talker(self.daemon) as talker, asyncio.timeout(20):
            while (turn := await talker.turn(seen.turn))["state"] != state:
                await asyncio.sleep(0.03)
            return turn

    @property
    def times(self) -> int:
        """How often the call has had its effect."""
        return self.file.read_text(encoding="utf-8").count("once\n") if self.file.exists() else 0


@pytest.fixture
async def house(models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon) -> House:
    home = write_home(tmp_path / "home", models=models.url, agent={"tools": ASKING})
    return House(await asyncio.to_thread(make_daemon(home).start), models)


async def test_an_answer_after_kill_9_carries_the_turn_on(house: House) -> None:
    seen, approval = await house.ask()
    await house.crash()
    assert (await house.turn(seen, "interrupted"))["error"]["code"] == "interrupted"
    [question] = await house.open()
    assert (question["id"], question["tool"], question["args"]) == (approval, "write_file", CALL)
    assert await house.answer(approval, "allow") == 200
    turn = await house.turn(seen, "completed")
    assert turn["text"].startswith("echo: do it | ") and house.times == 1
    assert await house.answer(approval, "allow") == 409
    assert await house.open() == [] and house.models.refused() == []


async def test_a_no_after_kill_9_carries_the_turn_on_without_the_call(house: House) -> None:
    seen, approval = await house.ask()
    await house.crash()
    assert await house.answer(approval, "deny") == 200
    turn = await house.turn(seen, "completed")
    assert "a person said no" in turn["text"] and house.times == 0


async def test_a_turn_that_is_resumed_first_waits_for_the_same_question(house: House) -> None:
    seen, approval = await house.ask()
    for _ in range(2):
        await house.crash()
        async with Talker(house.daemon) as talker:
            await talker.post(f"turns/{seen.turn}/resume")
            async with talker.joining(Seen(session="s1")) as (again, events):
                async for event in events:
                    if event.type == "tool.approval":
                        break
            assert again.events[-1].data["approval_id"] == approval
    assert len(await house.open()) == 1
    assert await house.answer(approval, "allow") == 200
    await house.turn(seen, "completed")
    assert house.times == 1


async def test_an_answer_that_comes_just_before_the_crash_counts(house: House) -> None:
    """Wherever the crash falls between the answer and the effect: the call runs once, or is known to be uncertain."""
    for number in range(4):
        seen, approval = await house.ask(f"s{number}")
        before = house.times
        assert await house.answer(approval, "allow") == 200
        await asyncio.sleep(0.006 * number)
        await house.crash()
        async with Talker(house.daemon) as talker:
            if (await talker.turn(seen.turn))["state"] == "interrupted":
                await talker.post(f"turns/{seen.turn}/resume")
            await house.turn(seen, "completed")
            parts = [part for m in await talker.messages(f"s{number}") for part in m["parts"]]
        [outcome] = [part["outcome"] for part in parts if part["type"] == "tool_result"]
        assert house.times - before in ((1,) if outcome == "ok" else (0, 1)) and outcome in ("ok", "interrupted")
    assert house.models.refused() == []


async def test_the_next_message_does_not_need_the_answer(house: House) -> None:
    seen, approval = await house.ask()
    await house.crash()
    async with Talker(house.daemon) as talker:
        assert (await talker.say("something else")).text == "echo: something else"
    assert await house.answer(approval, "allow") == 200
    await house.turn(seen, "completed")
    assert house.times == 1 and house.models.refused() == []


async def test_time_runs_on_while_the_daemon_is_down(
    models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    agent = {"tools": ASKING, "running": {"approval_timeout": 3}}
    daemon = make_daemon(write_home(tmp_path / "home", models=models.url, agent=agent))
    house = House(await asyncio.to_thread(daemon.start), models)
    seen, approval = await house.ask()
    daemon.kill()
    await asyncio.sleep(3)  # the time limit itself
    await asyncio.to_thread(daemon.start)
    assert await house.open() == []
    assert await house.answer(approval, "allow") == 409
    async with Talker(daemon) as talker:
        await talker.post(f"turns/{seen.turn}/resume")
    turn = await house.turn(seen, "completed")
    assert "nobody answered in time" in turn["text"] and house.times == 0


async def test_a_polite_stop_keeps_the_question_too(
    models: ModelServer, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    config = {"lifecycle": {"shutdown_grace": 0.2}}
    daemon = make_daemon(write_home(tmp_path / "home", models=models.url, agent={"tools": ASKING}, config=config))
    house = House(await asyncio.to_thread(daemon.start), models)
    seen, approval = await house.ask()
    await asyncio.to_thread(daemon.restart)
    assert [question["id"] for question in await house.open()] == [approval]
    assert await house.answer(approval, "allow") == 200
    await house.turn(seen, "completed")
    assert house.times == 1


async def test_a_stopped_turn_takes_its_question_back(house: House) -> None:
    seen, approval = await house.ask()
    async with Talker(house.daemon) as talker:
        assert await talker.post("sessions/s1/stop") == {"stopped": True}
    await house.turn(seen, "cancelled")
    assert await house.open() == [] and await house.answer(approval, "allow") == 409
    assert house.times == 0
