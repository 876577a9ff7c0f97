"""agent.json is edited while people talk: each way an editor saves, and what cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.daemon import DaemonProcess, write_home
from tests.support.editing import SAVES, EditedAgent, in_place, until
from tests.support.model_process import ModelProcess
from tests.support.talking import Talker

WATCHES: dict[str, dict[str, Any]] = {
    "events": {"mode": "events"},
    "poll": {"mode": "poll", "poll_interval": 0.2},
}
WORDS = 20


@pytest.fixture(scope="module")
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture(scope="module", params=WATCHES)
def daemon(
    request: pytest.FixtureRequest, models: ModelProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon whose agent ticks like a scheduler, with its model library loaded."""
    config = {"watch": WATCHES[request.param]}
    home = write_home(tmp_path_factory.mktemp(request.param) / "home", models=models.url, config=config, memory=True)
    with DaemonProcess(home, module="tests.support.ticking") as process:
        process.chat("are you there?", session="warm")
        assert process.get("/api/status")["watch_mode"] == request.param
        yield process


@pytest.fixture
async def agent(daemon: DaemonProcess, models: ModelProcess) -> AsyncIterator[EditedAgent]:
    async with Talker(daemon) as talker:
        yield EditedAgent(daemon, models, talker)


by_events = pytest.mark.parametrize("daemon", ["events"], indirect=True)


@pytest.mark.parametrize("way", SAVES)
async def test_each_way_of_saving_serves_the_new_value_and_disturbs_nobody(agent: EditedAgent, way: str) -> None:
    known = len(await agent.reloads())
    name, session = f"{way.title()} {known}", way.replace(" ", "-").replace(",", "")
    text = agent.text(name=name, heartbeat={"every": f"{known + 1}m"})
    async with agent.talker.sending("[[slow:0.05]] " + "word " * WORDS, session) as (
        seen,
        events,
    ):
        async for event in events:
            if event.type == "text.delta":
                break
        await SAVES[way](agent.file, text)
        done = await agent.reloaded(known)
        assert f"You are {name} (default)." in await agent.prompt()
        async for _ in events:
            pass
    assert seen.end is not None and seen.end.type == "turn.completed"
    assert seen.end.data["text"] == seen.text == "echo: " + " ".join(["word"] * WORDS)
    assert (done["outcome"], done["rebuilt"]) == ("applied", ["ticker"])
    assert {"name", "heartbeat.every"} <= set(done["changed"])
    assert {"sessions", "chats"} <= set(done["moved"])
    assert agent.ticks.flawless, agent.ticks
    assert await agent.problems() == []


async def test_a_rewrite_with_the_same_meaning_is_no_reload(agent: EditedAgent) -> None:
    await agent.put(name="Same", description="x")
    known = len(await agent.reloads())
    await in_place(agent.file, '{"description":"x",\r\n\r\n"name":\t"Same", "id":"default"}')
    await agent.edited("SOUL.md", f"Noticed after it, at {time.time_ns()}.")
    await asyncio.sleep(0.3)
    assert len(await agent.reloads()) == known


@by_events
async def test_a_byte_order_mark_and_other_line_ends_are_fine(agent: EditedAgent) -> None:
    known = len(await agent.reloads())
    text = agent.text(name="Windows", heartbeat={"every": "77m"})
    agent.file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert (await agent.reloaded(known))["outcome"] == "applied"
    assert "You are Windows (default)." in await agent.prompt()


