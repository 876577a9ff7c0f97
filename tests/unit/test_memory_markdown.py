"""The markdown backend: its guidance and tools, what it queues and when, documents, dreams, and the model it asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from qworkspace.base.scope import Scope
from qworkspace.chat.asking import ModelAsk
from qworkspace.config.models import AgentConfig
from qworkspace.errors import ModelError, QworkspaceError, Unavailable
from qworkspace.memory.asking import NoModel
from qworkspace.memory.contract import Found, Hit, Query
from qworkspace.memory.memory_tools import GetArgs, SearchArgs, WriteArgs, as_lines, as_text, excerpt
from qworkspace.memory.notes import Author
from qworkspace.memory.prompts import guidance, words_of
from tests.support.households import Household, eventually
from tests.support.model_replies import Reply, text
from tests.support.model_server import ModelServer


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Household]:
    async with Household(tmp_path / "home") as house:
        yield house


async def use(house: Household, name: str, **args: Any) -> str:
    """What the tool of that name answers in a conversation."""
    tools = {tool.name: tool for tool in (await house.memory()).list_memory_tools()}
    scope = Scope("anna", house.folder(), session_id="s1", turn_id="turn_1")
    return await tools[name].run(scope, tools[name].args.model_validate(args))


@pytest.mark.parametrize("language", ["auto", "en", "zh"])
def test_the_guidance_says_where_how_and_what_is_data(language: str) -> None:
    told = guidance(language, "diary", "topics")
    for word in ("diary/", "topics/", "MEMORY.md", "memory_write", "memory_search", "~~"):
        assert word in told
    assert ("先写下来，再回答" if language == "zh" else "Write it down before you answer") in told
    assert "min_score" in words_of(language).search


async def test_notes_are_written_found_and_read_by_tools(house: Household) -> None:
    memory = await house.memory()
    assert await use(house, "memory_write", text="The boiler is from 2019.") == f"kept in {memory.vault.today()}"
    assert (house.folder() / memory.vault.today()).read_text().endswith("- The boiler is from 2019.\n")
    [change] = (await memory.history.list()).changes
    assert (change.by.kind, change.by.session_id, change.by.turn_id) == ("tool", "s1", "turn_1")
    house.write("PROFILE.md", "# Ann\n\n## Food\n\nEats everything.\n")
    assert "kept in PROFILE.md" in await use(
        house, "memory_write", file="PROFILE.md", section="## Food", text="No fish."
    )
    assert "said so already" in await use(house, "memory_write", file="PROFILE.md", section="Food", text="No fish.")
    assert "No fish." in await use(house, "memory_get", path="PROFILE")
    answer = await use(house, "memory_search", query="how old is the boiler?")
    assert "The boiler is from 2019." in answer and f"{memory.vault.today()}:" in answer and "score" in answer
    for wrong in ("../../config.json", ".state/memory.db", "agent.json"):
        with pytest.raises(QworkspaceError):
            await use(house, "memory_get", path=wrong)


async def test_a_person_looks_up_and_consolidates_with_commands(house: Household) -> None:
    house.write("memory/2026-03-14.md", "# Saturday\n\n- The dog is called Rex.\n")
    await (await house.memory()).search(Query("warm"))
    answer = (await (await house.ask("/memory what is the dog called?")).done).text
    assert "`memory/2026-03-14.md:" in answer and "> - The dog is called Rex." in answer
    assert "- notes: 1" in (await (await house.ask("/memory")).done).text
    assert "Nothing has changed" in (await (await house.ask("/dream")).done).text
    assert "/memory [question]" in (await (await house.ask("/help")).done).text


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (WriteArgs, {"text": " \n"}),
        (WriteArgs, {"text": "x", "file": "MEMORY.md"}),
        (WriteArgs, {"text": "x", "file": "SOUL.md", "section": "a"}),
        (GetArgs, {"path": "a", "start_line": 3, "end_line": 2}),
        (SearchArgs, {"query": ""}),
        (SearchArgs, {"query": "a", "since": "yesterday"}),
        (SearchArgs, {"query": "a", "limit": 3}),
    ],
)
def test_tools_refuse_arguments_that_make_no_sense(args: type[Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        args.model_validate(wrong)
    assert SearchArgs.model_validate({"query": "a"}).min_score == 0


def test_what_tools_show() -> None:
    hit = Hit("memory/a.md", 3, 4, "one\ntwo", 0.5, vector_rank=2, heading=("Trip",))
    shown = as_text(Found((hit,), "still indexing"))
    assert shown.startswith("Not everything was searched: still indexing.") and "(score 0.50, meaning #2)" in shown
    assert "1. memory/a.md:3-4 · Trip" in shown and "other words" in as_text(Found())
    assert excerpt("a\nb\x0cc\nd\n", 2, 3, "n.md") == "n.md, lines 2-3 of 3:\nb\x0cc\nd"
    assert excerpt("", 1, None, "n.md") == "n.md is empty" and excerpt("a", 5, None, "n.md") == "n.md has 1 lines"
    assert as_lines("It rains.") == ["- It rains."] and as_lines("- a\n- b\n") == ["- a", "- b"]


async def test_what_is_queued_and_what_is_not(house: Household) -> None:
    memory = await house.memory()
    await house.ask("hello")
    await memory.leaving("s1", "new")
    await memory.leaving("s2", "compact")
    assert {task.session_id for task in await memory.tasks()} == {"s1", "s2"}
    await house.edit(running={"memory": {"summarize_when_compact": False}})
    memory = await house.memory()
    await memory.leaving("s3", "compact")
    await house.edit(running={"memory": {"auto_memory_interval": 0}})
    memory = await house.memory()
    await memory.leaving("s4", "new")
    assert {task.session_id for task in await memory.tasks()} == {"s1", "s2"} and memory.status().pending == 0
    await house.ask("hello", session="s4")
    assert not memory.replies._turns


async def test_every_nth_answer_of_a_person_is_queued_once_it_is_stored(house: Household) -> None:
    await house.edit(running={"memory": {"auto_memory_interval": 2}})
    memory = await house.memory()
    await house.ask("look", session="own", source="heartbeat")
    await house.ask("look", session="own", source="heartbeat")
    await house.ask("one")
    await house.ask("two")
    await eventually(lambda: memory.queue.status().waits_for)
    assert [task.session_id for task in await memory.tasks()] == ["s1"]
    assert "model" in memory.status().details["queue"]["waits_for"] and memory.status().state in ("waiting", "indexing")


async def test_a_document_becomes_a_note_by_itself(house: Household) -> None:
    memory = await house.memory()
    await house.assembly.watch_files(lambda home: None)
    house.write("resources/boiler.html", "<h1>Boiler</h1><p>Made in 2019 by Feuerstein, serial number 4711.</p>")
    await eventually(lambda: list((house.folder() / "digest").glob("*.md")))
    found = await memory.search(Query("who made the boiler? Feuerstein"))
    assert found.hits and found.hits[0].path.startswith("digest/")
    assert await memory.auto_resource() == 0


async def test_undo_brings_yesterdays_bytes_back(house: Household) -> None:
    house.write("MEMORY.md", "# Memory\n\n- old\n")
    memory = await house.memory()
    await memory.ready()
    await memory.vault.write("MEMORY.md", "# Memory\n\n- new\n", by=Author("dream", group="d1"))
    await memory.vault.undo("d1")
    assert (house.folder() / "MEMORY.md").read_text() == "# Memory\n\n- old\n"


async def test_a_memory_that_has_ended_says_so(house: Household) -> None:
    memory = await house.memory()
    await memory.search(Query("x"))
    await house.assembly.manager.stop(0)
    assert "not" in (await memory.index.search(Query("x"))).partial
    with pytest.raises(QworkspaceError):
        await memory.ready()


async def test_whoever_waits_for_a_memory_that_ends_is_told(house: Household) -> None:
    memory = await house.memory()
    memory.database.open = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    waiting = asyncio.ensure_future(memory.ready())
    await asyncio.sleep(0.01)
    await memory.close()
    with pytest.raises(Unavailable, match="has ended"):
        await waiting


def ask_of(house: Household, **config: Any) -> ModelAsk:
    agent = AgentConfig.model_validate({"id": "anna", "running": {"retry": {"attempts": 1}}, **config})
    models = house.assembly.models
    return ModelAsk(models, lambda: agent, agent_id="anna", bus=house.bus, clock=house.clock)


async def test_nobody_is_asked_offline(house: Household) -> None:
    with pytest.raises(NoModel):
        await ask_of(house)("system", "question", purpose="extract")


async def test_the_light_model_is_asked_else_the_agents_and_its_tokens_are_told(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def script(body: dict[str, Any]) -> Reply:
        asked.append(body)
        return text(f"from {body['model']}") if body["model"] != "broken" else Reply(status=400, message="no")

    async with (
        ModelServer(script, models=("scripted", "small")) as server,
        Household(tmp_path / "home", models=server.url) as house,
    ):
        ask = ask_of(house)
        assert await ask("be short", "what?", purpose="dream") == "from scripted"
        house.config.patch_home({"roles": {"light": "scripted/small"}})
        assert await ask("be short", "what?", purpose="extract") == "from small"
        assert [m["content"] for m in asked[-1]["messages"]] == ["be short", "what?"]
        used = [event.data for event in house.bus.log.since(0) if event.type == "model.used"]
        assert [(one["purpose"], one["model"]) for one in used] == [
            ("dream", "scripted/scripted"),
            ("extract", "scripted/small"),
        ]
        assert used[0]["usage"]["requests"] == 1 and used[0]["agent_id"] == "anna"
        house.config.patch_home({"roles": {"light": "scripted/broken"}, "default_model": "scripted/broken"})
        with pytest.raises(ModelError):
            await ask("be short", "what?", purpose="extract")


async def test_missed_days_are_dreamt_a_while_after_the_start(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("qworkspace.memory.upkeep.DREAM_SECONDS", 0.05)
    async with (
        ModelServer(lambda body: text(json.dumps({}))) as server,
        Household(tmp_path / "home", models=server.url) as house,
    ):
        day = (house.clock.now() - timedelta(days=3)).date()
        house.write(f"memory/{day}.md", "- The dog is called Rex.\n")
        await house.memory()
        await eventually(lambda: server.count)
        assert "Rex" in str(server.last.body["messages"])
