"""Changes of configuration over HTTP: planned, applied, waited for, looked back on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.chat.closing import Ending
from qworkspace.chat.live import LiveTurn
from qworkspace.workspace.services import ServiceDescriptor
from qworkspace.workspace.workspace import Workspace
from tests.support.api import ApiBench, completed
from tests.support.services import Recorder

PATCH = {"content-type": "application/merge-patch+json"}
PLAN = "/api/agents/default/plan"
MASK = "••••••"


class Reloads(ApiBench):
    """An API whose agents have a service `beat` that reads `heartbeat`; `wrong` says how new ones fail."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.wrong: list[str] = []
        self.journal: list[str] = []
        self.registry.services.add("beat", self._beat, owner="test")

    def _beat(self, workspace: Workspace) -> ServiceDescriptor:
        return ServiceDescriptor("beat", lambda _: Recorder("beat", self.journal, wrong=self.wrong), 40, ("heartbeat",))

    def file(self, agent: str = "default") -> Path:
        return self.home / "workspaces" / agent / "agent.json"

    async def start(self, agent: str = "default") -> None:
        assert (await self.ask("POST", f"/api/agents/{agent}/chat", json={"message": "x", "stream": False})).is_success

    async def json(self, method: str, path: str, **options: Any) -> Any:
        answer = await self.ask(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json()

    async def every(self, every: str) -> Any:
        return await self.json("PATCH", "/api/agents/default/config", json={"heartbeat": {"every": every}})


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Reloads]:
    async with Reloads(tmp_path / "home", agents=("default", "other", "off")) as bench:
        await bench.ask("PATCH", "/api/agents/off", json={"enabled": False})
        yield bench


# plans


@pytest.mark.parametrize("started", [True, False])
async def test_a_plan_says_what_a_change_would_do_and_does_nothing(bench: Reloads, started: bool) -> None:
    if started:
        await bench.start()
    before = bench.file().read_bytes()
    new = json.loads(before) | {"heartbeat": {"every": "1h"}, "running": {"max_iters": 7}}
    plan = await bench.json("POST", PLAN, json=new)
    assert plan["kind"] == "reload"
    assert plan["changed"] == ["running.max_iters", "heartbeat.every"]
    assert (plan["rebuilt"], plan["live"]) == (["beat"], ["running.max_iters"])
    assert plan["moved"] == ["sessions", "chats"]
    assert plan["added"] == plan["removed"] == plan["restart"] == []
    assert bench.file().read_bytes() == before
    assert (await bench.json("GET", "/api/agents/default/reloads"))["reloads"] == []


async def test_a_patch_is_planned_as_it_would_be_written(bench: Reloads) -> None:
    plan = await bench.json("POST", PLAN, content='{"running": {"max_iters": 7}}', headers=PATCH)
    assert (plan["kind"], plan["changed"]) == ("live", ["running.max_iters"])
    nothing = await bench.json("POST", PLAN, content="{}", headers=PATCH)
    assert (nothing["kind"], nothing["changed"]) == ("nothing", [])


async def test_a_plan_names_no_secret_and_takes_masks_for_what_is_there(bench: Reloads) -> None:
    token = {"telegram": {"enabled": False, "bot_token": "12:secret"}}
    await bench.json("PATCH", "/api/agents/default/config", json={"channels": token})
    shown = await bench.json("GET", "/api/agents/default/config")
    assert shown["channels"]["telegram"]["bot_token"] == MASK
    assert (await bench.json("POST", PLAN, json=shown))["kind"] == "nothing"
    shown["channels"]["telegram"]["bot_token"] = "13:other"
    answer = await bench.ask("POST", PLAN, json=shown)
    assert answer.json()["changed"] == ["channels.telegram.bot_token"]
    assert "secret" not in answer.text and "13:other" not in answer.text