BAD: dict[str, tuple[str, int, int, tuple[str, ...], str | None]] = {
    "partly written": ('{\n  "id": "default",\n  "name": "Ha', 3, 11, ("not closed",), None),
    "empty": ("", 1, 1, ("empty",), None),
    "no object": ("[]", 1, 1, ("must be a JSON object",), None),
    "a key twice": ('{\n  "name": "A",\n  "name": "B"\n}', 3, 3, ('"name"', "line 2"), None),
    "wrong type": ('{\n  "running": {\n    "max_iters": "many"\n  }\n}', 3, 18, ("running.max_iters", "'many'"), None),
    "out of range": ('{\n  "running": {"max_iters": 0}\n}', 2, 28, ("at least 1", "not 0"), None),
    "wrong word": ('{\n  "running": {"if_busy": "queu"}\n}', 2, 26, ("'queu'", 'did you mean "queue"'), "queue"),
    "no duration": ('{"heartbeat": {"every": "soon"}}', 1, 25, ("heartbeat.every", "'soon'"), None),
    "misspelt key": (
        '{"tools": {"x": {"policy": [{"decison": "allow"}]}}}',
        1,
        41,
        ("tools.x.policy[0].decision is missing", '"decison"'),
        "decision",
    ),
    "unknown variable": (
        '{\n  "channels": {"chat": {"enabled": true,\n    "bot_token": "${NO_SUCH_NAME}"}}\n}',
        3,
        18,
        ("${NO_SUCH_NAME}", "channels.chat.bot_token"),
        None,
    ),
    "another id": ('{\n  "id": "other"\n}', 2, 9, ("'other'", "'default'"), None),
}


@by_events
@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_file_changes_nothing_and_says_where_it_is_wrong(agent: EditedAgent, kind: str) -> None:
    text, line, column, words, near = BAD[kind]
    await agent.put(name=f"Before {kind}")
    known, logged = len(await agent.reloads()), len(agent.daemon.log())

    await in_place(agent.file, text)
    [problem] = await until(lambda: agent.problems())
    place = f"{agent.file}:{line}:{column}: "
    assert problem["severity"] == "error"
    assert problem["message"].startswith(place) and "last valid configuration stays in use" in problem["message"]
    for word in words:
        assert word in problem["message"]
    failed = await agent.refused(known)
    assert (failed["outcome"], failed["error"]["file"]) == ("failed", str(agent.file))
    assert (failed["error"]["line"], failed["error"]["column"]) == (line, column)
    assert failed["error"].get("near") == near
    assert f"You are Before {kind} (default)." in await agent.prompt()

    await agent.talker.post("reload")  # asked again, it is the same problem
    assert _logged(agent, problem["message"], logged) == 1
    assert await _filed(agent, problem) == 1

    await in_place(agent.file, agent.text(name=f"After {kind}"))
    await agent.serves(f"After {kind}")
    assert await agent.problems() == []
    assert (await agent.reloads())[0]["outcome"] == "live"
    assert len(await agent.reloads()) == known + 3
    assert (_logged(agent, problem["message"], logged), await _filed(agent, problem)) == (1, 1)


@by_events
async def test_unknown_keys_are_shown_and_the_rest_counts(agent: EditedAgent) -> None:
    await in_place(agent.file, '{\n  "id": "default",\n  "name": "Kept",\n  "heartbet": {}\n}')
    await agent.serves("Kept")
    [problem] = await until(lambda: agent.problems())
    assert problem["severity"] == "warning"
    assert f"{agent.file}:4: unknown key 'heartbet', did you mean 'heartbeat'?" in problem["message"]
    assert (await agent.talker.get("config"))["heartbet"] == {}
    await in_place(agent.file, agent.text(name="Gone"))
    await until(lambda: _has_no_problems(agent))


@by_events
async def test_a_file_that_is_gone_for_long_is_a_bad_file(agent: EditedAgent) -> None:
    agent.file.unlink()
    [problem] = await until(lambda: agent.problems())
    assert "there is no such file" in problem["message"]
    assert await agent.prompt()
    await in_place(agent.file, agent.text(name="Back"))
    await agent.serves("Back")
    assert await agent.problems() == []


async def _has_no_problems(agent: EditedAgent) -> bool:
    return not await agent.problems()


def _logged(agent: EditedAgent, message: str, since: int) -> int:
    """How often the log says so as an error, from that line on."""
    return sum(line["level"] == "error" and line["message"] == message for line in agent.daemon.log()[since:])


async def _filed(agent: EditedAgent, problem: dict[str, Any]) -> int:
    """How many items of the inbox stand for that problem, which is as old as the items are."""
    items = (await agent.talker.get("/api/inbox", params={"limit": 200}))["items"]
    return sum(
        item["body"] == problem["message"] and item["agent_id"] == agent.name and item["created_at"] >= problem["since"]
        for item in items
    )
