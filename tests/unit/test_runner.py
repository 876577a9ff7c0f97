"""Turns per session: one at a time, in order, stopped, left for later; each ends exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworkspace.chat.live import LiveTurn
from qworkspace.errors import Busy, Conflict, NotFound, Unavailable
from qworkspace.sessions.models import TurnState
from qworkspace.sessions.repair import repair
from qworkspace.sessions.shelf import History
from tests.support.turns import TurnBench, call, ended, kinds, notices, reached, says, until

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time
ENDS = {"turn.completed", "turn.failed", "turn.cancelled"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


def last(live: LiveTurn) -> tuple[str, dict[str, object]]:
    event = live.log.since(live.log.last - 1)[-1]
    return event.type, event.data


async def test_turns_of_a_session_run_one_after_another_and_in_order(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says("a", gate), says("b"), says("c"))
    first, second, third = [await bench.send(text) for text in ("1", "2", "3")]
    await reached(first, "text.delta")
    assert (bench.runner.active, bench.runner.queued) == (1, 2)
    assert [last(turn)[1]["position"] for turn in (second, third)] == [1, 2]
    assert len(bench.model.prompts) == 1
    gate.set()
    await ended(third)
    texts = [message.text for message in bench.model.prompts[2].messages]
    assert texts == ["1", "a", "2", "b", "3"]
    assert await bench.states() == ["completed"] * 3


async def test_sessions_run_side_by_side(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says("a", gate), says("b"))
    first = await bench.send("1", "one")
    await reached(first, "text.delta")
    assert (await bench.ask("2", "two")).text == "b"
    assert not first.log.closed
    gate.set()
    assert (await ended(first)).text == "a"


async def test_what_submit_returns_is_stored(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says(gate))
    await bench.send("first")
    await bench.send("second")
    assert await bench.said() == [("user", "first"), ("user", "second")]
    gate.set()


async def test_who_will_not_wait_is_refused_and_nothing_is_stored(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says("a", gate))
    first = await bench.send("first")
    with pytest.raises(Busy):
        await bench.send("second", if_busy="reject")
    gate.set()
    await ended(first)
    await until(lambda: not bench.runner.busy)
    assert await bench.said() == [("user", "first"), ("assistant", "a")]
    assert (await bench.ask("third", if_busy="reject")).state is TurnState.COMPLETED


async def test_a_full_queue_refuses(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.queue_limit = 2
    bench.model.will(says(gate))
    turns = [await bench.send(text) for text in ("1", "2", "3")]
    with pytest.raises(Busy, match="2 messages wait") as caught:
        await bench.send("4")
    assert caught.value.code == "queue_full"
    gate.set()
    await ended(turns[-1])


async def test_a_newer_message_interrupts_what_runs_and_what_waits(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    running = await bench.send("first")
    await reached(running, "text.delta")
    waiting = await bench.send("second")
    newest = await bench.send("third", if_busy="interrupt")
    assert (await ended(newest)).text == "echo: third"
    assert last(running) == ("turn.cancelled", last(running)[1] | {"text": "half"})
    assert last(waiting)[0] == "turn.cancelled"
    assert bench.model.open == 0
    asked = [message.text for message in bench.model.prompts[-1].messages]
    assert asked[:2] == ["first", "half"] and asked[-1] == "third" and "second" in asked
    assert await bench.states() == ["cancelled", "cancelled", "completed"]


async def test_stop_as_a_message_does_not_wait_for_what_waits(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()), says("never", asyncio.Event()))
    running = await bench.send("first")
    await reached(running, "text.delta")
    waiting = await bench.send("second")
    stop = await bench.send("/stop")
    assert (await ended(stop)).text == "Stopped."
    assert [last(turn)[0] for turn in (running, waiting)] == ["turn.cancelled"] * 2
    assert len(bench.model.prompts) == 1


async def test_two_interrupts_leave_the_newest(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    first = await bench.send("first")
    await reached(first, "text.delta")
    second, third = await asyncio.gather(
        bench.send("second", if_busy="interrupt"), bench.send("third", if_busy="interrupt")
    )
    assert (await ended(third)).text == "echo: third"
    assert (await ended(second)).state is TurnState.CANCELLED


async def test_a_message_that_is_sent_again_is_the_same_turn(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says("a", gate))
    first = await bench.send("hello", idempotency_key="k")
    await reached(first, "text.delta")
    for if_busy in ("queue", "interrupt", "reject"):
        assert await bench.send("hello", idempotency_key="k", if_busy=if_busy) is first
    gate.set()
    await ended(first)
    assert await bench.send("hello", idempotency_key="k", if_busy="reject") is first
    assert await bench.said() == [("user", "hello"), ("assistant", "a")]


async def test_a_message_that_is_sent_again_is_known_although_others_wait(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.queue_limit = 1
    bench.model.will(says(gate))
    await bench.send("first")
    second = await bench.send("second", idempotency_key="k")
    assert await bench.send("second", idempotency_key="k") is second
    gate.set()
    await ended(second)


async def test_a_message_that_is_sent_again_after_a_restart_tells_what_became_of_it(bench: TurnBench) -> None:
    bench.model.will("fine", says("half", asyncio.Event()))
    await bench.ask("one", idempotency_key="1")
    await reached(await bench.send("two", idempotency_key="2"), "text.delta")
    await bench.restart()
    done = await bench.send("one", idempotency_key="1")
    assert last(done) == ("turn.completed", {"text": "fine", "usage": done.turn.usage.model_dump()})
    broken = await bench.send("two", idempotency_key="2")
    assert last(broken)[0] == "turn.failed" and last(broken)[1]["code"] == "interrupted"
    assert [text for role, text in await bench.said() if role == "user"] == ["one", "two"]


async def test_stop_ends_what_runs_and_what_waits(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    running = await bench.send("first")
    await reached(running, "text.delta")
    waiting = await bench.send("second")
    assert await bench.runner.cancel("s1")
    assert running.log.closed and waiting.log.closed and bench.model.open == 0
    assert await bench.states() == ["cancelled", "cancelled"]
    assert ("assistant", "half") in await bench.said()
    assert not await bench.runner.cancel("s1")
    assert (await bench.ask("third")).state is TurnState.COMPLETED


async def test_stop_in_the_moment_in_which_a_turn_begins(bench: TurnBench) -> None:
    """Between the making of its task and that task's first step."""
    live = await bench.send("hello")
    assert live.turn.state is TurnState.QUEUED and kinds(live) == []
    assert await bench.runner.cancel("s1")
    assert last(live)[0] == "turn.cancelled"
    assert await bench.states() == ["cancelled"]
    await until(lambda: not bench.runner.busy)
    assert (await bench.ask("again")).state is TurnState.COMPLETED


