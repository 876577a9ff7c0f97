"""Long-term memory in a real PostgreSQL: everything arrives once, is found, and nothing depends on it being there."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

from qworkspace.errors import InvalidInput, ModelError, Unavailable
from qworkspace.memory.contract import Query
from qworkspace.memory.outbox import Entry, TurnRecord
from qworkspace.memory.pg_archive import AWAY, SLOW, Link
from qworkspace.memory.pg_schema import STEPS
from qworkspace.memory.pg_store import PgStore
from tests.support.archives import ArchiveBench, WordEmbedder, found, said, texts
from tests.support.postgres import PASSWORD, PostgresServer, required_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = required_server()
    try:
        server.create()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ArchiveBench]:
    async with ArchiveBench(tmp_path) as bench:
        yield bench


def turns(server: PostgresServer, database: str) -> list[tuple[str, str]]:
    """(turn, part) of every row."""
    return [
        (row[0], row[1]) for row in server.execute("SELECT turn_id, part FROM qworkspace_turn ORDER BY 1, 2", database)
    ]


def asked(text: str) -> tuple[Query, str]:
    """The arguments of a search."""
    return Query(text), ""


def both(*numbers: int) -> list[tuple[str, str]]:
    return [(f"turn_{number:04}", part) for number in numbers for part in ("assistant", "user")]


async def test_what_was_said_is_found_again_by_words_and_by_meaning(server, bench):
    archive = await bench.archive(server.settings(server.database()))
    await archive.add(said(1, "my car is a blue Saab", "a fine choice"))
    await archive.add(said(2, "the physician is on Main Street", "noted"))
    await archive.add(said(3, "我最喜欢的餐厅是海底捞", "好的"))
    await archive.add(said(3, "我最喜欢的餐厅是海底捞", "好的"))
    await bench.settled(archive)
    [hit, *_] = await found(archive, "which Saab do I drive")
    assert (hit.text, hit.path, hit.origin) == ("my car is a blue Saab", "turns/s1/turn_0001", "database")
    assert (hit.date, hit.heading, hit.bm25_rank) == (date(2026, 1, 2), ("user",), 1)
    assert hit.score == pytest.approx(sum(hit.parts.values()))
    assert texts(await found(archive, "doctor street"))[0] == "the physician is on Main Street"
    assert texts(await found(archive, "automobile"))[0] == "my car is a blue Saab"
    assert texts(await found(archive, "喜欢哪家餐厅"))[0] == "我最喜欢的餐厅是海底捞"
    assert await found(archive, "zzz") == []


async def test_filters_by_day_user_and_path(server, bench):
    archive = await bench.archive(server.settings(server.database()))
    for number, user in ((1, "bob"), (2, "bob"), (3, "eve")):
        await archive.add(said(number, f"budget plan {number}", user_id=user))
    await bench.settled(archive)
    assert set(texts(await found(archive, "budget plan"))) == {"budget plan 1", "budget plan 2", "budget plan 3"}
    assert texts(await found(archive, "budget plan", user="eve")) == ["budget plan 3"]
    limited = await found(archive, "budget plan", since=date(2026, 1, 3), until=date(2026, 1, 3))
    assert texts(limited) == ["budget plan 2"]
    assert await found(archive, "budget plan", path_prefix="memory/") == []
    assert len(await found(archive, "budget plan", path_prefix="turns/s1/")) == 3


async def test_a_long_text_is_kept_whole_and_found_at_its_end(server, bench):
    name = server.database()
    archive = await bench.archive(server.settings(name))
    text = "\n".join(f"line {number} of the minutes" for number in range(4_000)) + "\nthe code word is xylophone"
    await archive.add(said(1, text, ""))
    await bench.settled(archive)
    assert "xylophone" in texts(await found(archive, "xylophone code word"))[0]
    rows = server.execute("SELECT text, embed FROM qworkspace_turn", name)
    assert sum(len(row[0]) for row in rows) >= len(text) - len(rows)
    assert sum(row[1] for row in rows) == 16


async def test_the_server_goes_and_comes_back_and_everything_arrives_once(server, bench):
    name = server.database()
    archive = await bench.archive(server.settings(name))
    await archive.add(said(1, "before the storm"))
    await bench.settled(archive)
    await asyncio.to_thread(server.stop)
    try:
        await archive.add(said(2, "during the storm"))
        message = await bench.problem("cannot be used")
        assert f"the database '{name}' at 127.0.0.1" in message and "turns wait to be stored" in message
        assert PASSWORD not in message
        await archive.add(said(3, "still during the storm"))
        assert await archive.search(*asked("storm")) == ([], AWAY)
        assert not archive.busy
    finally:
        await asyncio.to_thread(server.start)
    await bench.settled(archive)
    assert turns(server, name) == both(1, 2, 3)
    assert bench.problems.of() == []
    assert len(await found(archive, "storm")) == 3


async def test_killed_between_sending_and_noting_it_sends_again_and_stores_once(server, bench):
    name = server.database()
    settings = server.settings(name)
    command = [sys.executable, "-m", "tests.support.archive_process", str(bench.directory), json.dumps(settings)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"sent\n"
    process.kill()
    await process.wait()
    assert turns(server, name) == both(1, 2, 3)
    box = await bench.outbox()
    assert box.counts.waiting == 3
    await box.put(said(4, "fact 4"))
    await bench.settled(await bench.archive(settings, box=box))
    assert turns(server, name) == both(1, 2, 3, 4)
    assert box.counts.waiting == 0


async def test_several_daemons_make_the_tables_at_the_same_time(server, bench):
    name = server.database(extension=False)
    settings = server.settings(name, host=str(server.directory), user="admin")
    stores = [bench.store(settings, namespace=f"agent:{number}") for number in range(4)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.use_vectors("words", 512) for store in stores))
    finally:
        await asyncio.gather(*(store.close() for store in stores))
    assert server.execute("SELECT step FROM qworkspace_schema", name) == [(step,) for step in range(1, len(STEPS) + 1)]
    assert server.execute("SELECT id, dimensions FROM qworkspace_embedder", name) == [("words", 512)]
    indexes = "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%hnsw%'"
    assert server.execute(indexes, name) == [(1,)]


async def test_tables_of_an_older_version_are_brought_up_to_date_with_what_is_in_them(server, bench):
    name = server.database()
    settings = server.settings(name)
    await put_in(bench.store(settings), said(1, "told long ago"))
    newer = (*STEPS, "ALTER TABLE qworkspace_turn ADD COLUMN mood text NOT NULL DEFAULT 'calm'")
    await put_in(bench.store(settings, steps=newer), said(2, "told now"))
    assert server.execute("SELECT DISTINCT mood FROM qworkspace_turn", name) == [("calm",)]
    assert turns(server, name) == both(1, 2)
    broken = (*newer, "CREATE TABLE qworkspace_more (id int); SELECT 1/0")
    with pytest.raises(InvalidInput, match="division by zero"):
        await put_in(bench.store(settings, steps=broken), said(3, "never"))
    assert server.execute("SELECT to_regclass('qworkspace_more')", name) == [(None,)]
    with pytest.raises(Unavailable, match="newer version of qworkspace"):
        await put_in(bench.store(settings), said(3, "never"))


async def put_in(store: PgStore, record: TurnRecord) -> None:
    """Open, store, close."""
    try:
        await store.open()
        await store.deliver([Entry(1, "turn", record.session_id, record)])
    finally:
        await store.close()


async def test_a_wrong_password_is_said_without_showing_it(server, bench, caplog):
    settings = server.settings(server.database(), password="not the right one")
    archive = await bench.archive(settings)
    message = await bench.problem("password authentication failed")
    assert "not the right one" not in message and "not the right one" not in caplog.text
    server.execute("ALTER ROLE ann PASSWORD 'not the right one'")
    try:
        await archive.add(said(1, "hello"))
        await bench.settled(archive)
    finally:
        server.execute(f"ALTER ROLE ann PASSWORD '{PASSWORD}'")
    assert bench.problems.of() == [] and archive.link is Link.READY


async def test_an_unreadable_connection_string_is_not_quoted(bench):
    await bench.archive({"dsn": f"postgresql//ann:{PASSWORD}@host/db"})
    message = await bench.problem("running.memory.postgres.dsn is no connection string")
    assert PASSWORD not in message


async def test_a_missing_extension_is_told_with_what_to_run(server, bench):
    name = server.database(extension=False, owner="admin")
    server.execute("GRANT ALL ON SCHEMA public TO ann", name)
    archive = await bench.archive(server.settings(name))
    await archive.add(said(1, "hello"))
    assert f'psql -d {name} -c "CREATE EXTENSION vector"' in await bench.problem("pgvector is not switched on")
    server.execute("CREATE EXTENSION vector", name)
    await bench.settled(archive)
    assert turns(server, name) == both(1)
    assert bench.problems.of() == []


async def test_agents_do_not_see_each_other_unless_they_share(server, bench):
    settings = server.settings(server.database())
    anna, bert = await bench.archive(settings), await bench.archive(settings, agent="bert")
    await anna.add(said(1, "the safe opens with 4711"))
    await bench.settled(anna)
    await bench.settled(bert)
    assert await found(bert, "safe 4711") == []
    carl = await bench.archive(settings, agent="carl", namespace="shared")
    dora = await bench.archive(settings, agent="dora", namespace="shared")
    await carl.add(said(1, "the wifi is called Otter", agent_id="carl"))
    await bench.settled(carl)
    await bench.settled(dora)
    assert texts(await found(dora, "wifi Otter")) == ["the wifi is called Otter"]
    assert await found(anna, "wifi Otter") == []


async def test_a_forgotten_session_is_gone_from_outbox_and_database(server, bench):
    name = server.database()
    box = await bench.outbox()
    archive = await bench.archive(server.settings(name), box=box)
    await archive.add(said(1, "a secret", session_id="s1"))
    await archive.add(said(2, "no secret", session_id="s2"))
    await bench.settled(archive)
    archive.deactivate()
    await archive.add(said(3, "another secret", session_id="s1"))
    await archive.forget("s1")
    await archive.add(said(4, "a new talk under the old name", session_id="s1"))
    archive.activate()
    await bench.settled(archive)
    assert turns(server, name) == both(2, 4)


async def test_a_new_embedder_makes_new_vectors_and_words_find_meanwhile(server, bench):
    settings = server.settings(server.database())
    first = await bench.archive(settings)
    for number in range(40):
        await first.add(said(number, f"fact number {number} about a car", ""))
    await bench.settled(first)
    await first.close()
    embedder = WordEmbedder(48, "other words")
    embedder.failing = ModelError("the model is away", retryable=True)
    second = await bench.archive(settings, agent="anna", embedder=embedder, box=await bench.outbox("again"))
    assert "its vectors wait: the model is away" in await bench.problem("vectors")
    hits, partial = await second.search(*asked("fact about a car"))
    assert len(hits) == 40 and "searched by words alone" in partial
    embedder.failing = None
    await bench.settled(second)
    assert len(embedder.seen) == 40 and bench.problems.of() == []
    [hit, *_] = await found(second, "automobile")
    assert hit.vector_rank == 1 and hit.bm25_rank is None


async def test_a_text_that_the_model_refuses_stops_no_other(server, bench):
    embedder = WordEmbedder()
    embedder.refused = "forbidden"
    archive = await bench.archive(server.settings(server.database()), embedder=embedder)
    for number, word in enumerate(("one", "forbidden", "three")):
        await archive.add(said(number, f"{word} vehicle", ""))
    await bench.settled(archive)
    assert {hit.text: hit.vector_rank is not None for hit in await found(archive, "vehicle")} == {
        "one vehicle": True,
        "forbidden vehicle": False,
        "three vehicle": True,
    }


async def test_a_slow_database_is_not_waited_for(server, bench):
    name = server.database()
    archive = await bench.archive(server.settings(name))
    await archive.add(said(1, "hello world"))
    await bench.settled(archive)
    with server.locked("qworkspace_turn", name):
        for _ in range(3):
            looking = asyncio.ensure_future(archive.search(*asked("hello")))
            while not looking.done():
                await bench.clock.advance(11.0)
                await asyncio.wait({looking}, timeout=0.02)
            assert looking.result() == ([], SLOW)
        assert "the last 3 searches took longer than 10 s" in await bench.problem("searches")
        assert await archive.search(*asked("hello")) == ([], AWAY)
    await archive.add(said(2, "hello again"))
    await bench.settled(archive)
    assert set(texts(await found(archive, "hello"))) == {"hello world", "hello again"}
    assert bench.problems.of() == []


async def test_a_fault_of_our_own_is_told_and_ends_nothing(server, bench, monkeypatch, caplog):
    name = server.database()
    faults = [ValueError("of the store")]
    made = bench.store

    def make(*args, **kwargs):
        if faults:
            raise faults.pop()
        return made(*args, **kwargs)

    monkeypatch.setattr(bench, "store", make)
    embedder = WordEmbedder()
    embedder.failing = cast(Any, ValueError("of the embedder"))
    archive = await bench.archive(server.settings(name), embedder=embedder)
    await archive.add(said(1, "hello world"))
    assert "ValueError: of the store; see the log" in await bench.problem("turns wait")
    assert "ValueError: of the embedder" in await bench.problem("embedder")
    embedder.failing = None
    await bench.settled(archive)
    assert texts(await found(archive, "hello")) == ["hello world"]
    assert bench.problems.of() == [] and "Traceback" in caplog.text


async def test_a_search_that_the_end_cuts_short_says_so(server, bench):
    name = server.database()
    archive = await bench.archive(server.settings(name))
    await archive.add(said(1, "hello world"))
    await bench.settled(archive)
    looking = asyncio.ensure_future(archive.search(*asked("hello")))
    await asyncio.sleep(0)
    await archive.close()
    assert await looking == ([], AWAY)


async def test_what_was_damaged_while_it_waited_stops_no_other(server, bench):
    name = server.database()
    box = await bench.outbox()
    await box.put(said(1, "one"))
    await box.put(said(2, "two"))
    await box._database.write(lambda db: db.execute("UPDATE outbox SET body = x'00' WHERE turn_id = 'turn_0001'"))
    archive = await bench.archive(server.settings(name), box=box)
    await bench.settled(archive)
    assert turns(server, name) == both(2)
    assert "damaged on the disk" in await bench.problem("cannot be stored")
    assert (box.counts.waiting, box.counts.refused) == (0, 1)


async def test_nothing_is_held_after_the_end(server, bench):
    name = server.database()
    archive = await bench.archive(server.settings(name, pool_minconn=3))
    await archive.add(said(1, "hello"))
    await bench.settled(archive)
    await archive.close()
    await archive.close()
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    while server.execute(query) != [(0,)]:
        await asyncio.sleep(0.01)
    assert await archive.search(*asked("hello")) == ([], AWAY)
