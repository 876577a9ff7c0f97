"""Titles made by a model: once, beside the turn, and never instead of a person's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from qworkspace.chat.models import ModelSource
from qworkspace.chat.titles import make_title, tidy, wants_title
from qworkspace.config.models import AgentConfig
from qworkspace.errors import ModelError
from qworkspace.plugins.extensions import Phase, TurnContext
from tests.support.turns import TurnBench, says, until

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        bench.config = AgentConfig.model_validate({"id": bench.config.id, "running": {"auto_title": True}})

        async def begin(context: TurnContext) -> None:
            if wants_title(context):
                bench.runner.beside(make_title(context, cast(ModelSource, bench.models), bench.store), name="title")

        bench.hook(Phase.POST_RESPONSE, begin)
        yield bench


async def title(bench: TurnBench) -> str:
    return (await bench.store.get_session("s1")).title


async def test_the_first_answer_leads_to_a_title_and_later_ones_do_not(bench: TurnBench) -> None:
    bench.model.will("Tea is a drink.", '"All about tea."\n\nI hope you like it.', "Green, too.")
    await bench.ask("what is tea?")
    await until(lambda: len(bench.model.prompts) == 2)
    await bench.ask("and green tea?")
    assert await title(bench) == "All about tea"
    assert len(bench.model.prompts) == 3
    assert "what is tea?" in bench.model.prompts[1].messages[0].text


async def test_a_command_asks_for_no_title(bench: TurnBench) -> None:
    await bench.ask("/help")
    assert bench.model.prompts == []


async def test_a_model_that_fails_leaves_the_first_words(bench: TurnBench) -> None:
    bench.model.will("Tea is a drink.", says(ModelError("down", status=500)))
    turn = await bench.ask("what is tea?")
    await until(lambda: len(bench.model.prompts) == 2)
    assert (turn.text, await title(bench)) == ("Tea is a drink.", "what is tea?")


async def test_a_persons_title_stays(bench: TurnBench) -> None:
    await bench.ask("hello")
    await bench.store.rename("s1", "Mine")
    await bench.store.suggest_title("s1", "The model's")
    assert await title(bench) == "Mine"


async def test_without_the_setting_no_model_is_asked(bench: TurnBench) -> None:
    bench.config = AgentConfig(id=bench.config.id)
    await bench.ask("hello")
    assert len(bench.model.prompts) == 1 and await title(bench) == "hello"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("\n  **Tea  and cake.**\nmore", "Tea and cake"),
        ("“茶的故事”", "茶的故事"),
        ("/help me", "help me"),
        ("", ""),
        ("word " * 100, "word " * 15 + "word"),
    ],
)
def test_what_of_an_answer_is_the_title(answer: str, expected: str) -> None:
    assert tidy(answer) == expected