async def test_nothing_is_held_when_nothing_runs(bench: TurnBench) -> None:
    await bench.ask("hello")
    await until(lambda: not bench.runner.busy)
    assert (bench.runner.active, bench.runner.queued) == (0, 0)
    assert bench.runner.live("s1") is None


async def test_an_ended_turn_is_found_for_two_minutes(bench: TurnBench) -> None:
    live = await bench.send("hello")
    await ended(live)
    await until(lambda: not bench.runner.busy)
    assert bench.runner.find(live.id) is live
    await bench.clock.advance(121)
    await bench.ask("another")
    await until(lambda: not bench.runner.busy)
    assert bench.runner.find(live.id) is None


async def test_ended_turns_are_held_in_a_bounded_number(bench: TurnBench) -> None:
    first = await bench.send("0", "s0")
    await ended(first)
    for number in range(1, 20):
        await bench.ask(str(number), f"s{number}")
    await until(lambda: not bench.runner.busy)
    assert bench.runner.find(first.id) is None


async def test_drain_waits_for_what_can_end(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says("a", gate, "b"))
    running = await bench.send("first")
    await reached(running, "text.delta")
    draining = asyncio.create_task(bench.runner.drain(10))
    await bench.clock.advance(9)
    with pytest.raises(Unavailable):
        await bench.send("second")
    gate.set()
    await draining
    assert last(running)[1]["text"] == "ab"


