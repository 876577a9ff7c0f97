"""The model loop: step by step, journaled in between, shortened when it must be, carried on after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from qworkspace.chat.wire import ReasoningDelta
from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.plugins.extensions import LoopHook, ToolContext, ToolOutput, TurnContext
from qworkspace.sessions.models import CallState, FilePart, Message, TextPart, ToolResultPart, TurnState
from tests.support.turns import TurnBench, Words, call, ended, kinds, notices, reached, says, streamed, until

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


def limited(bench: TurnBench, **running: object) -> None:
    """Change the `running` section."""
    changed = bench.config.running.model_copy(update=running)
    bench.config = bench.config.model_copy(update={"running": changed})


async def test_text_is_streamed_as_it_comes_and_is_the_stored_text(bench: TurnBench) -> None:
    bench.model.will(says("It ", "is ", "fine."))
    live = await bench.send("how is it?")
    turn = await ended(live)
    assert streamed(live) == turn.text == "It is fine."
    assert kinds(live) == ["turn.started", "text.delta", "usage", "turn.completed"]
    assert await bench.said() == [("user", "how is it?"), ("assistant", "It is fine.")]


async def test_steps_are_paragraphs_of_one_text(bench: TurnBench) -> None:
    bench.tool()
    bench.model.will(says("First. ", call("note", "1")), says("Second.", call("note", "2")), says("Third."))
    live = await bench.send("go")
    turn = await ended(live)
    assert streamed(live) == turn.text == "First. \n\nSecond.\n\nThird."
    assert (turn.usage.input_tokens, turn.usage.output_tokens, turn.usage.requests) == (30, 15, 3)
    assert [role for role, _ in await bench.said()] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


async def test_each_step_is_stored_before_the_next_one_is_asked_for(bench: TurnBench) -> None:
    bench.tool()
    bench.model.will(says("so ", call("note", "1", text="x")), says(asyncio.Event()))
    live = await bench.send("go")
    await until(lambda: len(bench.model.prompts) == 2)
    assert await bench.said() == [("user", "go"), ("assistant", "so "), ("tool", "done: x")]
    assert await bench.store.pending_calls(live.id) == {"1": CallState.DONE}
    await bench.runner.cancel("s1")


async def test_thoughts_are_shown_and_are_no_text(bench: TurnBench) -> None:
    bench.model.will(says(ReasoningDelta("hm, "), ReasoningDelta("yes"), "Yes."))
    live = await bench.send("go")
    assert (await ended(live)).text == "Yes."
    assert [e.data["text"] for e in live.log.since(0) if e.type == "reasoning.delta"] == ["hm, ", "yes"]


async def test_a_model_that_calls_forever_is_ended(bench: TurnBench) -> None:
    limited(bench, max_iters=3)
    bench.tool()
    bench.model.will(*(says("on ", call("note", str(number))) for number in range(9)))
    turn = await bench.ask("go")
    assert turn.state is TurnState.FAILED and turn.error is not None
    assert turn.error["code"] == "iteration_limit" and len(bench.model.prompts) == 3
    bench.model.answers.clear()
    assert (await bench.ask("next")).state is TurnState.COMPLETED


async def test_an_answer_that_was_cut_says_so(bench: TurnBench) -> None:
    bench.model.will(says("and the", reason="length"), says("no", reason="content_filter"))
    first = await bench.send("go")
    await ended(first)
    second = await bench.send("on", "another")
    await ended(second)
    told = [event.data for live in (first, second) for event in live.log.since(0) if event.type == "notice"]
    assert told == [
        {"code": "finish_length", "message": "the answer was cut at its length limit"},
        {"code": "finish_content_filter", "message": "the answer was cut by the provider's content filter"},
    ]


async def test_a_failure_after_text_keeps_what_was_said(bench: TurnBench) -> None:
    bench.model.will(says("half ", ModelError("the line broke", retryable=True)))
    live = await bench.send("go")
    turn = await ended(live)
    assert turn.error is not None and (turn.error["code"], turn.error["retryable"]) == ("model_error", True)
    assert await bench.said() == [("user", "go"), ("assistant", "half ")]
    await bench.ask("again")
    assert [message.text for message in bench.model.prompts[-1].messages] == ["go", "half ", "again"]


async def test_a_failure_before_any_text_leaves_no_empty_message(bench: TurnBench) -> None:
    bench.model.will(says(ModelError("no key", code="model_unauthorized")))
    turn = await bench.ask("go")
    assert turn.error is not None and turn.error["code"] == "model_unauthorized"
    assert await bench.said() == [("user", "go")]
    await bench.ask("again")
    assert [message.role for message in bench.model.prompts[-1].messages] == ["user", "assistant", "user"]


async def test_a_fallback_model_takes_over(bench: TurnBench) -> None:
    bench.config = bench.config.model_copy(update={"fallback_models": [bench.second.ref]})
    bench.model.will(says(ModelError("down", status=500)))
    bench.second.will("I am here.")
    live = await bench.send("go")
    assert (await ended(live)).text == "I am here."
    assert notices(live) == ["fallback"]


async def test_a_prompt_that_does_not_fit_is_shortened_once_and_asked_again(bench: TurnBench) -> None:
    limited(bench, keep_recent_turns=1)
    for number in range(6):
        await bench.ask(f"question {number} " + "word " * 50)
    bench.model.will(says(ContextTooLong("too long")), "A summary of what was said.", "Now it fits.")
    live = await bench.send("the last question")
    assert (await ended(live)).text == "Now it fits."
    assert notices(live) == ["compacted"]
    last = bench.model.prompts[-1].messages
    assert "A summary of what was said." in last[0].text and last[-1].text == "the last question"
    await bench.ask("and after that")
    assert "A summary of what was said." in bench.model.prompts[-1].messages[0].text


async def test_a_prompt_that_never_fits_fails_with_a_reason(bench: TurnBench) -> None:
    bench.model.will(says(ContextTooLong("too long")), says(ContextTooLong("too long")))
    turn = await bench.ask("x" * 1000)
    assert turn.error is not None and turn.error["code"] == "context_too_long"
    assert (await bench.ask("/new")).state is TurnState.COMPLETED


async def test_a_long_history_is_summarised_before_it_is_too_long(bench: TurnBench) -> None:
    bench.model.context_window = 4_000
    limited(bench, keep_recent_turns=1)
    bench.model.script = lambda prompt: says("short")
    live = await bench.send("word " * 800)
    for _ in range(4):
        live = await bench.send("word " * 800)
        await ended(live)
    assert "compacted" in notices(live)
    assert len(bench.model.prompts[-1].messages) < 8


async def test_a_summary_that_fails_is_told_and_the_answer_comes_all_the_same(bench: TurnBench) -> None:
    bench.model.context_window = 4_000
    limited(bench, keep_recent_turns=1)
    for _ in range(3):
        await bench.ask("word " * 500)
    bench.model.will(says(ModelError("busy", status=500)), "fine")
    live = await bench.send("word " * 900)
    assert (await ended(live)).text == "fine"
    assert notices(live)[0] == "compaction_failed"


async def test_old_results_are_shortened_when_the_turn_itself_is_too_long(bench: TurnBench) -> None:
    async def talk(context: ToolContext, args: Words) -> ToolOutput:
        return ToolOutput("word " * 2_000)

    bench.tool(run=talk)
    bench.model.context_window = 8_000
    bench.model.will(*(says(call("note", str(number))) for number in range(4)), "done")
    live = await bench.send("go")
    assert (await ended(live)).text == "done"
    assert "compacted" in notices(live)
    first = bench.model.prompts[-1].messages[2].parts[0]
    assert isinstance(first, ToolResultPart) and len(first.text) < 2_000


async def test_what_was_said_before_a_crash_is_kept_but_for_the_last_seconds(bench: TurnBench) -> None:
    bench.model.will(says("one ", 1.5, "two ", 1.0, "three ", 0.5, "four ", asyncio.Event()))
    live = await bench.send("go")
    await reached(live, "turn.started")
    await bench.clock.advance(3)
    assert live.text == "one two three four "
    await bench.restart()
    assert await bench.said() == [("user", "go"), ("assistant", "one two three ")]
    [stored] = (await bench.store.turns("s1"))[0]
    assert (stored.state, stored.text) == (TurnState.INTERRUPTED, "one two three ")
    bench.model.will("The whole answer.")
    resumed = await bench.runner.resume(live.id)
    assert (await ended(resumed)).text == "The whole answer."
    assert await bench.said() == [("user", "go"), ("assistant", "The whole answer.")]


async def test_a_resumed_turn_says_its_complete_steps_again_and_goes_on(bench: TurnBench) -> None:
    bench.tool()
    bench.model.will(says("I note it.", call("note", "1", text="x")), says("I am", asyncio.Event()))
    live = await bench.send("go")
    await until(lambda: "I am" in live.text)
    await bench.restart()
    bench.model.will("It is noted.")
    resumed = await bench.runner.resume(live.id)
    turn = await ended(resumed)
    assert turn.text == streamed(resumed) == "I note it.\n\nIt is noted."
    assert bench.ran == ["x"]
    parts = [part for message in bench.model.prompts[-1].messages for part in message.parts]
    assert [part.type for part in parts] == ["text", "text", "tool_call", "tool_result"]
    assert turn.usage.requests == 2


async def test_hooks_of_the_loop_run_at_their_places(bench: TurnBench) -> None:
    seen: list[str] = []

    def noting(name: str) -> object:
        async def note(context: TurnContext) -> None:
            seen.append(f"{name} {len(bench.model.prompts)} {context.reply}".strip())

        return note

    for point in LoopHook:
        bench.hook(point, noting(point))  # type: ignore[arg-type]
    bench.tool()
    bench.model.will(says(call("note")), "done")
    await bench.ask("go")
    assert seen == ["on_system_prompt 0", "on_model_call 0", "on_model_call 1", "on_reply 2 done"]


async def test_what_on_system_prompt_adds_is_in_the_prompt(bench: TurnBench) -> None:
    async def add(context: TurnContext) -> None:
        context.system.append("Write it down before you answer.")

    bench.hook(LoopHook.ON_SYSTEM_PROMPT, add)
    await bench.ask("go")
    assert bench.model.prompts[0].system.endswith("Write it down before you answer.")


async def test_an_attached_picture_can_be_read_by_the_model(bench: TurnBench) -> None:
    (bench.directory / "files").mkdir()
    (bench.directory / "files" / "cat.png").write_bytes(b"PNG")
    part = FilePart(path="files/cat.png", media_type="image/png", name="cat.png")
    request = bench.request("look")
    message = Message(role="user", parts=(TextPart(text="look"), part))
    live = await bench.runner.submit(replace(request, message=message))
    await ended(live)
    read = bench.model.prompts[0].read_file
    assert read is not None
    assert await read(part) == b"PNG"
    assert await read(part.model_copy(update={"path": "../config.json"})) is None
    assert await read(part.model_copy(update={"path": "files/gone.png"})) is None
