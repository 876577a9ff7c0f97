"""The inbox: what is added once, read, removed, bounded; and the problems that are told in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.database import Database
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.errors import InvalidInput, NotFound
from qworkspace.inbox import KEPT, KEPT_DAYS, MIGRATIONS, InboxItem, InboxStore, ProblemsToInbox

DAY = 86_400


class Box:
    """An inbox over a real database; `again` is what a restart of the daemon makes of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SimulatedClock()
        self.threads = Threads(2)
        self._begin()

    def _begin(self) -> None:
        self.bus = EventBus(self.clock)
        self.problems = Problems(self.clock, self.bus)
        self.database = Database(self.path, migrations={"inbox": MIGRATIONS}, threads=self.threads)
        self.inbox = InboxStore(self.database, clock=self.clock, bus=self.bus)
        self.filing = ProblemsToInbox(self.inbox, self.problems, self.bus)

    async def __aenter__(self) -> Self:
        await self.database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.filing.stop()
        await self.database.close()
        await asyncio.to_thread(self.threads.close)

    async def again(self) -> None:
        await self.filing.stop()
        await self.database.close()
        self._begin()
        await self.database.open()

    async def titles(self, *, unread: bool = False) -> list[str]:
        return [item.title for item in (await self.inbox.list(unread=unread))[0]]

    async def told(self) -> list[InboxItem]:
        """The items, once everything that has happened is filed."""
        await self.filing.idle()
        return (await self.inbox.list())[0]

    def events(self) -> list[str]:
        return [event.type for event in self.bus.log.since(0) if event.type.startswith("inbox.")]


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    async with Box(tmp_path / "home.db") as box:
        yield box


async def add(box: Box, title: str, *, agent: str | None = None, key: str | None = None) -> InboxItem | None:
    box.clock.jump(1)
    return await box.inbox.add("job", title, "what came of it", agent_id=agent, key=key)


async def test_items_come_newest_first_in_pages_and_by_agent(box: Box) -> None:
    for number in range(5):
        await add(box, f"run {number}", agent="anna" if number % 2 else "bert")
    first, cursor = await box.inbox.list(2)
    assert [item.title for item in first] == ["run 4", "run 3"]
    await add(box, "late")
    second, cursor = await box.inbox.list(2, cursor)
    assert [item.title for item in second] == ["run 2", "run 1"]
    last, cursor = await box.inbox.list(2, cursor)
    assert ([item.title for item in last], cursor) == (["run 0"], None)
    assert [item.title for item in (await box.inbox.list(agent_id="anna"))[0]] == ["run 3", "run 1"]


