"""A turn in the terminal: streamed, stopped, left by a broken connection and re-joined, asked for permission."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.cli.client import LostConnection, NoDaemon, ServerEvent, lines_of, read_events
from qworkspace.cli.conversation import Conversation, Printer

Step = ServerEvent | BaseException


class FakeClient:
    """Streams that were prepared, one per request; everything that is asked is kept."""

    home = Path("/home/of/test")

    def __init__(self, *streams: list[Step], away: int = 0) -> None:
        self._streams = list(streams)
        self._away = away
        self.asked: list[tuple[str, str, Any]] = []

    @contextmanager
    def stream(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Iterator[ServerEvent]]:
        self.asked.append((method, path, body if body is not None else dict(headers or {})))
        yield self._play(self._streams.pop(0))

    def _play(self, steps: list[Step]) -> Iterator[ServerEvent]:
        for step in steps:
            if isinstance(step, BaseException):
                raise step
            yield step

    def get(self, path: str, **query: Any) -> Any:
        if self._away:
            self._away -= 1
            raise NoDaemon(self.home)
        return {"status": "ready"}

    def post(self, path: str, body: Any = None) -> Any:
        self.asked.append(("POST", path, body))
        return {}

    def close(self) -> None:
        """Nothing is open."""


def event(number: int, type: str, **data: Any) -> ServerEvent:
    return ServerEvent(f"turn_1.{number}", type, data)


def completed(number: int, text: str) -> ServerEvent:
    return event(number, "turn.completed", text=text, usage={})


def talk(client: FakeClient, *, interactive: bool = False) -> Conversation:
    printer = Printer(interactive=interactive)
    return Conversation(client, agent="alice", session="s1", printer=printer, pause=lambda seconds: None)  # type: ignore[arg-type]


def test_the_answer_is_on_stdout_and_the_rest_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[Step] = [
        event(1, "turn.started", session_id="s1"),
        event(2, "text.delta", text="Let me look."),
        event(3, "tool.call", call_id="c", name="read_file", args={"path": "a.md"}),
        event(4, "tool.result", call_id="c", name="read_file", outcome="ok", text="x"),
        event(5, "text.delta", text="\n\nIt says x."),
        completed(6, "Let me look.\n\nIt says x."),
    ]
    assert talk(FakeClient(steps)).say("what is in a.md?").status == "completed"
    shown = capsys.readouterr()
    assert shown.out == "Let me look.\n\n\nIt says x.\n"
    assert shown.err == "· read_file path='a.md'\n"


def test_a_lost_connection_is_rejoined_where_it_broke(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient(
        [event(1, "text.delta", text="one "), LostConnection("reset")],
        [event(2, "text.delta", text="two"), completed(3, "one two")],
        away=3,
    )
    assert talk(client).say("count").status == "completed"
    assert client.asked[1] == (
        "GET",
        "/api/agents/alice/sessions/s1/stream",
        {"Last-Event-ID": "turn_1.1"},
    )
    shown = capsys.readouterr()
    assert (shown.out.replace("\n", ""), shown.err.count("connection lost")) == ("one two", 1)


def test_text_missed_meanwhile_is_shown_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient([event(1, "text.delta", text="one "), LostConnection("reset")], [completed(9, "one two")])
    talk(client).say("count")
    assert capsys.readouterr().out == "one two\n"


def test_a_daemon_that_never_comes_back_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient([event(1, "text.delta", text="one "), LostConnection("reset")], away=10_000)
    with pytest.raises(NoDaemon, match="did not come back"):
        talk(client).say("count")


def test_a_connection_lost_before_anything_came_is_an_error() -> None:
    with pytest.raises(LostConnection):
        talk(FakeClient([LostConnection("refused")])).say("hello")


def test_ctrl_c_stops_the_turn_and_not_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient(
        [event(1, "text.delta", text="on and"), KeyboardInterrupt()], [event(2, "turn.cancelled", text="on and")]
    )
    assert talk(client).say("go on").status == "cancelled"
    assert ("POST", "/api/agents/alice/sessions/s1/stop", None) in client.asked
    assert capsys.readouterr().out == "on and\n"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        ("y", {"decision": "allow", "remember": False}),
        ("always", {"decision": "allow", "remember": True}),
        ("", {"decision": "deny", "remember": False}),
        ("maybe", {"decision": "deny", "remember": False}),
    ],
)
def test_a_question_is_answered_in_place(
    answer: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qworkspace.cli.conversation.ask", lambda question: answer)
    asked = event(1, "tool.approval", approval_id="appr_1", name="run_shell", args={"command": "ls"}, reason="asks")
    client = FakeClient([asked, completed(2, "done")])
    talk(client, interactive=True).say("list")
    assert client.asked[1] == ("POST", "/api/approvals/appr_1", body)
    assert capsys.readouterr().err.startswith("May alice use run_shell?  asks\n  command: ls\n")


def test_without_a_terminal_a_question_waits_and_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    asked = event(1, "tool.approval", approval_id="appr_1", name="run_shell", args={"command": "ls"}, reason="")
    client = FakeClient([asked, completed(2, "done")])
    talk(client).say("list")
    assert len(client.asked) == 1
    assert "qworkspace approvals answer appr_1" in capsys.readouterr().err


def test_a_failed_turn_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    failed = event(1, "turn.failed", code="model_error", message="the key is rejected", retryable=False)
    assert talk(FakeClient([failed])).say("hello").status == "failed"
    assert "the key is rejected" in capsys.readouterr().err


DATA = st.dictionaries(st.text(max_size=5), st.text(), max_size=3)
IDS = st.from_regex(r"[a-z]{1,8}\.[0-9]{1,3}", fullmatch=True)


@given(st.lists(st.tuples(IDS, DATA)), st.booleans(), st.integers(1, 50))
def test_what_is_written_as_events_is_read_as_events(
    events: list[tuple[str, dict[str, str]]], comments: bool, size: int
) -> None:
    sent = ""
    for id, data in events:
        sent += ": still here\n\n" if comments else ""
        sent += f"id: {id}\nevent: text.delta\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
    pieces = (sent[start : start + size] for start in range(0, len(sent), size))
    assert [(found.id, found.data) for found in read_events(lines_of(pieces))] == events
