"""Talking over HTTP: nothing is acknowledged before it is stored, and no stream is needed for a turn to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.chat.closing import Ending
from qworkspace.chat.live import LiveTurn
from qworkspace.errors import ModelError
from tests.support.api import ApiBench, completed, parse_sse


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        yield bench


class Gate:
    """A script that says `first`, waits until it is opened, then says `rest`."""

    def __init__(self, first: str = "one ", rest: str = "two") -> None:
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()
        self._first, self._rest = first, rest

    async def __call__(self, live: LiveTurn) -> Ending:
        live.say(self._first)
        self.reached.set()
        await self.opened.wait()
        live.say(self._rest)
        return completed(live)


async def test_a_whole_answer(bench: ApiBench) -> None:
    answer = await bench.ask("POST", "/console/chat", json={"session_id": "s1", "message": "hello", "stream": False})
    assert answer.status_code == 200
    facts = answer.json()
    assert facts["session_id"] == "s1" == answer.headers["x-session-id"]
    assert facts["turn_id"] == answer.headers["x-turn-id"]
    assert (facts["status"], facts["text"]) == ("completed", "you said: hello")
    assert facts["usage"]["input_tokens"] == 11
    assert "error" not in facts


async def test_a_stream_has_numbered_events_and_the_full_text_at_the_end(bench: ApiBench) -> None:
    answer = await bench.ask("POST", "/api/agents/other/chat", json={"message": [{"type": "text", "text": "hi"}]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    events = parse_sse(answer.text)
    assert [event.type for event in events] == ["turn.started", "text.delta", "turn.completed"]
    turn = answer.headers["x-turn-id"]
    assert [event.id for event in events] == [f"{turn}.{number}" for number in (1, 2, 3)]
    assert all(event.data["turn_id"] == turn and event.data["id"] == event.id for event in events)
    assert all("+00:00" in event.data["ts"] for event in events)
    assert events[-1].data["text"] == "you said: hi"


async def test_the_agent_is_the_named_one_or_the_active_one_and_never_another(bench: ApiBench) -> None:
    async def who(live: LiveTurn) -> Ending:
        live.say(live.request.agent_id)
        return completed(live)

    bench.script = who
    body = {"message": "who?", "stream": False}
    assert (await bench.ask("POST", "/console/chat", json=body)).json()["text"] == "default"
    named = await bench.ask("POST", "/console/chat", json=body, headers={"X-Agent-Id": "other"})
    assert named.json()["text"] == "other"
    for agent, status, code in (("nobody", 404, "agent_not_found"), ("../other", 400, "invalid_agent_id")):
        refused = await bench.ask("POST", "/console/chat", json=body, headers={"X-Agent-Id": agent})
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    await bench.manager.disable_agent("other")
    refused = await bench.ask("POST", "/api/agents/other/chat", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "agent_disabled")


async def test_leaving_a_stream_does_not_end_the_turn_and_joining_goes_on_at_the_next_event(bench: ApiBench) -> None:
    bench.script = gate = Gate()
    async with bench.stream("POST", "/console/chat", body={"session_id": "s", "message": "go"}) as first:
        seen = await first.until("text.delta")
    async with bench.stream("GET", "/api/agents/default/sessions/s/stream", last_event_id=seen.id) as second:
        gate.opened.set()
        events = await second.rest()
    assert [event.type for event in events] == ["text.delta", "turn.completed"]
    assert events[0].data["text"] == "two"
    assert events[-1].data["text"] == "one two"


async def test_joining_without_an_id_tells_the_live_turn_from_its_beginning(bench: ApiBench) -> None:
    bench.script = gate = Gate()
    address = "/api/agents/default/sessions/s/stream"
    async with bench.stream("POST", "/console/chat", body={"session_id": "s", "message": "go"}) as first:
        await first.until("text.delta")
        async with bench.stream("GET", address) as second:
            gate.opened.set()
            told = await second.rest()
        assert [event.type for event in told] == ["turn.started", "text.delta", "text.delta", "turn.completed"]
        assert told == await first.rest()
    assert (await bench.ask("GET", address)).status_code == 204
    assert (await bench.ask("GET", address, headers={"Last-Event-ID": told[-1].id})).status_code == 204


async def test_joining_after_a_restart_gives_the_end_once(bench: ApiBench, tmp_path: Path) -> None:
    said = await bench.ask("POST", "/console/chat", json={"session_id": "s", "message": "go", "stream": False})
    turn = said.json()["turn_id"]
    await bench.manager.stop(0)
    async with ApiBench(tmp_path / "home") as later:
        address = "/api/agents/default/sessions/s/stream"
        joined = await later.ask("GET", address, headers={"Last-Event-ID": f"{turn}.2"})
        (last,) = parse_sse(joined.text)
        assert (last.type, last.data["text"]) == ("turn.completed", "you said: go")
        assert (await later.ask("GET", address, headers={"Last-Event-ID": last.id})).status_code == 204
        assert (await later.ask("GET", address, headers={"Last-Event-ID": "turn_unknown.3"})).status_code == 204
        broken = await later.ask("GET", address, headers={"Last-Event-ID": "nonsense"})
        assert broken.json()["error"]["details"]["field"] == "Last-Event-ID"


async def test_stop_ends_the_stream_with_what_was_said(bench: ApiBench) -> None:
    bench.script = Gate()
    async with bench.stream("POST", "/console/chat", body={"session_id": "s", "message": "go"}) as stream:
        await stream.until("text.delta")
        stopped = await bench.ask("POST", "/api/agents/default/sessions/s/stop")
        assert stopped.json() == {"stopped": True}
        events = await stream.rest()
    assert (events[-1].type, events[-1].data["text"]) == ("turn.cancelled", "one ")
    assert (await bench.ask("POST", "/api/agents/default/sessions/s/stop")).json() == {"stopped": False}


async def test_the_same_idempotency_key_is_the_same_turn(bench: ApiBench) -> None:
    body = {"session_id": "s", "message": "once", "stream": False}
    headers = {"Idempotency-Key": "k1"}
    first = (await bench.ask("POST", "/console/chat", json=body, headers=headers)).json()
    again = (await bench.ask("POST", "/console/chat", json=body, headers=headers)).json()
    assert again == first
    stored = (await bench.ask("GET", "/api/agents/default/sessions/s/messages")).json()["messages"]
    assert [message["text"] for message in stored] == ["once", "you said: once"]


async def test_a_key_finds_its_conversation_when_none_was_named(bench: ApiBench) -> None:
    body = {"message": "once", "stream": False}
    said = [
        (await bench.ask("POST", "/console/chat", json=body, headers={"Idempotency-Key": "k"})).json() for _ in "ab"
    ]
    assert said[0] == said[1]
    other = await bench.ask("POST", "/console/chat", json=body, headers={"Idempotency-Key": "another"})
    assert other.json()["session_id"] != said[0]["session_id"]


async def test_a_busy_session_refuses_when_asked_to_and_queues_otherwise(bench: ApiBench) -> None:
    bench.script = gate = Gate()
    body = {"session_id": "s", "message": "go"}
    async with bench.stream("POST", "/console/chat", body=body) as first:
        await first.until("text.delta")
        refused = await bench.ask("POST", "/console/chat", json={**body, "if_busy": "reject"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
        async with bench.stream("POST", "/console/chat", body=body) as second:
            queued = await second.until("notice")
            assert (queued.data["code"], queued.data["position"]) == ("queued", 1)
            gate.opened.set()
            assert (await second.rest())[-1].type == "turn.completed"


async def test_a_failed_turn_says_why(bench: ApiBench) -> None:
    async def fail(live: LiveTurn) -> Ending:
        raise ModelError("the provider is away", retryable=True, status=503)

    bench.script = fail
    answer = await bench.ask("POST", "/console/chat", json={"message": "hello", "stream": False})
    facts = answer.json()
    assert (answer.status_code, facts["status"]) == (200, "failed")
    assert facts["error"] == {"code": "model_error", "message": "the provider is away", "retryable": True}


async def test_a_conversation_without_an_id_gets_one_that_sorts_by_time(bench: ApiBench) -> None:
    body = {"message": "hello", "stream": False}
    ids = [(await bench.ask("POST", "/console/chat", json=body)).json()["session_id"] for _ in range(3)]
    assert ids == sorted(set(ids))
    assert all(id.startswith("sess_") for id in ids)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"message": ""}, "message"),
        ({"message": "  \n"}, "message"),
        ({"message": []}, "message"),
        ({}, "message"),
        ({"message": "x", "session_id": "a/b"}, "session_id"),
        ({"message": "x", "if_busy": "shout"}, "if_busy"),
        ({"message": [{"type": "text", "text": "x"}, {"type": "file"}]}, "message[1]"),
        ({"message": [{"type": "hologram"}]}, "message[0].type"),
        ({"message": [{"type": "file", "path": "../agent.json"}]}, "message[0].path"),
        ({"message": [{"type": "file", "path": "files/none.txt"}]}, "message[0].path"),
    ],
)
async def test_what_does_not_fit_is_named(bench: ApiBench, body: dict[str, Any], field: str) -> None:
    answer = await bench.ask("POST", "/console/chat", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["details"]["field"]) == (400, field)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("message", "told"), [("", "empty"), ([], "empty"), (None, "a text"), (5, "a text"), ({"text": "x"}, "a text")]
)
async def test_a_message_that_is_none_is_told_what_it_should_be(bench: ApiBench, message: Any, told: str) -> None:
    answer = await bench.ask("POST", "/api/agents/default/chat", json={"message": message})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


async def test_lone_surrogates_become_replacement_characters(bench: ApiBench) -> None:
    raw = b'{"session_id":"s","message":"x\\ud83dy","stream":false,"metadata":{"a\\udfff":["\\ud800"]}}'
    answer = await bench.ask("POST", "/console/chat", content=raw, headers={"content-type": "application/json"})
    assert answer.json()["text"] == "you said: x\ufffdy"
    turns = (await bench.ask("GET", "/api/agents/default/sessions/s/turns")).json()["turns"]
    assert turns[0]["metadata"] == {"a\ufffd": ["\ufffd"]}


async def test_files_of_a_message_lie_in_the_workspace(bench: ApiBench) -> None:
    seen: list[Any] = []

    async def look(live: LiveTurn) -> Ending:
        seen.extend(live.request.message.parts)
        live.say("ok")
        return completed(live)

    bench.script = look
    folder = bench.home / "workspaces" / "default" / "files"
    folder.mkdir()
    (folder / "notes.txt").write_text("x")
    (folder / "leak").symlink_to(bench.home / "secrets.json")
    parts = [{"type": "text", "text": "see"}, {"type": "file", "path": "files/notes.txt", "media_type": "text/plain"}]
    answer = await bench.ask("POST", "/console/chat", json={"message": parts, "stream": False})
    assert answer.status_code == 200
    assert (seen[1].path, seen[1].name, seen[1].media_type) == ("files/notes.txt", "notes.txt", "text/plain")
    leak = await bench.ask("POST", "/console/chat", json={"message": [{"type": "file", "path": "files/leak"}]})
    assert leak.json()["error"]["code"] == "invalid_path"


async def test_a_message_longer_than_any_window_is_refused_and_says_what_to_do(bench: ApiBench) -> None:
    answer = await bench.ask("POST", "/api/agents/default/chat", json={"message": "x" * 1_000_001})
    assert answer.status_code == 413
    assert "upload it as a file" in answer.json()["error"]["message"]
