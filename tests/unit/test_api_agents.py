"""Agents over HTTP, their configuration with its version, status, metrics, the console's files, the document."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.api.routes import OPERATIONS
from tests.support.api import ApiBench

MASK = "••••••"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home", agents=("default", "other", "third")) as bench:
        yield bench


def agent_file(bench: ApiBench, agent: str = "default") -> Path:
    return bench.home / "workspaces" / agent / "agent.json"


async def test_agents_are_listed_in_pages_without_starting_them(bench: ApiBench) -> None:
    first = (await bench.ask("GET", "/api/agents?limit=2")).json()
    assert [agent["id"] for agent in first["agents"]] == ["default", "other"]
    assert (first["active_agent"], first["next_cursor"]) == ("default", "other")
    second = (await bench.ask("GET", "/api/agents?limit=2&cursor=other")).json()
    assert [agent["id"] for agent in second["agents"]] == ["third"]
    assert second["next_cursor"] is None
    assert first["agents"][0]["state"] == "dormant"
    assert (await bench.ask("GET", "/api/agents?cursor=gone")).status_code == 400
    assert bench.manager.running() == []


async def test_an_agent_with_a_broken_file_is_still_listed(bench: ApiBench) -> None:
    agent_file(bench).write_text("{")
    listed = (await bench.ask("GET", "/api/agents")).json()["agents"]
    assert [agent["id"] for agent in listed] == ["default", "other", "third"]
    refused = await bench.ask("POST", "/console/chat", json={"message": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "invalid_config")


async def test_an_agent_is_made_changed_and_removed(bench: ApiBench) -> None:
    made = await bench.ask("POST", "/api/agents", json={"id": "new", "name": "Nova"})
    assert (made.status_code, made.headers["location"], made.json()["name"]) == (201, "/api/agents/new", "Nova")
    twice = await bench.ask("POST", "/api/agents", json={"id": "new"})
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "duplicate")
    copied = await bench.ask("POST", "/api/agents", json={"id": "copied", "copy": "new"})
    assert copied.status_code == 201
    changed = await bench.ask("PATCH", "/api/agents/new", json={"description": "star", "start": "eager"})
    assert (changed.json()["description"], changed.json()["start"]) == ("star", "eager")
    off = await bench.ask("PATCH", "/api/agents/new", json={"enabled": False})
    assert (off.json()["enabled"], off.json()["state"]) == (False, "disabled")
    active = await bench.ask("PATCH", "/api/agents/new", json={"enabled": True, "active": True})
    assert active.json()["active"] is True
    assert (await bench.ask("DELETE", "/api/agents/new")).status_code == 409
    assert (await bench.ask("PATCH", "/api/agents/new", json={"enabled": False})).status_code == 409
    await bench.ask("PATCH", "/api/agents/default", json={"active": True})
    assert (await bench.ask("DELETE", "/api/agents/new")).status_code == 204
    assert (await bench.ask("GET", "/api/agents/new")).status_code == 404
    assert agent_file(bench, "new").exists(), "the directory stays"
    assert (await bench.ask("DELETE", "/api/agents/copied?files=true")).status_code == 204
    assert not agent_file(bench, "copied").parent.exists()


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"id": "../evil"}, 400, "id"),
        ({"id": "Big"}, 400, "id"),
        ({}, 400, "id"),
        ({"id": "x", "template": "default", "copy": "other"}, 400, "template"),
        ({"id": "x", "template": "nothing"}, 404, None),
        ({"id": "x", "copy": "nobody"}, 404, None),
    ],
)
async def test_agents_that_cannot_be_made(
    bench: ApiBench, body: dict[str, Any], status: int, field: str | None
) -> None:
    answer = await bench.ask("POST", "/api/agents", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["details"].get("field") == field
    assert sorted(path.name for path in (bench.home / "workspaces").iterdir()) == ["default", "other", "third"]


async def test_a_stale_write_is_refused_and_a_patch_changes_its_keys_only(bench: ApiBench) -> None:
    address = "/api/agents/default/config"
    read = await bench.ask("GET", address)
    etag = read.headers["etag"]
    assert (await bench.ask("GET", address, headers={"If-None-Match": etag})).status_code == 304
    patch = {"description": "changed", "running": {"max_iters": 7}}
    written = await bench.ask("PATCH", address, json=patch, headers={"If-Match": etag})
    assert written.status_code == 200
    assert written.json()["config"] == read.json() | patch
    assert written.json()["version"] == written.headers["etag"].strip('"')
    assert written.headers["etag"] != etag
    stale = await bench.ask("PUT", address, json={"id": "default"}, headers={"If-Match": etag})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "version_mismatch")
    assert stale.json()["error"]["details"]["current"] == written.headers["etag"].strip('"')
    whole = await bench.ask("PUT", address, json={"id": "default"}, headers={"If-Match": written.headers["etag"]})
    assert whole.json()["config"] == {"id": "default"} == json.loads(agent_file(bench).read_text())


async def test_a_bad_configuration_is_refused_and_changes_nothing(bench: ApiBench) -> None:
    before = agent_file(bench).read_text()
    answer = await bench.ask("PATCH", "/api/agents/default/config", json={"running": {"max_iters": "many"}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_config")
    assert "max_iters" in answer.json()["error"]["message"]
    assert agent_file(bench).read_text() == before


async def test_a_changed_configuration_holds_from_the_next_turn_on(bench: ApiBench) -> None:
    await bench.ask("POST", "/console/chat", json={"message": "x", "stream": False})
    await bench.ask("PATCH", "/api/agents/default/config", json={"running": {"max_iters": 7}})
    assert (await bench.manager.get("default")).config.running.max_iters == 7


async def test_secrets_are_masked_and_a_mask_keeps_them(bench: ApiBench) -> None:
    address = "/api/agents/default/config"
    channel = {"telegram": {"enabled": False, "bot_token": "12:secret"}}
    await bench.ask("PATCH", address, json={"channels": channel})
    read = await bench.ask("GET", address)
    assert "12:secret" not in read.text
    assert read.json()["channels"]["telegram"]["bot_token"] == MASK
    assert (await bench.ask("PUT", address, json=read.json())).status_code == 200
    assert "12:secret" in agent_file(bench).read_text()


async def test_status_shows_everything_at_a_glance(bench: ApiBench) -> None:
    await bench.ask("POST", "/console/chat", json={"message": "x", "stream": False})
    bench.problems.report("disk", "the disk is full")
    status = (await bench.ask("GET", "/api/status")).json()
    assert (status["version"], status["active_agent"], status["watch_mode"]) == ("1.2.3", "default", "off")
    assert {agent["id"]: agent["state"] for agent in status["agents"]}["default"] == "running"
    assert [problem["message"] for problem in status["problems"]] == ["the disk is full"]
    ready = (await bench.ask("GET", "/readyz", token=False)).json()
    assert [problem["message"] for problem in ready["degraded"]] == ["the disk is full"]


async def test_metrics_count_turns_requests_and_what_is_open(bench: ApiBench) -> None:
    for _ in range(2):
        await bench.ask("POST", "/api/agents/other/chat", json={"message": "x", "stream": False})
    await bench.ask("GET", "/api/nowhere")
    bench.problems.report("disk", "the disk is full")
    answer = await bench.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.text
    for line in (
        'qworkspace_turns_total{agent="other",source="chat",state="completed"} 2.0',
        'qworkspace_tokens_total{agent="other",direction="input",model="scripted/model"} 22.0',
        'qworkspace_tokens_total{agent="other",direction="output",model="scripted/model"} 14.0',
        'qworkspace_turn_seconds_count{agent="other"} 2.0',
        'qworkspace_first_token_seconds_count{agent="other"} 2.0',
        'qworkspace_http_requests_total{method="POST",route="/api/agents/{agent_id}/chat",status="200"} 2.0',
        'qworkspace_http_requests_total{method="GET",route="other",status="404"} 1.0',
        "qworkspace_started_workspaces 1.0",
        "qworkspace_active_turns 0.0",
        "qworkspace_queued_turns 0.0",
        "qworkspace_sse_clients 0.0",
        "qworkspace_problems 1.0",
    ):
        assert line in text
    assert re.search(r"^qworkspace_uptime_seconds [0-9.e-]+$", text, re.MULTILINE)


async def test_the_console_is_served_with_a_strict_policy(tmp_path: Path) -> None:
    folder = tmp_path / "console"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>hi</h1>")
    (folder / "assets" / "app.js").write_text("1")
    (folder / "secret.py").write_text("x = 1")
    (folder / "leak.js").symlink_to(tmp_path / "home" / "config.json")
    async with ApiBench(tmp_path / "home", console=folder) as bench:
        page = await bench.ask("GET", "/", token=False)
        assert (page.text, page.headers["content-type"]) == ("<h1>hi</h1>", "text/html; charset=utf-8")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        fresh = await bench.ask("GET", "/", token=False, headers={"If-None-Match": page.headers["etag"]})
        assert (fresh.status_code, fresh.content) == (304, b"")
        assert (await bench.ask("GET", "/assets/app.js", token=False)).text == "1"
        for path in ("/none.js", "/leak.js", "/../home/config.js", "/assets/..%2f..%2fx.js", "/assets/%00.js"):
            assert (await bench.ask("GET", path, token=False)).status_code == 404
        assert (await bench.ask("GET", "/secret.py", token=False)).status_code == 401
        assert (await bench.ask("GET", "/secret.py")).status_code == 404


async def test_the_document_describes_every_route_and_refers_to_nothing_missing(bench: ApiBench) -> None:
    document = (await bench.ask("GET", "/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(operation.method, operation.path.replace(":path}", "}")) for operation in OPERATIONS}
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names <= document["components"]["schemas"].keys()
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    chat = document["paths"]["/console/chat"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatBody")
    assert "text/event-stream" in chat["responses"]["200"]["content"]
    message = document["components"]["schemas"]["ChatBody"]["properties"]["message"]
    assert {"type": "string"} in [{"type": kind.get("type")} for kind in message["anyOf"]]
