"""The inbox over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.api import ApiBench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        for number in range(3):
            agent = "other" if number else "default"
            await bench.inbox.add("job", f"run {number}", "done", agent_id=agent, trace_id=f"t{number}")
        yield bench


async def test_items_are_listed_newest_first_in_the_agreed_shape(bench: ApiBench) -> None:
    page = (await bench.ask("GET", "/api/inbox?limit=2")).json()
    assert [item["title"] for item in page["items"]] == ["run 2", "run 1"]
    shape = {"id", "agent_id", "kind", "severity", "title", "body", "created_at", "read", "trace_id"}
    assert set(page["items"][0]) == shape
    assert page["items"][0] | {"id": "", "created_at": ""} == {
        "id": "",
        "agent_id": "other",
        "kind": "job",
        "severity": "info",
        "title": "run 2",
        "body": "done",
        "created_at": "",
        "read": False,
        "trace_id": "t2",
    }
    rest = (await bench.ask("GET", f"/api/inbox?limit=2&cursor={page['next_cursor']}")).json()
    assert ([item["title"] for item in rest["items"]], rest["next_cursor"]) == (["run 0"], None)
    of_one = (await bench.ask("GET", "/api/inbox?agent=default")).json()
    assert [item["title"] for item in of_one["items"]] == ["run 0"]


async def test_items_are_read_one_by_one_and_all(bench: ApiBench) -> None:
    [newest, *_] = (await bench.ask("GET", "/api/inbox")).json()["items"]
    assert (await bench.ask("POST", f"/api/inbox/{newest['id']}/read")).json()["read"] is True
    unread = (await bench.ask("GET", "/api/inbox?unread=true")).json()
    assert ([item["title"] for item in unread["items"]], unread["unread"]) == (["run 1", "run 0"], 2)
    assert (await bench.ask("POST", "/api/inbox/read")).json() == {"read": 2}
    assert (await bench.ask("GET", "/api/inbox")).json()["unread"] == 0


async def test_items_are_removed_one_by_one_and_all(bench: ApiBench) -> None:
    [newest, *_] = (await bench.ask("GET", "/api/inbox")).json()["items"]
    assert (await bench.ask("DELETE", f"/api/inbox/{newest['id']}")).status_code == 204
    assert (await bench.ask("DELETE", f"/api/inbox/{newest['id']}")).status_code == 404
    assert (await bench.ask("DELETE", "/api/inbox")).json() == {"removed": 2}
    assert (await bench.ask("GET", "/api/inbox")).json() == {"items": [], "unread": 0, "next_cursor": None}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/inbox/nothing/read", 404),
        ("DELETE", "/api/inbox/nothing", 404),
        ("GET", "/api/inbox?cursor=x", 400),
        ("GET", "/api/inbox?limit=0", 400),
        ("GET", "/api/inbox?agent=No!", 400),
    ],
)
async def test_what_cannot_be_done(bench: ApiBench, method: str, path: str, status: int) -> None:
    assert (await bench.ask(method, path)).status_code == status


async def test_nobody_reads_it_without_the_token(bench: ApiBench) -> None:
    assert (await bench.ask("GET", "/api/inbox", token=False)).status_code == 401
