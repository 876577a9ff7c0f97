"""A week with one person: what was told, corrected, repeated and contradicted, and what memory shows of it each day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest

from qworkspace.memory import marks
from qworkspace.memory.contract import Found, Query
from qworkspace.memory.extract import REMEMBERED
from qworkspace.sessions.models import Source
from tests.support.weeks import Days, Matter, Model, says

BONN = Matter("Ann lives in Bonn.", "home")
COLOGNE = Matter("Ann lives in Cologne.", "home")
REX = Matter("Ann's dog is called Rex.", "dog")
MAX = Matter("Ann's dog is called Max.", "dog")
NUTS = Matter("Ann is allergic to peanuts.", "allergy")
BIRTHDAY = Matter("安的妈妈的生日是五月三日。", "birthday")
MARS = Matter("Ann wants to live on Mars.", "mars")

SENTENCES = {
    "I live in Bonn and cannot eat peanuts.": [BONN, NUTS],
    "My dog is called Rex.": [REX],
    "Sorry, I mistyped: the dog is called Max.": [MAX],
    "As I said, I live in Bonn, and the dog is Max.": [BONN, MAX],
    "We have moved to Cologne.": [COLOGNE],
    "我妈妈的生日是五月三日。": [BIRTHDAY],
    "We are back in Bonn for good.": [BONN],
    "I want to live on Mars.": [MARS],
}
QUESTIONS = {
    "home": "Where does Ann live?",
    "dog": "What is the name of Ann's dog?",
    "allergy": "What is Ann allergic to?",
    "birthday": "妈妈什么时候过生日？",
}


@pytest.fixture
async def days(tmp_path: Path) -> AsyncIterator[Days]:
    async with Days(tmp_path / "home", Model(SENTENCES)) as days:
        yield days


async def check(days: Days, *true: Matter, over: tuple[Matter, ...] = ()) -> None:
    """These hold today; those were told once, and hold no more."""
    for matter in true:
        question = QUESTIONS[matter.about]
        for found in (await days.memory.search(Query(question)), await days.recall(question)):
            check_found(found, matter.fact, [old.fact for old in over])
        assert len(says(days.lines("memory/"), matter.fact)) == 1, matter
    for old in over:
        assert says(days.lines(), old.fact) == [] and old.fact in "\n".join(days.lines("memory/"))
    for name, data in days.files().items():
        told = [
            marks.plain(line) for line in data.decode().splitlines() if line[:2] == "- " and not marks.is_struck(line)
        ]
        assert len(told) == len(set(told)), f"{name} says something twice"
    await check_sources(days)
    assert days.bench.problems.of() == []


def check_found(found: Found, fact: str, over: list[str]) -> None:
    lines = [line for hit in found.hits for line in hit.text.splitlines()]
    assert found.hits and says(found.hits[0].text.splitlines(), fact), (fact, found)
    assert not found.partial and [line for old in over for line in says(lines, old)] == []


async def check_sources(days: Days) -> None:
    """Every fact of a daily note leads to the turn in which it was said."""
    for line in days.lines("memory/"):
        source = marks.parse(line)
        assert source is not None, line
        said = await days.bench.store.turn_messages(source.turn)
        told = [matter.fact for text, of in SENTENCES.items() if text == said[0].message.text for matter in of]
        assert marks.plain(line) in told, (line, said)
        assert (await days.bench.store.get_turn(source.turn)).session_id == source.session


async def test_a_week(days: Days) -> None:
    await days.say("I live in Bonn and cannot eat peanuts.")
    await days.say("My dog is called Rex.")
    await days.evening()
    assert list(days.files()) == ["memory/2026-01-05.md"], "a note of the day that it is where Ann lives"
    await check(days, BONN, NUTS, REX)
    assert (await days.night())["changed"]
    assert len(says(days.lines("MEMORY"), "Ann")) == 3 and "digest/about-ann.md" in days.files()
    await check(days, BONN, NUTS, REX)

    await days.say("Sorry, I mistyped: the dog is called Max.")
    await days.evening()
    await check(days, BONN, NUTS, MAX, over=(REX,))
    await days.night()
    assert REX.fact not in "\n".join(days.lines("MEMORY"))
    assert f"~~{REX.fact}~~" in (await days.memory.search(Query("Rex"))).hits[0].text, "by its name it is still found"
    await check(days, BONN, NUTS, MAX, over=(REX,))

    before = days.files()
    await days.say("As I said, I live in Bonn, and the dog is Max.", "other")
    await days.evening("other")
    assert days.files() == before, "what was repeated is not written again"
    told = len(days.told)
    assert not (await days.night())["changed"] and len(days.told) == told and days.files() == before

    await days.say("We have moved to Cologne.")
    await days.evening()
    await check(days, COLOGNE, NUTS, MAX, over=(REX, BONN))
    await days.night()
    await check(days, COLOGNE, NUTS, MAX, over=(REX, BONN))

    await days.say("我妈妈的生日是五月三日。", "中文")
    days.edit("MEMORY.md", "peanuts", "hazelnuts")
    await days.evening("中文")
    await check(days, COLOGNE, MAX, BIRTHDAY, over=(REX, BONN))
    await days.night()
    assert "hazelnuts" in "\n".join(days.lines("MEMORY")), "what a person corrects stays so"
    await check(days, COLOGNE, MAX, BIRTHDAY, over=(REX, BONN))

    await days.say("We are back in Bonn for good.")
    await days.evening()
    await check_return(days)
    await days.night()
    await check_return(days)
    assert len(says(days.lines("MEMORY"), BONN.fact)) == len(says(days.lines("digest/"), BONN.fact)) == 1


async def check_return(days: Days) -> None:
    """What was struck holds again: as a new line, in every place that is looked at."""
    await check(days, BONN, MAX, BIRTHDAY, over=(REX, COLOGNE))
    assert len(says(days.lines("memory/2026-01-10"), BONN.fact)) == 1
    assert sum(BONN.fact in line for line in days.lines("memory/")) == 2


async def test_undo_brings_yesterdays_bytes_back(days: Days) -> None:
    await days.say("I live in Bonn and cannot eat peanuts.")
    await days.evening()
    await days.night()
    before = days.files()
    await days.say("We have moved to Cologne.")
    await days.evening()
    extracted = days.files()
    await days.night()
    assert days.files() != extracted != before
    await days.memory.vault.undo()
    assert days.files() == extracted, "the dream"
    await days.memory.vault.undo()
    assert days.files() == before, "the extraction, with what it had struck"
    await days.memory.index.settled()
    await check_only(days, BONN)
    await days.evening()
    assert days.files() == before, "what a person took back is not extracted again"


@pytest.mark.parametrize("known", ["not yet", "today", "yesterday"])
async def test_there_and_back_on_one_day(days: Days, known: str) -> None:
    await days.say("I live in Bonn and cannot eat peanuts.")
    if known != "not yet":
        await days.evening()
    if known == "yesterday":
        await days.night()
    await days.say("We have moved to Cologne.")
    await days.say("We are back in Bonn for good.")
    await days.evening()
    await check(days, BONN, NUTS, over=(COLOGNE,))
    await days.night()
    await check(days, BONN, NUTS, over=(COLOGNE,))


async def test_an_earlier_extraction_is_taken_back_and_a_later_one_stays(days: Days) -> None:
    await days.say("I live in Bonn and cannot eat peanuts.")
    await days.evening()
    [first] = (await days.memory.history.list()).changes
    await days.say("My dog is called Rex.")
    await days.evening()
    await days.memory.vault.undo(first.group)
    assert [marks.plain(line) for line in days.lines()] == [REX.fact]


async def check_only(days: Days, matter: Matter) -> None:
    found = await days.memory.search(Query(QUESTIONS[matter.about]))
    assert says(found.hits[0].text.splitlines(), matter.fact)
    assert COLOGNE.fact not in "".join(hit.text for hit in found.hits)


async def test_a_conversation_full_of_facts_is_remembered_whole(tmp_path: Path) -> None:
    told = {f"The locker of team {n} is number {n * 7}.": f"Team {n} has locker number {n * 7}." for n in range(50)}
    async with Days(tmp_path / "home", Model({said: [Matter(fact, fact)] for said, fact in told.items()})) as days:
        first, *rest = told
        await days.say(first)
        await days.evening()
        for said in rest:
            await days.bench.talk(said, session="chat")  # while no memory was there to be told
        await days.evening()
        assert [marks.plain(line) for line in days.lines("memory/")] == list(told.values())


async def test_what_the_daemon_says_to_itself_is_never_remembered(days: Days) -> None:
    own = [source for source in get_args(Source) if source not in REMEMBERED]
    assert "heartbeat" in own and "chat" not in own
    await days.say("My dog is called Rex.")
    for source in own:
        await days.say("I want to live on Mars.", source=source)
        await days.say("I want to live on Mars.", source, source=source)
    await days.evening("chat", *own)
    assert [marks.plain(line) for line in days.lines()] == [REX.fact]
    assert not any("Mars" in question for _, question in days.model.questions)
