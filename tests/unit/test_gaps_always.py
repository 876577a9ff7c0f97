"""The answer "always allow": kept as a rule in agent.json, and good for the rest of the turn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.chat.tools.always import store_rule
from qworkspace.config.models import PolicyRule
from qworkspace.config.store import ConfigStore
from qworkspace.errors import StorageError
from tests.support.daemon import write_home
from tests.support.turns import TurnBench, call, ended, notices, reached, says

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time
RULE = PolicyRule(pattern="git status", decision="allow")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


async def test_always_is_kept_and_asks_no_more_in_this_turn(bench: TurnBench) -> None:
    bench.tool(default="ask")
    bench.model.will(says(call("note", "c1", text="x")), says(call("note", "c2", text="x")), "done")
    live = await bench.send("go")
    asked = await reached(live, "tool.approval")
    await bench.approvals.answer(asked.data["approval_id"], "allow", remember=True)
    assert (await ended(live)).text == "done"
    assert bench.ran == ["x", "x"]
    assert bench.remembered == [("note", PolicyRule(pattern="x", decision="allow"))]
    assert "remembered" in notices(live)


async def test_an_answer_for_once_is_not_kept(bench: TurnBench) -> None:
    bench.tool(default="ask")
    bench.model.will(says(call("note", "c1", text="x")), "done")
    live = await bench.send("go")
    asked = await reached(live, "tool.approval")
    await bench.approvals.answer(asked.data["approval_id"], "allow")
    await ended(live)
    assert bench.ran == ["x"] and bench.remembered == []


async def test_always_after_a_restart_is_kept_too(bench: TurnBench) -> None:
    bench.tool(default="ask")
    bench.model.will(says(call("note", "c1", text="x")))
    live = await bench.send("go")
    asked = await reached(live, "tool.approval")
    await bench.restart()
    await bench.approvals.answer(asked.data["approval_id"], "allow", remember=True)
    bench.model.will("done")
    await ended(await bench.runner.resume(live.id))
    assert bench.ran == ["x"] and [tool for tool, _ in bench.remembered] == ["note"]


async def test_a_rule_that_cannot_be_kept_is_told_and_the_call_runs(
    bench: TurnBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(tool: str, rule: PolicyRule) -> None:
        raise StorageError("agent.json cannot be written: the disk is full")

    monkeypatch.setattr(bench, "remember", refuse)
    bench.tool(default="ask")
    bench.model.will(says(call("note", "c1", text="x")), "done")
    live = await bench.send("go")
    asked = await reached(live, "tool.approval")
    await bench.approvals.answer(asked.data["approval_id"], "allow", remember=True)
    assert (await ended(live)).text == "done"
    assert bench.ran == ["x"] and "not_remembered" in notices(live)


def test_the_rule_goes_into_agent_json_beside_what_is_there(tmp_path: Path) -> None:
    policy = [{"pattern": "rm *", "decision": "deny"}, {"pattern": "${MINE}*", "decision": "allow"}]
    home = write_home(tmp_path / "home", agent={"tools": {"run_shell": {"policy": policy}}})
    store = ConfigStore(home, environ={"MINE": "secret"})
    store_rule(store, "default", "run_shell", RULE)
    store_rule(store, "default", "run_shell", RULE)
    store_rule(store, "default", "write_file", RULE)
    written = json.loads(store.agent_file("default").read_text())["tools"]
    assert written["run_shell"]["policy"] == [
        {"pattern": "git status", "decision": "allow"},
        *policy,
    ]
    assert written["write_file"] == {"policy": [{"pattern": "git status", "decision": "allow"}]}
