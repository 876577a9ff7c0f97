"""Problems: said once, shown until they are over."""

from __future__ import annotations

import logging

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def bus(clock: SimulatedClock) -> EventBus:
    return EventBus(clock)


@pytest.fixture
def problems(clock: SimulatedClock, bus: EventBus) -> Problems:
    return Problems(clock, bus)


def _types(bus: EventBus) -> list[str]:
    return [event.type for event in bus.log.since(0)]


def test_the_same_problem_is_said_once(problems: Problems, bus: EventBus, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        problems.report("disk", "the disk is full", agent_id="a")
    assert _types(bus) == ["problem.opened"]
    assert [record.message for record in caplog.records] == ["the disk is full"]
    assert [problem.key for problem in problems.of()] == ["disk"]


async def test_a_new_message_keeps_the_moment_at_which_it_began(problems: Problems, clock: SimulatedClock) -> None:
    began = clock.now()
    problems.report("config", "line 3 is wrong")
    await clock.advance(60)
    problems.report("config", "line 4 is wrong")
    [problem] = problems.of()
    assert problem.message == "line 4 is wrong"
    assert problem.since == began


def test_what_is_mended_is_told_and_gone(problems: Problems, bus: EventBus) -> None:
    clear = problems.report("watch", "no more watches", severity="warning", agent_id="a")
    clear()
    clear()
    assert problems.of() == []
    assert _types(bus) == ["problem.opened", "problem.cleared"]


def test_what_names_a_file_whose_name_is_no_text_can_be_shown(problems: Problems) -> None:
    problems.report("note/\udcff.md", "not read: '\udcff.md'")
    [problem] = problems.of()
    assert (problem.key, problem.message) == ("note/\ufffd.md", "not read: '\ufffd.md'")
    problems.clear("note/\udcff.md")
    assert problems.of() == []


def test_each_agent_has_its_own(problems: Problems) -> None:
    problems.report("x", "of a", agent_id="a")
    problems.report("y", "of b", agent_id="b")
    problems.report("z", "of all")
    assert [problem.message for problem in problems.of("a")] == ["of a"]
    assert [problem.message for problem in problems.of()] == ["of a", "of b", "of all"]


def test_the_log_tells_how_bad_it_is(problems: Problems, caplog: pytest.LogCaptureFixture) -> None:
    problems.report("a", "rather bad", severity="warning")
    problems.report("b", "very bad")
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
