"""Tools of a turn: checked, approved, journaled before they act, and never run twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.approvals import Approval
from qworkspace.chat.live import LiveTurn
from qworkspace.errors import NotFound, StorageError
from qworkspace.plugins.extensions import Mode, ToolContext, ToolOutput
from qworkspace.sessions.models import CallState, ToolCallPart, ToolResultPart, Turn, TurnState
from tests.support.turns import TurnBench, Words, call, ended, kinds, reached, says, until

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


def results(bench: TurnBench, prompt: int = -1) -> list[ToolResultPart]:
    """The results that the model saw in that request."""
    messages = bench.model.prompts[prompt].messages
    return [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


async def run(bench: TurnBench, *calls: ToolCallPart) -> Turn:
    """A turn whose model makes these calls in one step and then echoes the results."""
    bench.model.will(says(*calls))
    return await bench.ask("go")


async def asking(bench: TurnBench, *calls: ToolCallPart) -> tuple[LiveTurn, Approval]:
    """A turn that waits for a person."""
    bench.model.will(says(*calls))
    live = await bench.send("go")
    event = await reached(live, "tool.approval")
    return live, await bench.approvals.get(event.data["approval_id"])


async def test_a_call_runs_and_the_model_sees_its_result(bench: TurnBench) -> None:
    bench.tool()
    bench.model.will(says("I look. ", call("note", text="x")))
    live = await bench.send("go")
    assert (await ended(live)).text == "I look. \n\necho: done: x"
    events = [event for event in live.log.since(0) if event.type.startswith("tool.")]
    assert [event.type for event in events] == ["tool.call", "tool.result"]
    assert events[0].data == {"call_id": "c1", "name": "note", "args": {"text": "x"}}
    assert events[1].data == {"call_id": "c1", "name": "note", "text": "done: x", "outcome": "ok", "duration_ms": 0}
    assert bench.model.prompts[0].tools[0].name == "note"


async def test_a_tool_acts_only_after_the_journal_knows(bench: TurnBench) -> None:
    seen: dict[str, CallState] = {}

    async def look(context: ToolContext, args: Words) -> ToolOutput:
        seen.update(await bench.store.pending_calls(context.scope.turn_id))
        return ToolOutput("ok")

    bench.tool(run=look)
    await run(bench, call("note", "a"), call("note", "b"))
    assert seen == {"a": CallState.DONE, "b": CallState.STARTED}


async def test_writing_calls_run_one_after_another_and_reading_ones_side_by_side(bench: TurnBench) -> None:
    now: list[str] = []
    most = {"read": 0, "write": 0}

    def slow(effect: str) -> Any:
        async def work(context: ToolContext, args: Words) -> ToolOutput:
            now.append(args.text)
            most[effect] = max(most[effect], len(now))
            for _ in range(20):
                await asyncio.sleep(0)
            now.remove(args.text)
            return ToolOutput(args.text)

        return work

    bench.tool("look", slow("read"), effect="read")
    bench.tool("put", slow("write"), effect="write")
    wanted = [call(name, str(at), text=str(at)) for at, name in enumerate(["look", "look", "look", "put", "put"])]
    await run(bench, *wanted)
    assert most == {"read": 3, "write": 1}
    assert [part.text for part in results(bench)] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (call("fly"), "there is no tool 'fly'; there are: note"),
        (call("note", text=["no"]), "wrong arguments for note: text: Input should be a valid string"),
        (ToolCallPart(id="c1", name="note", raw="{oops"), "wrong arguments for note: they must be one JSON object"),
    ],
)
async def test_a_call_that_makes_no_sense_is_explained_to_the_model(
    bench: TurnBench, wanted: ToolCallPart, told: str
) -> None:
    bench.tool()
    assert (await run(bench, wanted)).state is TurnState.COMPLETED
    [result] = results(bench)
    assert (result.text, result.outcome) == (told, "error")
    assert bench.ran == []


async def test_a_tool_that_fails_is_an_answer_too(bench: TurnBench) -> None:
    async def missing(context: ToolContext, args: Words) -> ToolOutput:
        raise NotFound("file", "x")

    async def broken(context: ToolContext, args: Words) -> ToolOutput:
        raise ZeroDivisionError("by zero")

    bench.tool("missing", missing)
    bench.tool("broken", broken)
    await run(bench, call("missing", "1"), call("broken", "2"))
    assert [(part.text, part.outcome) for part in results(bench)] == [
        ("no file 'x'", "error"),
        ("broken failed: ZeroDivisionError: by zero", "error"),
    ]


async def test_long_output_is_kept_whole_and_shown_in_part(bench: TurnBench) -> None:
    async def talk(context: ToolContext, args: Words) -> ToolOutput:
        return ToolOutput("x" * 100_000)

    bench.tool(run=talk)
    await run(bench, call("note"))
    [result] = results(bench)
    assert len(result.text) < 20_000 and result.file == "files/.outputs/out_1.txt"
    assert bench.spilled == ["x" * 100_000]


async def test_the_configured_length_counts(bench: TurnBench) -> None:
    async def talk(context: ToolContext, args: Words) -> ToolOutput:
        return ToolOutput("x" * 5_000)

    bench.config = bench.config.model_copy(
        update={"running": bench.config.running.model_copy(update={"tool_output_chars": 600})}
    )
    bench.tool(run=talk)
    await run(bench, call("note"))
    assert len(results(bench)[0].text) < 700


async def test_what_is_denied_does_not_run(bench: TurnBench) -> None:
    bench.tool(default="deny")
    await run(bench, call("note", text="x"))
    assert bench.ran == [] and results(bench)[0].outcome == "denied"


async def test_a_mode_has_only_its_tools(bench: TurnBench) -> None:
    bench.tool("look", effect="read")
    bench.tool("put")
    bench.extensions.modes.add("plan", Mode("plan", "Look, do not touch.", tools=frozenset({"look"})), owner="test")
    await bench.ask("first")
    await bench.store.set_setting("s1", "mode", "plan")
    await run(bench, call("put", text="x"))
    assert [[tool.name for tool in prompt.tools] for prompt in bench.model.prompts][:2] == [["look", "put"], ["look"]]
    assert bench.ran == []


async def test_a_question_waits_for_a_person(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, approval = await asking(bench, call("note", text="x"))
    assert bench.ran == [] and (approval.tool, approval.args) == ("note", {"text": "x"})
    await bench.approvals.answer(approval.id, "allow", by="me")
    assert (await ended(live)).text == "echo: done: x"
    assert bench.ran == ["x"]


async def test_no_is_no(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, approval = await asking(bench, call("note", text="x"))
    await bench.approvals.answer(approval.id, "deny")
    await ended(live)
    assert bench.ran == []
    assert (results(bench)[0].text, results(bench)[0].outcome) == ("not allowed: a person said no", "denied")


async def test_no_answer_in_time_is_no(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, _ = await asking(bench, call("note", text="x"))
    await bench.clock.advance(bench.config.running.approval_timeout - 1)
    assert not live.log.closed
    await bench.clock.advance(2)
    await ended(live)
    assert bench.ran == [] and "nobody answered in time" in results(bench)[0].text


async def test_a_stopped_turn_takes_its_question_back(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, approval = await asking(bench, call("note", text="x"))
    await bench.runner.cancel("s1")
    assert (await bench.approvals.get(approval.id)).state == "withdrawn"
    assert live.turn.state is TurnState.CANCELLED and bench.ran == []


async def test_a_question_outlives_a_restart(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, approval = await asking(bench, call("note", text="x"))
    await bench.restart()
    late: list[str] = []

    async def resume(answered: Approval) -> None:
        late.append((await bench.runner.resume(answered.turn_id)).id)

    bench.approvals.on_late_answer = resume
    await bench.approvals.answer(approval.id, "allow")
    await until(lambda: bool(late))
    resumed = bench.runner.find(live.id)
    assert resumed is not None
    assert (await ended(resumed)).text == "echo: done: x"
    assert bench.ran == ["x"] and late == [live.id]
    assert len(await bench.approvals.list()) == 1


async def test_the_time_of_a_question_counts_on_through_a_restart(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, approval = await asking(bench, call("note", text="x"))
    await bench.clock.advance(bench.config.running.approval_timeout - 60)
    await bench.restart()
    resumed = await bench.runner.resume(live.id)
    again = await reached(resumed, "tool.approval")
    assert again.data["approval_id"] == approval.id
    await bench.clock.advance(61)
    await ended(resumed)
    assert bench.ran == [] and "nobody answered in time" in results(bench)[0].text


async def test_a_resumed_turn_that_is_stopped_takes_its_old_question_back(bench: TurnBench) -> None:
    bench.tool(default="ask")
    live, approval = await asking(bench, call("note", text="x"))
    await bench.restart()
    await bench.runner.resume(live.id)
    await bench.runner.cancel("s1")
    assert (await bench.approvals.get(approval.id)).state == "withdrawn"


async def test_after_a_crash_what_had_begun_is_not_run_again_and_the_rest_is(bench: TurnBench) -> None:
    hangs = asyncio.Event()

    async def first_hangs(context: ToolContext, args: Words) -> ToolOutput:
        bench.ran.append(args.text)
        if len(bench.ran) == 2:
            await hangs.wait()
        return ToolOutput(f"done: {args.text}")

    bench.tool(run=first_hangs)
    bench.model.will(says(call("note", "1", text="a"), call("note", "2", text="b"), call("note", "3", text="c")))
    live = await bench.send("go")
    await until(lambda: len(bench.ran) == 2)
    await bench.restart()
    resumed = await bench.runner.resume(live.id)
    await ended(resumed)
    assert bench.ran == ["a", "b", "c"]
    assert [part.outcome for part in results(bench)] == ["ok", "interrupted", "ok"]
    assert kinds(resumed).count("tool.call") == 2


async def test_a_call_whose_id_was_used_before_is_told_apart_after_a_crash(bench: TurnBench) -> None:
    """Some providers count the calls of each answer from the beginning."""
    gate = asyncio.Event()

    async def second_hangs(context: ToolContext, args: Words) -> ToolOutput:
        bench.ran.append(args.text)
        return ToolOutput(f"done: {args.text}")

    bench.tool(run=second_hangs)
    bench.tool("wait", default="ask")
    bench.model.will(
        says(call("note", "call_0", text="a")), says(call("wait", "call_0", text="b"), call("note", "call_1"))
    )
    live = await bench.send("go")
    await reached(live, "tool.approval")
    await bench.restart()
    gate.set()
    resumed = await bench.runner.resume(live.id)
    approval = await reached(resumed, "tool.approval")
    await bench.approvals.answer(approval.data["approval_id"], "allow")
    assert (await ended(resumed)).state is TurnState.COMPLETED
    assert bench.ran == ["a", "b", ""]


async def test_a_stop_reaches_the_tool(bench: TurnBench) -> None:
    ends: list[str] = []

    async def hang(context: ToolContext, args: Words) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(args.text)
        return ToolOutput("never")

    bench.tool("look", hang, effect="read")
    bench.model.will(says(call("look", "1", text="a"), call("look", "2", text="b")))
    live = await bench.send("go")
    await reached(live, "tool.call", 2)
    await bench.clock.advance(0)
    await bench.runner.cancel("s1")
    assert sorted(ends) == ["a", "b"] and live.turn.state is TurnState.CANCELLED
    bench.model.answers.clear()
    assert (await bench.ask("next")).text == "echo: next"
    assert [part.outcome for part in results(bench)] == ["interrupted", "interrupted"]


async def test_a_tool_that_was_cancelled_from_inside_fails_alone(bench: TurnBench) -> None:
    async def given_up(context: ToolContext, args: Words) -> ToolOutput:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return ToolOutput("never")

    bench.tool(run=given_up)
    assert (await run(bench, call("note"))).state is TurnState.COMPLETED
    assert results(bench)[0].outcome == "error"


async def test_a_tool_that_takes_too_long_is_ended(bench: TurnBench) -> None:
    ends: list[str] = []

    async def hang(context: ToolContext, args: Words) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")
        return ToolOutput("never")

    bench.tool(run=hang)
    bench.model.will(says(call("note")))
    live = await bench.send("go")
    await reached(live, "tool.call")
    await bench.clock.advance(bench.config.running.tool_timeout + 10)
    assert (await ended(live)).state is TurnState.COMPLETED
    assert ends == ["ended"]
    assert results(bench)[0].text == "note was ended after 120 s, the limit running.tool_timeout"


async def test_a_full_disk_is_named_when_reading_calls_run_side_by_side(
    bench: TurnBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(turn_id: str, result: ToolResultPart) -> None:
        raise StorageError("the disk is full")

    bench.tool("look", effect="read")
    bench.model.will(says(call("look", "1"), call("look", "2")))
    monkeypatch.setattr(bench.store, "save_result", full)
    turn = await bench.ask("go")
    assert turn.error is not None and turn.error["code"] == "storage_error"
