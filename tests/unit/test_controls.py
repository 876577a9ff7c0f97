"""What commands do to the conversation they are given in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.errors import InvalidInput, NotFound
from qworkspace.sessions.models import TurnState
from tests.support.turns import TurnBench, call, ended, reached, says, until

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


async def test_stop_ends_the_answer_and_not_itself(bench: TurnBench) -> None:
    assert (await bench.ask("/stop")).text == "Nothing is running."
    bench.model.will(says("half", asyncio.Event()))
    live = await bench.send("go")
    await reached(live, "text.delta")
    stop = await bench.ask("/stop")
    assert (stop.text, stop.state) == ("Stopped.", TurnState.COMPLETED)
    assert live.turn.state is TurnState.CANCELLED
    assert not await bench.controls.stop("unknown")


async def test_stop_takes_effect_in_its_own_session_only(bench: TurnBench) -> None:
    gate = asyncio.Event()
    bench.model.will(says("half ", gate, "whole"))
    live = await bench.send("go", "other")
    await reached(live, "text.delta")
    await bench.ask("/stop", "s1")
    gate.set()
    assert (await ended(live)).text == "half whole"


async def test_new_hides_what_was_said_and_ends_what_runs(bench: TurnBench) -> None:
    await bench.ask("remember me")
    bench.model.will(says("half", asyncio.Event()))
    live = await bench.send("go")
    await reached(live, "text.delta")
    assert "fresh start" in (await bench.ask("/new")).text
    assert live.turn.state is TurnState.CANCELLED
    await bench.ask("who am I?")
    assert [message.text for message in bench.model.prompts[-1].messages] == ["who am I?"]
    assert ("user", "remember me") in await bench.said()


async def test_compact_shortens_now(bench: TurnBench) -> None:
    assert (await bench.ask("/compact")).text == "There is nothing to shorten yet."
    for number in range(8):
        await bench.ask(f"question {number} " + "word " * 100)
    bench.model.will("They asked eight questions.")
    text = (await bench.ask("/compact")).text
    assert text.startswith("Summarised: 16 messages became ")
    await bench.ask("go on")
    shown = bench.model.prompts[-1].messages
    assert "They asked eight questions." in shown[0].text and shown[-1].text == "go on"


async def test_resume_carries_on_the_last_interrupted_answer(bench: TurnBench) -> None:
    assert (await bench.ask("/resume")).text == "No interrupted answer waits in this session."
    bench.tool()
    bench.model.will(says(call("note", text="x")), says("half", asyncio.Event()))
    live = await bench.send("go")
    await until(lambda: "half" in live.text)
    await bench.restart()
    bench.model.will("The whole.")
    told = await bench.ask("/resume")
    assert told.text == f"Carrying on with turn `{live.id}`."
    resumed = bench.runner.find(live.id)
    assert resumed is not None and (await ended(resumed)).text == "The whole."
    assert bench.ran == ["x"]
    turn = await bench.ask("/resume turn_unknown")
    assert turn.error is not None and turn.error["code"] == "turn_not_found"


async def test_a_turn_of_another_session_is_not_resumed(bench: TurnBench) -> None:
    bench.model.will(says("half", asyncio.Event()))
    live = await bench.send("go", "other")
    await reached(live, "text.delta")
    await bench.restart()
    turn = await bench.ask(f"/resume {live.id}", "s1")
    assert turn.error is not None and turn.error["code"] == "turn_not_found"
    assert await bench.states("other") == ["interrupted"]


async def test_a_model_is_chosen_for_this_session(bench: TurnBench) -> None:
    await bench.ask("hello")
    assert await bench.controls.choose_model("s1", "test/two") == "test/two"
    assert (await bench.controls.status("s1"))["model"] == "test/two"
    with pytest.raises(InvalidInput, match="known: test/one, test/two"):
        await bench.controls.choose_model("s1", "test/three")
    with pytest.raises(InvalidInput, match="known: test/one, test/two"):
        await bench.controls.choose_model("s1", "two")
    assert await bench.controls.choose_model("s1", None) == "test/one"


async def test_status_tells_the_session_as_it_is(bench: TurnBench) -> None:
    await bench.ask("hello there")
    facts = await bench.controls.status("s1")
    assert facts == {
        "agent": "anna", "model": "test/one", "fallbacks": [], "mode": None, "session": "s1",
        "title": "hello there",
        "messages": 2, "running_turns": 0, "waiting_turns": 0,
    }  # fmt: skip
    with pytest.raises(NotFound):
        await bench.controls.status("unknown")
    assert "- running turns: 1" in (await bench.ask("/status")).text