async def test_a_plan_warns_of_what_is_valid_and_will_not_work(bench: Reloads) -> None:
    text = '{\n "runing": {},\n "model": "nobody/x"\n}'
    plan = await bench.json("POST", PLAN, content=text, headers={"content-type": "application/json"})
    key, model = plan["problems"]
    assert (key["path"], key["near"], key["line"]) == ("runing", "running", 2)
    assert model["path"] == "model" and "nobody" in model["message"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{"running": {\n  "max_iters": "many"}}', 2, "whole number"),
        ('{"name": "a",\n "name": "b"}', 2, "name"),
        ('{"name": "a",', 1, ""),
        ("\ufeff[]", 1, "JSON object"),
        ("", 1, ""),
        ('{"heartbeat": {"every": "${NOWHERE}"}}', 1, "NOWHERE"),
        ('{"id": "other"}', 1, "'default'"),
    ],
)
async def test_a_text_with_a_mistake_is_refused_with_its_place(
    bench: Reloads, text: str, line: int, words: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = await bench.ask("POST", f"{PLAN}?name=new.json", content=text.encode(), headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "invalid_config")
    assert error["details"]["line"] == line
    assert error["message"].startswith(f"new.json:{line}:") and words in error["message"]


@pytest.mark.parametrize(
    ("content", "type", "status"),
    [(b"{}", "text/plain", 415), (b"\xff", "application/json", 400), (b"{}", "application/json; charset=latin1", 415)],
)
async def test_a_body_that_is_no_json_text_is_refused(bench: Reloads, content: bytes, type: str, status: int) -> None:
    answer = await bench.ask("POST", PLAN, content=content, headers={"content-type": type})
    assert answer.status_code == status


async def test_a_broken_file_can_be_planned_away(bench: Reloads) -> None:
    bench.file().write_text("{")
    plan = await bench.json("POST", PLAN, json={"name": "Mended"})
    assert plan["changed"] == ["name"]


# reloads


async def test_a_write_is_applied_before_it_is_answered_and_kept_in_the_history(bench: Reloads) -> None:
    await bench.start()
    written = await bench.every("1h")
    reload = written["reload"]
    assert (reload["outcome"], reload["trigger"], reload["generation"]) == ("applied", "api", 2)
    assert (reload["changed"], reload["rebuilt"]) == (["heartbeat.every"], ["beat"])
    assert reload["timings"]["build_ms"] >= 0 and reload["timings"]["swap_ms"] >= 0
    live = await bench.json("PATCH", "/api/agents/default/config", json={"running": {"max_iters": 7}})
    assert live["reload"]["outcome"] == "live"
    same = await bench.json("PATCH", "/api/agents/default/config", json={"running": {"max_iters": 7}})
    assert same["reload"] == {"outcome": "nothing"}
    renamed = await bench.json("PATCH", "/api/agents/default", json={"description": "new"})
    assert renamed["generation"] == 2
    history = (await bench.json("GET", "/api/agents/default/reloads"))["reloads"]
    assert [one["outcome"] for one in history] == ["live", "live", "applied"]
    assert set(history[-1]) == {"generation", "at", "trigger", "changed", "moved", "rebuilt", "outcome", "timings"}


async def test_the_history_comes_in_pages(bench: Reloads) -> None:
    await bench.start()
    for hours in range(1, 4):
        await bench.every(f"{hours}h")
    first = await bench.json("GET", "/api/agents/default/reloads?limit=2")
    assert [one["generation"] for one in first["reloads"]] == [4, 3]
    rest = await bench.json("GET", f"/api/agents/default/reloads?limit=2&cursor={first['next_cursor']}")
    assert ([one["generation"] for one in rest["reloads"]], rest["next_cursor"]) == ([2], None)
    assert (await bench.ask("GET", "/api/agents/default/reloads?cursor=x")).status_code == 400
    assert (await bench.json("GET", "/api/agents/other/reloads"))["reloads"] == []


async def test_a_write_whose_instance_cannot_start_is_kept_and_says_that_the_old_one_acts(bench: Reloads) -> None:
    await bench.start()
    bench.wrong.append("start")
    written = await bench.every("1h")
    assert written["config"]["heartbeat"] == {"every": "1h"}
    assert written["reload"]["outcome"] == "failed"
    assert "beat cannot start" in written["reload"]["error"]["message"]
    assert (await bench.json("GET", "/api/agents/default"))["generation"] == 1
    bench.wrong.clear()
    again = await bench.json("POST", "/api/agents/default/reload")
    assert (again["outcome"], again["generation"]) == ("applied", 2)


async def test_a_reload_reads_the_files_as_they_are(bench: Reloads) -> None:
    assert await bench.json("POST", "/api/agents/default/reload") == {"outcome": "nothing"}
    await bench.start()
    bench.file().write_text('{"heartbeat": {"every": "1h"}}')
    assert (await bench.json("POST", "/api/agents/default/reload"))["outcome"] == "applied"
    bench.file().write_text('{"heartbeat": {"every": 1}}')
    failed = await bench.json("POST", "/api/agents/default/reload")
    assert failed["outcome"] == "failed" and failed["error"]["line"] == 1
    bench.file("other").write_text("{")
    assert (await bench.ask("POST", "/api/agents/other/reload")).status_code == 422


async def test_unknown_and_disabled_agents(bench: Reloads) -> None:
    routes = (("POST", "plan"), ("POST", "reload"), ("GET", "reloads"))
    for method, route in routes:
        options: dict[str, Any] = {"json": {"name": "x"}} if route == "plan" else {}
        assert (await bench.ask(method, f"/api/agents/nobody/{route}", **options)).status_code == 404
        assert (await bench.ask(method, f"/api/agents/No!/{route}", **options)).status_code == 400
    refused = await bench.ask("POST", "/api/agents/off/reload")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "agent_disabled")
    assert (await bench.json("POST", "/api/agents/off/plan", json={"name": "x"}))["changed"] == ["name", "description"]
    assert (await bench.json("GET", "/api/agents/off/reloads"))["reloads"] == []


async def test_status_shows_replaced_instances_and_edits_that_wait_for_them(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def patient(live: LiveTurn) -> Ending:
        live.say("…")
        await go.wait()
        return completed(live)

    async with Reloads(tmp_path / "home", config={"lifecycle": {"max_retired": 1}}) as bench:
        bench.script = patient
        async with bench.stream("POST", "/api/agents/default/chat", body={"message": "x"}) as turn:
            await turn.until("turn.started")
            assert (await bench.every("1h"))["reload"]["outcome"] == "applied"
            assert (await bench.every("2h"))["reload"] == {"outcome": "waiting"}
            state = await bench.json("GET", "/api/agents/default")
            [retired] = state["retired"]
            assert (retired["generation"], retired["turns"], retired["state"]) == (1, 1, "retired")
            assert (state["generation"], state["edits_waiting"]) == (2, True)
            go.set()
            assert (await turn.rest())[-1].type == "turn.completed"
        async with asyncio.timeout(5):
            while state["generation"] < 3 or state["retired"]:
                await asyncio.sleep(0.01)
                state = (await bench.json("GET", "/api/status"))["agents"][0]
        assert state["edits_waiting"] is False
        history = (await bench.json("GET", "/api/agents/default/reloads"))["reloads"]
        assert [one["generation"] for one in history] == [3, 2]


async def test_a_reload_while_the_daemon_stops_is_told_that_it_counts_later(bench: Reloads) -> None:
    await bench.start()
    await bench.reloader.stop()
    answer = await bench.ask("POST", "/api/agents/default/reload")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
