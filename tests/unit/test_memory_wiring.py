"""The memory service of a workspace: which backend, when it moves, who acts, what it costs, what happens without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.memory.contract import BaseMemoryManager, MemoryBackends, NoMemory, Query
from qworkspace.memory.markdown import MarkdownMemory
from qworkspace.memory.notes import Author
from qworkspace.memory.parts import MemoryParts
from qworkspace.sessions.models import TurnState
from tests.support.households import Household, eventually

TALK = "- The dog of the family is called Rex.\n"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Household]:
    async with Household(tmp_path / "home", ("anna", "bert")) as house:
        yield house


async def found(house: Household, question: str, agent: str = "anna") -> list[str]:
    hits = (await (await house.memory(agent)).search(Query(question))).hits
    return [hit.path for hit in hits]


async def test_an_edit_elsewhere_moves_the_memory_and_one_of_its_own_keeps_what_was_queued(house: Household) -> None:
    house.write("memory/2026-03-14.md", f"# Saturday\n\n{TALK}\n- The car is red.\n")
    await house.ask("hello")
    memory = await house.memory()
    assert await found(house, "dog Rex") == ["memory/2026-03-14.md"]
    await memory.add_summarize_task("s1", reason="asked")
    edited = await house.edit(heartbeat={"every": "1h"}, running={"max_iters": 7}, name="Anna")
    assert edited is not None and (await house.memory()) is memory
    reload = await house.edit(heartbeat={"every": "1h"}, running={"memory": {"auto_memory_interval": 3}})
    assert reload is not None and reload.rebuilt == ("memory",)
    successor = await house.memory()
    assert successor is not memory and successor.index is not memory.index
    assert [task.session_id for task in await successor.tasks()] == ["s1"]
    await eventually(lambda: successor.queue.status().waits_for)
    assert "model" in successor.queue.status().waits_for and not successor.busy
    assert await found(house, "dog Rex") == ["memory/2026-03-14.md"]
    assert house.told() == []


async def test_of_two_instances_one_acts_and_the_old_one_answers_its_turns(house: Household) -> None:
    house.write("memory/2026-03-14.md", f"{TALK}\n- The car is red.\n")
    workspace = await house.workspace()
    old = await house.memory()
    await found(house, "Rex")
    with workspace.hold():
        await house.edit(running={"memory": {"min_score": 0.01}})
        new = await house.memory()
        assert old.parts.daemon.acting(old.parts.state_dir) is new and not old.upkeep.active
        assert [hit.path for hit in (await old.search(Query("Rex"))).hits] == ["memory/2026-03-14.md"]
        await old.ready()
        await old.vault.append("memory/2026-03-15.md", "- The cat is called Minka.", by=Author("tool"))
        await eventually(lambda: new.index.status().files == 2)  # told to the one that acts
        await old.add_summarize_task("s1", reason="asked")
        assert [task.session_id for task in await new.tasks()] == ["s1"]
    assert await found(house, "Minka") == ["memory/2026-03-15.md"]


async def test_what_is_wrong_with_the_notes_is_told_by_the_instance_that_acts(house: Household) -> None:
    house.write("memory/2026-03-14.md", TALK)
    (house.folder() / "memory/photo.md").write_bytes(bytes(range(256)) * 20)
    workspace = await house.workspace()
    old = await house.memory()
    await found(house, "Rex")
    await eventually(house.told)
    with workspace.hold():
        await house.edit(running={"memory": {"min_score": 0.01}})
        await found(house, "Rex")
        await eventually(house.told)
    await eventually(lambda: not old.upkeep.index_opened)  # it has ended
    assert ["photo.md" in told for told in house.told()] == [True]
    await house.edit(running={"memory_manager_backend": "none"})
    assert house.told() == []


async def test_a_successor_begins_when_all_before_it_are_quiet(house: Household) -> None:
    old = await house.memory()
    daemon, state = old.parts.daemon, old.parts.state_dir
    halted, slow = asyncio.Event(), asyncio.Event()
    old.index.halted = halted.wait  # type: ignore[method-assign,assignment]
    old.deactivate()
    closing = asyncio.ensure_future(old.close())
    between = asyncio.ensure_future(slow.wait())
    daemon.end(state, NoMemory(), between)  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(daemon.until_quiet(state))
    for event in (slow, halted):
        await asyncio.wait({waiting}, timeout=0.02)
        assert not waiting.done() and not closing.done()
        event.set()
    await waiting
    await asyncio.gather(closing, between)


async def test_an_unknown_backend_falls_back_with_a_warning_until_it_is_mended(house: Household) -> None:
    await house.edit(running={"memory_manager_backend": "remelihgt"})
    assert isinstance(await house.memory(), MarkdownMemory)
    [told] = house.told()
    assert "remelihgt" in told and "'markdown' is used instead" in told
    assert house.problems.of("anna")[0].severity == "warning"
    for name, backend in (("remelight", "markdown"), ("none", "none")):
        await house.edit(running={"memory_manager_backend": name})
        assert (await house.workspace()).memory.backend == backend and house.told() == []
    assert "memory_search" not in list((await house.workspace()).extensions.tools)


class Broken(NoMemory):
    backend = "broken"

    async def start(self) -> None:
        raise OSError("the notes are on a disk that is gone")


async def test_without_its_memory_the_agent_chats_and_says_why(house: Household) -> None:
    house.assembly.memory.backends.add("broken", lambda parts: Broken(), owner="test")
    await house.edit(running={"memory_manager_backend": "broken"})
    live = await house.ask("hello")
    assert (await live.done).state is TurnState.COMPLETED
    workspace = await house.workspace()
    assert workspace.memory.backend == "none" and "memory_write" not in list(workspace.extensions.tools)
    assert "disk that is gone" in workspace.state()["memory"]["reason"] and "disk that is gone" in house.told()[0]
    await house.edit()
    assert "memory_write" in list((await house.workspace()).extensions.tools)
    await eventually(lambda: house.told() == [])  # with the end of the instance that had none


class Busy(NoMemory):
    def __init__(self) -> None:
        self.working = True

    @property
    def busy(self) -> bool:
        return self.working


async def test_a_change_that_can_be_undone_is_told_once_and_each_failure_by_itself(house: Household) -> None:
    memory = await house.memory()
    for title, group in (("dreamt", "dream_1"), ("dreamt", "dream_1"), ("refused", ""), ("refused again", "")):
        await memory.parts.tell(title, "…", group)
    items, _ = await (await house.workspace()).shared.inbox.list()
    assert sorted(item.title for item in items) == ["dreamt", "refused", "refused again"]


async def test_work_on_memory_keeps_an_agent_from_being_unloaded(house: Household) -> None:
    made: list[Busy] = []

    def make(parts: MemoryParts) -> BaseMemoryManager:
        made.append(Busy())
        return made[-1]

    house.assembly.memory.backends.add("busy", make, owner="test")
    await house.edit(running={"memory_manager_backend": "busy"})
    workspace = await house.workspace()
    assert workspace.busy
    made[-1].working = False
    assert not workspace.busy


async def test_a_start_opens_nothing(house: Household) -> None:
    house.write("memory/2026-03-14.md", TALK)
    memory = await house.memory()
    await asyncio.sleep(0.1)
    assert [path.name for path in (house.folder() / ".state").iterdir() if "sessions" not in path.name] == []
    assert memory.status().pending == 1 and memory.status().state == "indexing" and not memory.busy
    assert await found(house, "what is the dog called?") == ["memory/2026-03-14.md"]
    assert (house.folder() / ".state" / "index.db").exists() and not (house.folder() / ".state" / "memory.db").exists()
    assert await found(house, "what is the dog called?", "bert") == []


async def test_edits_reach_the_index_through_the_one_watch(house: Household) -> None:
    await house.edit(running={"memory": {"daily_dir": "diary"}})
    memory = await house.memory()
    await memory.search(Query("warm"))
    await house.assembly.watch_files(lambda home: None)
    house.write("diary/2026/03-14.md", f"# Saturday\n\n{TALK}\n- The car is red.\n")
    house.write("AGENTS.md", "# Lessons\n\nAsk before calling a plumber.\n")
    await eventually(lambda: memory.index.status().files == 2)
    await memory.index.settled()
    assert (await found(house, "plumber"))[0] == "AGENTS.md"
    assert (await found(house, "Rex"))[0] == "diary/2026/03-14.md"
    (house.folder() / "diary/2026/03-14.md").unlink()
    await eventually(lambda: memory.index.status().files == 1)
    await house.edit(running={"memory": {"daily_dir": "journal"}})
    memory = await house.memory()
    await memory.search(Query("warm"))
    await asyncio.sleep(0.5)
    house.write("journal/2026-03-15.md", "- Minka is a cat.\n")
    await eventually(lambda: memory.index.status().files == 2)


async def test_another_embedder_in_config_json_makes_another_memory(house: Household) -> None:
    memory = await house.memory()
    await house.assembly.watch_files(lambda home: None)
    providers = {"p": {"type": "openai", "api_key": "k", "base_url": "http://127.0.0.1:9/v1"}}
    embedding = {"provider": "p", "name": "text-embedding-3-small"}
    house.config.patch_home({"providers": providers, "embedding": embedding})
    workspace = await house.workspace()
    await eventually(lambda: workspace.current.workspace.memory is not memory)
    successor = await house.memory()
    assert successor.status().embedder.startswith("p/text-embedding-3-small")
    house.config.patch_home({"roles": {"light": "p/small"}})
    await asyncio.sleep(0.5)
    assert await house.memory() is successor


async def test_the_offline_answer_is_what_memory_holds(house: Household) -> None:
    house.write("memory/2026-03-14.md", f"# Saturday\n\n{TALK}\n- The car is red.\n")
    await house.memory()
    live = await house.ask("what is our dog called?")
    text = (await live.done).text
    assert "This is what my memory holds" in text and "Rex" in text and "memory/2026-03-14.md:" in text
    assert "memory holds" not in (await (await house.ask("hello")).done).text


def test_backends_have_names_aliases_and_an_undo() -> None:
    backends = MemoryBackends()
    backends.add("markdown", lambda parts: NoMemory(), owner="test", aliases=("remelight",))
    undo = backends.add("other", lambda parts: Broken(), owner="test")
    assert backends.choose("remelight")[0] == "markdown" and backends.choose("other")[2] == ""
    undo()
    assert "'markdown' is used instead" in backends.choose("other")[2]
