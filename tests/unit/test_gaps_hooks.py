"""Each phase and each hook of the loop has its line in the docs and its place in a turn."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.errors import ContextTooLong
from qworkspace.plugins.extensions import LoopHook, Phase, TurnContext
from tests.support.turns import TurnBench, call, says

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time
PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


def test_the_page_names_every_phase_and_hook_in_their_order() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert named == [*Phase, *LoopHook]


async def test_all_points_of_a_turn_with_a_tool_and_a_prompt_that_is_too_long(bench: TurnBench) -> None:
    seen: list[str] = []
    for point in (*Phase, *LoopHook):

        async def note(context: TurnContext, point: str = point) -> None:
            seen.append(point)

        bench.hook(point, note)
    running = bench.config.running.model_copy(update={"keep_recent_turns": 1})
    bench.config = bench.config.model_copy(update={"running": running})
    bench.tool()
    for number in range(6):
        await bench.ask(f"question {number} " + "word " * 50)
    seen.clear()
    bench.model.will(says(ContextTooLong("too long")), "A summary.", says(call("note")), "done")
    assert (await bench.ask("go")).text == "done"
    assert seen == [
        "pre_dispatch", "post_dispatch", "pre_agent_build", "on_system_prompt", "post_agent_build", "pre_execute",
        "on_model_call", "on_compress_context", "on_model_call", "on_reply", "post_response", "finally",
    ]  # fmt: skip
    seen.clear()
    bench.model.will(says(ValueError("boom")))
    await bench.ask("go")
    assert seen[-3:] == ["on_model_call", "on_error", "finally"]


async def test_a_summary_may_be_prepared_for_before_it_is_made(bench: TurnBench) -> None:
    kept: list[int] = []

    async def keep(context: TurnContext) -> None:
        kept.append(len(context.history))

    bench.hook(LoopHook.ON_COMPRESS_CONTEXT, keep)
    running = bench.config.running.model_copy(update={"keep_recent_turns": 1})
    bench.config = bench.config.model_copy(update={"running": running})
    for number in range(6):
        await bench.ask(f"question {number} " + "word " * 50)
    bench.model.will(says(ContextTooLong("too long")), "A summary.", "done")
    await bench.ask("go")
    assert kept == [12], "the whole history is still there to be read"