@pytest.mark.parametrize("cursor", ["", "x", "-1", "²", "9" * 40])
async def test_a_cursor_that_was_not_given_out_is_refused(box: Box, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        await box.inbox.list(cursor=cursor)


async def test_an_item_keeps_what_it_was_given(box: Box) -> None:
    added = await box.inbox.add(
        "dream", "half \ud83d", "x" * 200_000, severity="warning", agent_id="anna", trace_id="t1"
    )
    assert added is not None
    [item] = (await box.inbox.list())[0]
    assert item == added
    assert (item.kind, item.severity, item.title, item.trace_id) == ("dream", "warning", "half \ufffd", "t1")
    assert len(item.body) == 100_000


async def test_reading_and_removing_are_told(box: Box) -> None:
    first, second = await add(box, "one", agent="anna"), await add(box, "two")
    assert first is not None and second is not None
    assert (await box.inbox.read(first.id)).read
    assert await box.titles(unread=True) == ["two"]
    assert (await box.inbox.unread(), await box.inbox.read_all(), await box.inbox.unread()) == (1, 1, 0)
    await box.inbox.delete(second.id)
    assert await box.titles() == ["one"]
    assert (await box.inbox.clear(), await box.inbox.clear()) == (1, 0)
    kinds = ["added", "added", "read", "read", "removed", "removed"]
    assert box.events() == [f"inbox.{kind}" for kind in kinds]


async def test_what_is_not_there_cannot_be_read_or_removed(box: Box) -> None:
    item = await add(box, "one", key="k")
    assert item is not None
    await box.inbox.delete(item.id)
    for step in (box.inbox.read, box.inbox.delete):
        for name in (item.id, "inbox_nothing"):
            with pytest.raises(NotFound):
                await step(name)


async def test_a_key_is_told_once_until_it_is_settled(box: Box) -> None:
    first = await add(box, "the budget is used up", key="budget")
    assert first is not None
    assert await add(box, "the budget is used up", key="budget") is None
    await box.inbox.read(first.id)
    await box.again()
    assert await add(box, "the budget is used up", key="budget") is None
    await box.inbox.delete(first.id)
    assert await add(box, "the budget is used up", key="budget") is None
    assert await box.titles() == []
    await box.inbox.settle("budget")
    assert await add(box, "again", key="budget") is not None
    assert await box.titles() == ["again"]


async def test_a_settled_item_stays_to_be_read_and_says_so(box: Box) -> None:
    await add(box, "broken", agent="anna", key="k")
    await box.inbox.settle("k")
    await box.inbox.settle("k")
    [item] = (await box.inbox.list(unread=True))[0]
    assert item.settled_at == box.clock.now()
    assert box.events() == ["inbox.added", "inbox.settled"]


async def test_old_items_and_those_beyond_the_limit_go(box: Box) -> None:
    await add(box, "old")
    box.clock.jump(KEPT_DAYS * DAY)
    await add(box, "first")
    assert await box.titles() == ["first"]
    await asyncio.gather(*(box.inbox.add("job", f"run {number}") for number in range(KEPT)))
    found, _ = await box.inbox.list(KEPT + 10)
    assert len(found) == KEPT
    assert found[-1].title == "run 0"


# problems


async def test_a_problem_of_the_configuration_is_told_once_and_settled_when_mended(box: Box) -> None:
    box.filing.start()
    box.problems.report("config:anna", "agent.json:2:3: no", agent_id="anna")
    box.problems.report("disk", "the disk is full")
    [item] = await box.told()
    assert (item.kind, item.severity, item.agent_id) == ("problem", "error", "anna")
    assert "agent.json of 'anna'" in item.title and item.body == "agent.json:2:3: no"
    box.problems.report("config:anna", "agent.json:2:3: no", agent_id="anna")
    assert len(await box.told()) == 1
    box.problems.clear("config:anna")
    [item] = await box.told()
    assert item.settled_at is not None
    box.problems.report("config:anna", "agent.json:2:3: no", agent_id="anna")
    assert [one.settled_at is None for one in await box.told()] == [True, False]


async def test_another_mistake_is_another_item_and_the_first_one_is_settled(box: Box) -> None:
    box.filing.start()
    for text in ("config.json:1:1: a", "config.json:2:2: b"):
        box.problems.report("config", text)
        await box.told()
    assert [(one.body[-1], one.settled_at is None) for one in await box.told()] == [("b", True), ("a", False)]


async def test_a_problem_that_outlives_a_restart_is_not_told_again_even_if_deleted(box: Box) -> None:
    box.problems.report("secrets", "secrets.json:1:1: no")
    box.filing.start()
    [item] = await box.told()
    await box.again()
    box.problems.report("secrets", "secrets.json:1:1: no")
    box.filing.start()
    assert [one.id for one in await box.told()] == [item.id]
    await box.inbox.delete(item.id)
    await box.again()
    box.problems.report("secrets", "secrets.json:1:1: no")
    box.filing.start()
    assert await box.told() == []


@pytest.mark.parametrize("key", ["config", "secrets", "config:anna", "agent:anna", "reload:anna"])
async def test_what_was_mended_while_no_daemon_ran_is_settled(box: Box, key: str) -> None:
    box.problems.report(key, "broken", agent_id="anna")
    box.filing.start()
    await box.told()
    await box.again()
    box.filing.start()
    box.bus.publish("workspace.started", agent_id="anna", generation=1)
    [item] = await box.told()
    assert item.settled_at is not None
    box.problems.report(key, "broken", agent_id="anna")
    assert len(await box.told()) == 2


async def test_an_agent_that_starts_with_its_last_good_configuration_is_not_mended(box: Box) -> None:
    box.filing.start()
    box.problems.report("config:anna", "broken", agent_id="anna")
    box.bus.publish("workspace.started", agent_id="anna", generation=1)
    [item] = await box.told()
    assert item.settled_at is None


async def test_a_store_that_refuses_does_not_end_the_filing(box: Box) -> None:
    box.filing.start()
    await box.database.close()
    box.problems.report("config", "broken")
    await box.filing.idle()
    await box.database.open()
    box.problems.report("config", "broken otherwise")
    assert [item.body for item in await box.told()] == ["broken otherwise"]