async def test_drain_leaves_the_rest_for_later(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    running = await bench.send("first")
    await reached(running, "text.delta")
    waiting = await bench.send("second")
    draining = asyncio.create_task(bench.runner.drain(10))
    await bench.clock.advance(9.9)
    assert not draining.done() and not running.log.closed
    assert last(waiting)[1]["code"] == "interrupted"
    await bench.clock.advance(0.2)
    await draining
    assert (last(running)[1]["code"], last(running)[1]["retryable"]) == ("interrupted", True)
    await bench.restart()
    assert await bench.states() == ["interrupted", "interrupted"]
    assert (await bench.ask("third")).text == "echo: third"
    first = await bench.runner.resume(running.id)
    assert (await ended(first)).text == "echo: first"


async def test_a_message_that_arrives_in_the_moment_of_the_shutdown_is_not_left_hanging(bench: TurnBench) -> None:
    sending = asyncio.create_task(bench.send("hello"))
    await asyncio.sleep(0)
    await bench.runner.drain(0)
    live = await sending
    assert last(live)[1]["code"] == "interrupted"
    await bench.restart()
    assert await bench.states() == ["interrupted"]


async def test_resume_carries_on_what_was_interrupted_and_nothing_else(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    live = await bench.send("first")
    await reached(live, "text.delta")
    await bench.restart()
    resumed = await bench.runner.resume(live.id)
    with pytest.raises(Conflict):
        await bench.runner.resume(live.id)
    assert (await ended(resumed)).text == "echo: first"
    assert await bench.said() == [("user", "first"), ("assistant", "echo: first")]
    with pytest.raises(Conflict):
        await bench.runner.resume(live.id)
    with pytest.raises(NotFound):
        await bench.runner.resume("turn_unknown")


async def test_a_resumed_turn_waits_for_what_runs(bench: TurnBench) -> None:
    bench.model.will(says(asyncio.Event()))
    live = await bench.send("first")
    await reached(live, "turn.started")
    await bench.restart()
    gate = asyncio.Event()
    bench.model.answers = [says("now", gate), says("then")]
    second = await bench.send("second")
    await reached(second, "text.delta")
    resumed = await bench.runner.resume(live.id)
    assert notices(resumed) == ["queued"]
    gate.set()
    assert (await ended(resumed)).text == "then"
    assert [message.text for message in bench.model.prompts[-1].messages] == ["first"]


async def test_events_of_a_resumed_turn_do_not_pass_for_earlier_ones(bench: TurnBench) -> None:
    """A client that comes back with the last id it saw must get all of what is said anew."""
    bench.model.will(says("one ", 1.0, "two ", 1.0, "three", asyncio.Event()))
    live = await bench.send("first")
    await reached(live, "turn.started")
    await bench.clock.advance(2)
    seen = live.log.last
    await bench.restart()
    resumed = await bench.runner.resume(live.id)
    await ended(resumed)
    assert resumed.log.oldest > seen


async def test_a_runner_that_stops_ends_its_turns(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    live = await bench.send("first")
    await reached(live, "text.delta")
    await bench.runner.stop()
    await bench.runner.stop()
    assert last(live)[1]["code"] == "interrupted"
    assert await bench.states() == ["interrupted"]


async def test_a_turn_that_cannot_begin_ends_all_the_same(tmp_path: Path) -> None:
    async def broken(live: LiveTurn) -> None:
        raise RuntimeError("no machine")

    async with TurnBench(tmp_path, execute=broken) as bench:
        turn = await bench.ask("hello")
        assert turn.state is TurnState.FAILED and turn.error is not None
        assert "no machine" not in turn.error["message"]
        await until(lambda: not bench.runner.busy)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["queue", "interrupt", "reject", "again", "stop", "resume", "step", "kill"]), st.booleans()
    ),
    max_size=14,
)


@given(OPERATIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_happens_each_message_is_kept_once_and_each_turn_ends_once(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, bool]]
) -> None:
    async with TurnBench(tmp_path_factory.mktemp("turns")) as bench:
        bench.tool()
        bench.model.script = lambda prompt: says("so ", 0.01, call("note")) if prompt.messages[-1].text else says("far")
        sent: list[str] = []
        lives: list[LiveTurn] = []
        for kind, settle in operations:
            await _operate(bench, kind, sent, lives)
            if settle:
                await bench.clock.advance(0.005)
        await until_quiet(bench)
        stored, _ = await bench.store.messages("s1")
        assert [item.message.text for item in stored if item.message.role == "user"] == sent
        assert {*await bench.states()} <= {"completed", "cancelled", "interrupted"}
        for live in lives:
            assert [event.type in ENDS for event in live.log.since(0)] == [False] * (live.log.last - live.log.first) + [
                True
            ]
        assert repaired(await bench.store.history("s1"))


async def _operate(bench: TurnBench, kind: str, sent: list[str], lives: list[LiveTurn]) -> None:
    if kind in ("queue", "interrupt", "reject", "again"):
        text = str(len(sent))
        try:
            live = await bench.send(text, if_busy="queue" if kind == "again" else kind, idempotency_key=text)
        except Busy:
            return
        sent.append(text)
        lives.append(live)
        if kind == "again":
            assert await bench.send(text, idempotency_key=text) is live
    elif kind == "stop":
        await bench.runner.cancel("s1")
    elif kind == "step":
        await bench.clock.advance(0.02)
    elif kind == "resume":
        turn = await bench.store.find_interrupted("s1") if sent else None
        if turn is not None:
            lives.append(await bench.runner.resume(turn.id))
    else:
        lives[:] = [live for live in lives if live.log.closed]
        await bench.restart()


async def until_quiet(bench: TurnBench) -> None:
    for _ in range(500):
        if not bench.runner.busy:
            return
        await bench.clock.advance(0.05)
    raise AssertionError("turns run on and on")


def repaired(history: History) -> bool:
    return repair(history.messages) == history.messages
