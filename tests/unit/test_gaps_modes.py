"""Modes: what agent.json defines is there at once, limits the tools, and is never silently gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.config.models import AgentConfig
from qworkspace.errors import InvalidInput
from qworkspace.plugins.extensions import Mode
from tests.support.turns import TurnBench

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time
PLAN = {"plan": {"summary": "Look, do not touch.", "prompt": "Only make a plan.", "tools": ["look"]}}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        bench.config = AgentConfig.model_validate({"id": bench.config.id, "modes": PLAN})
        bench.tool("look", effect="read")
        bench.tool("put")
        yield bench


async def test_a_mode_of_agent_json_is_chosen_holds_and_is_left(bench: TurnBench) -> None:
    await bench.ask("hello")
    assert "`plan`" in (await bench.ask("/mode")).text
    await bench.ask("/mode plan")
    assert "- mode: plan" in (await bench.ask("/status")).text
    await bench.ask("go")
    await bench.ask("/mode default")
    await bench.ask("go on")
    offered = [[tool.name for tool in prompt.tools] for prompt in bench.model.prompts]
    assert offered == [["look", "put"], ["look"], ["look", "put"]]
    assert ["Only make a plan." in prompt.system for prompt in bench.model.prompts] == [False, True, False]


async def test_an_unknown_mode_is_refused_and_names_the_known(bench: TurnBench) -> None:
    bench.extensions.modes.add("tidy", Mode("tidy", "From a plugin."), owner="plugin")
    await bench.ask("hello")
    with pytest.raises(InvalidInput, match="known: tidy, plan"):
        await bench.controls.choose_mode("s1", "dream")
    assert await bench.controls.choose_mode("s1", "tidy") == "tidy"


async def test_a_mode_that_was_taken_away_does_not_open_all_tools(bench: TurnBench) -> None:
    await bench.ask("/mode plan")
    bench.config = AgentConfig(id=bench.config.id)
    turn = await bench.ask("go")
    assert turn.error is not None and "/mode default" in turn.error["message"]
    assert bench.model.prompts == []
    await bench.ask("/mode default")
    assert (await bench.ask("go")).error is None
