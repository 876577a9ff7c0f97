"""An agent with the backend `pgvector`: what is told arrives, is recalled, forgotten, and the notes work without it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.memory.contract import Query
from qworkspace.memory.outbox import OutboxCounts
from qworkspace.memory.pg_archive import AWAY
from qworkspace.memory.postgres import PgvectorMemory
from tests.support.households import Household, eventually
from tests.support.postgres import PASSWORD, PostgresServer, required_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = required_server()
    try:
        server.create()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Household]:
    async with Household(tmp_path / "home", agents=("anna", "bert")) as house:
        yield house


async def long_term(house: Household, settings: dict[str, Any] | None, agent: str = "anna") -> PgvectorMemory:
    """The memory of an agent whose turns go to that database."""
    memory = {"postgres": settings} if settings is not None else {}
    await house.edit(agent, running={"memory_manager_backend": "adbpg", "memory": memory})
    found = await house.memory(agent)
    assert isinstance(found, PgvectorMemory)
    return found


async def test_what_is_told_is_stored_recalled_and_forgotten_with_the_session(house, server):
    name = server.database()
    memory = await long_term(house, server.settings(name))
    house.write("memory/2026-01-02.md", "- The dog is called Rex.\n")
    await house.ask("My favourite tea is Lapsang Souchong.", session="s1", user_id="eve")
    told = "SELECT namespace, session_id, user_id, text FROM qworkspace_turn WHERE part = 'user'"
    rows: list[tuple[str, ...]] = []
    while not rows:  # a turn goes to the archive once it is stored, which is after its answer
        await asyncio.sleep(0.05)
        await memory.archive.settled()
        rows = server.execute(told, name)
    assert rows == [("agent:anna", "s1", "eve", "My favourite tea is Lapsang Souchong.")]
    found = await memory.search(Query("favourite tea Lapsang and the dog Rex"))
    assert {hit.origin for hit in found.hits} == {"vault", "database"} and found.partial == ""
    assert found.hits[0].path == "memory/2026-01-02.md"
    live = await house.ask("Which favourite tea, Lapsang?", session="s2", user_id="eve")
    [recalled] = [event for event in live.log.since(0) if event.type == "memory.recalled"]
    assert any("Lapsang Souchong" in hit["text"] for hit in recalled.data["hits"])
    while len(server.execute(told, name)) < 2:
        await asyncio.sleep(0.05)
    await memory.archive.settled()
    await memory.forget("s1")
    await memory.archive.settled()
    assert server.execute("SELECT DISTINCT session_id FROM qworkspace_turn", name) == [("s2",)]
    assert memory.status().details["database"] == {"state": "ready", "waiting": 0, "refused": 0, "dropped": 0}


async def test_without_a_database_the_notes_work_and_turns_wait_for_it(house, server):
    memory = await long_term(house, None)
    house.write("memory/2026-01-02.md", "- The dog is called Rex.\n")
    await house.ask("I moved to Porto.")
    await eventually(lambda: memory.outbox.counts.waiting == 1)
    await eventually(lambda: any("running.memory.postgres" in told for told in house.told()))
    found = await memory.search(Query("what is the dog called"))
    assert [hit.path for hit in found.hits] == ["memory/2026-01-02.md"] and found.partial == AWAY
    name = server.database()
    memory = await long_term(house, server.settings(name))
    await memory.archive.settled()
    assert server.execute("SELECT text FROM qworkspace_turn WHERE part = 'user'", name) == [("I moved to Porto.",)]
    assert memory.outbox.counts == OutboxCounts()
    await eventually(lambda: house.told() == [])


async def test_a_turn_that_a_crash_kept_from_the_outbox_is_caught_up_with(house, server):
    memory = await long_term(house, server.settings(server.database()))
    await house.ask("The first fact is granite.")
    await memory.archive.settled()
    await house.edit()
    await house.ask("The second fact is marble.")  # as if the outbox had not come to it
    name = server.database()
    memory = await long_term(house, server.settings(name))
    await eventually(lambda: server.execute("SELECT to_regclass('qworkspace_turn')", name) != [(None,)])
    await memory.archive.settled()
    rows = server.execute("SELECT text FROM qworkspace_turn WHERE part = 'user' ORDER BY turn_id", name)
    assert rows == [("The first fact is granite.",), ("The second fact is marble.",)]


async def test_agents_share_a_namespace_when_isolation_is_off(house, server):
    settings = server.settings(server.database(), memory_isolation=False)
    anna, bert = await long_term(house, settings), await long_term(house, settings, "bert")
    await house.ask("The gate code is 4711.", agent="anna")
    await anna.archive.settled()
    await bert.archive.settled()
    [hit, *_] = (await bert.search(Query("gate code"))).hits
    assert hit.text == "The gate code is 4711."


async def test_a_missing_extra_is_named_with_what_installs_it(house, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "qworkspace.memory.pg_store", None)
    memory = await long_term(house, {"host": "127.0.0.1", "password": PASSWORD})
    await eventually(lambda: any("pip install 'qworkspace[postgres]'" in told for told in house.told()))
    assert PASSWORD not in str(memory.status()) + str(house.told())
