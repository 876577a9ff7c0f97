"""Conversations over HTTP: pages, titles, deletion, turns that are resumed and explained, the daemon's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qworkspace.chat.closing import Ending
from qworkspace.chat.live import LiveTurn
from qworkspace.memory.contract import NoMemory
from qworkspace.workspace.services import ServiceDescriptor
from qworkspace.workspace.workspace import MEMORY
from tests.support.api import ApiBench, completed, parse_sse

BASE = "/api/agents/default/sessions"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        yield bench


async def say(bench: ApiBench, text: str, session: str = "s", **more: Any) -> dict[str, Any]:
    body = {"session_id": session, "message": text, "stream": False, **more}
    answer = await bench.ask("POST", "/api/agents/default/chat", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def pages(bench: ApiBench, path: str, key: str, limit: int) -> list[list[Any]]:
    found, cursor = [], None
    while True:
        query: dict[str, Any] = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        page = (await bench.ask("GET", path, params=query)).json()
        found.append(page[key])
        cursor = page["next_cursor"]
        if cursor is None:
            return found


class Keeping(NoMemory):
    """Keeps what was said, and notes what it is to forget."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def forget(self, session_id: str) -> None:
        self.forgotten.append(session_id)


async def test_what_memory_keeps_of_a_session_word_for_word_is_deleted_with_it(bench: ApiBench) -> None:
    keeping = Keeping()
    bench.registry.services.add(
        MEMORY, lambda workspace: ServiceDescriptor(MEMORY, lambda services: keeping, 20), owner="test"
    )
    await say(bench, "hello", "s1")
    await say(bench, "hello", "s2")
    assert (await bench.ask("DELETE", f"{BASE}/s1")).status_code == 204
    assert (await bench.ask("DELETE", f"{BASE}/s1")).status_code == 404
    assert keeping.forgotten == ["s1"]


async def test_messages_are_oldest_first_and_come_in_pages(bench: ApiBench) -> None:
    for number in range(3):
        await say(bench, f"number {number}")
    found = await pages(bench, f"{BASE}/s/messages", "messages", 4)
    assert [len(page) for page in found] == [4, 2]
    messages = [message for page in found for message in page]
    assert [message["text"] for message in messages[:2]] == ["number 0", "you said: number 0"]
    assert {"id", "turn_id", "role", "text", "parts", "status", "created_at"} <= messages[0].keys()
    assert messages[0]["parts"] == [{"type": "text", "text": "number 0"}]


async def test_sessions_are_newest_first_and_are_found_by_what_was_said(bench: ApiBench) -> None:
    for name in ("a", "b", "c"):
        await say(bench, f"about {name * 5}", session=name, user_id="u" + name)
    found = await pages(bench, BASE, "sessions", 2)
    assert [[one["id"] for one in page] for page in found] == [["c", "b"], ["a"]]
    assert found[0][0]["title"] == "about ccccc"
    assert found[0][0]["last_state"] == "completed"
    hits = (await bench.ask("GET", BASE, params={"query": "bbbbb"})).json()["sessions"]
    assert [one["id"] for one in hits] == ["b"]
    mine = (await bench.ask("GET", BASE, params={"user_id": "ua"})).json()["sessions"]
    assert [one["id"] for one in mine] == ["a"]


async def test_a_session_is_renamed_pinned_and_removed(bench: ApiBench) -> None:
    await say(bench, "hello")
    changed = await bench.ask("PATCH", f"{BASE}/s", json={"title": "Plans"})
    assert (changed.json()["title"], changed.json()["pinned"]) == ("Plans", False)
    changed = await bench.ask("PATCH", f"{BASE}/s", json={"pinned": True})
    assert (changed.json()["title"], changed.json()["pinned"]) == ("Plans", True)
    assert (await bench.ask("DELETE", f"{BASE}/s")).status_code == 204
    for method, path in (("GET", "/s"), ("GET", "/s/messages"), ("GET", "/s/turns"), ("PATCH", "/s"), ("DELETE", "/s")):
        gone = await bench.ask(method, BASE + path, json={"pinned": True})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "session_not_found")


async def test_a_running_session_is_stopped_before_it_is_removed(bench: ApiBench) -> None:
    async def forever(live: LiveTurn) -> Ending:
        live.say("still ")
        await asyncio.Event().wait()
        return completed(live)

    bench.script = forever
    body = {"session_id": "s", "message": "go"}
    async with bench.stream("POST", "/console/chat", body=body) as stream:
        await stream.until("text.delta")
        shown = (await bench.ask("GET", f"{BASE}/s")).json()
        assert shown["live_turn_id"] == stream.answer_headers["x-turn-id"]
        assert (await bench.ask("DELETE", f"{BASE}/s")).status_code == 204
        assert (await stream.rest())[-1].type == "turn.cancelled"


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=%00nonsense"])
async def test_pages_have_limits(bench: ApiBench, query: str) -> None:
    await say(bench, "hello")
    for path in (BASE, f"{BASE}/s/messages", f"{BASE}/s/turns"):
        assert (await bench.ask("GET", f"{path}?{query}")).status_code == 400


@pytest.mark.parametrize("session", ["..", "a%20b", "%00", "x" * 129])
async def test_session_names_are_checked(bench: ApiBench, session: str) -> None:
    answer = await bench.ask("GET", f"{BASE}/{session}/messages")
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["code"] in ("invalid_session_id", "not_found")


async def test_an_interrupted_turn_is_resumed_and_followed(bench: ApiBench, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hang(live: LiveTurn) -> Ending:
        reached.set()
        await asyncio.Event().wait()
        return completed(live)

    bench.script = hang
    async with bench.stream("POST", "/console/chat", body={"session_id": "s", "message": "go"}) as stream:
        await reached.wait()
        turn = stream.answer_headers["x-turn-id"]
    await bench.manager.stop(0)
    async with ApiBench(tmp_path / "home") as later:
        (found,) = (await later.ask("GET", f"{BASE}/s/turns")).json()["turns"]
        assert (found["id"], found["state"]) == (turn, "interrupted")
        resumed = await later.ask("POST", f"{BASE}/s/turns/{turn}/resume")
        assert resumed.json() == {"turn_id": turn, "session_id": "s"}
        joined = await later.ask("GET", f"{BASE}/s/stream", headers={"Last-Event-ID": f"{turn}.0"})
        assert parse_sse(joined.text)[-1].type == "turn.completed"
        again = await later.ask("POST", f"/api/agents/default/turns/{turn}/resume")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")


async def test_what_went_into_a_turn(bench: ApiBench) -> None:
    turn = (await say(bench, "hello"))["turn_id"]
    workspace = await bench.manager.get("default")
    note = {"kind": "memory", "title": "PROFILE.md", "text": "likes tea", "origin": {"path": "PROFILE.md"}}
    await workspace.sessions.save_context(turn, [note])
    for path in (f"{BASE}/s/turns/{turn}/context", f"/api/agents/default/turns/{turn}/context"):
        assert (await bench.ask("GET", path)).json() == {"turn_id": turn, "notes": [note]}
    await say(bench, "hello", session="t")
    for wrong in (f"{BASE}/t/turns/{turn}", "/api/agents/default/turns/turn_none", f"/api/agents/other/turns/{turn}"):
        assert (await bench.ask("GET", wrong)).json()["error"]["code"] == "turn_not_found"


async def test_approvals_are_listed_and_answered_once(bench: ApiBench) -> None:
    ends = bench.clock.now() + timedelta(hours=1)
    made = [
        await bench.approvals.create("default", "s", "turn_1", f"call_{n}", "run_shell", {"command": "ls"}, "?", ends)
        for n in range(3)
    ]
    found = await pages(bench, "/api/approvals", "approvals", 2)
    assert [one["id"] for page in found for one in page] == [one.id for one in reversed(made)]
    assert found[0][0]["args"] == {"command": "ls"}
    address = f"/api/approvals/{made[0].id}"
    answered = await bench.ask("POST", address, json={"decision": "allow"})
    assert (answered.status_code, answered.json()["state"]) == (200, "allowed")
    again = await bench.ask("POST", address, json={"decision": "deny"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "approval_closed")
    assert len((await bench.ask("GET", "/api/approvals")).json()["approvals"]) == 2
    assert len((await bench.ask("GET", "/api/approvals?state=all")).json()["approvals"]) == 3
    wrong = await bench.ask("POST", address, json={"decision": "perhaps"})
    assert wrong.json()["error"]["details"]["field"] == "decision"


async def test_the_daemons_events_are_followed_and_joined_again(bench: ApiBench) -> None:
    async with bench.stream("GET", "/api/events?agent_id=default") as first:
        bench.bus.publish("note.a", agent_id="other")
        bench.bus.publish("note.b", agent_id="default", number=1)
        seen = await first.until("note.b")
    assert (seen.data["agent_id"], seen.data["number"], seen.data["id"]) == ("default", 1, seen.id)
    assert [event.type for event in first.events] == ["note.b"]
    bench.bus.publish("note.c", agent_id="default")
    async with bench.stream("GET", "/api/events", last_event_id=seen.id) as second:
        await second.until("note.c")
        assert [event.type for event in second.events] == ["note.c"]
    async with bench.stream("GET", "/api/events", last_event_id="0.7") as third:
        await third.until("note.c")
        assert "note.a" in [event.type for event in third.events]


async def test_the_event_stream_ends_with_the_daemon(bench: ApiBench) -> None:
    async with bench.stream("GET", "/api/events") as stream:
        bench.bus.publish("note")
        await stream.until("note")
        bench.bus.log.close()
        await stream.rest()
        await stream.wait_end()
        assert stream.ended
