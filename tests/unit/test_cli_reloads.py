"""`agents plan|reload|history` and `inbox`: what they print, with a daemon that is scripted and without one."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from qworkspace.cli import inbox, reloads
from qworkspace.cli.app import run
from tests.support.daemon import write_home

RELOAD = {
    "generation": 2,
    "at": "2026-01-01T12:00:00+00:00",
    "trigger": "api",
    "changed": ["heartbeat.every", "a", "b", "c", "d"],
    "moved": ["chats"],
    "rebuilt": ["cron"],
    "outcome": "applied",
    "timings": {"build_ms": 12.5, "swap_ms": 0.2, "drain_ms": None},
}
ITEM: dict[str, Any] = {
    "id": "inbox_1",
    "agent_id": "anna",
    "kind": "problem",
    "severity": "error",
    "title": "agent.json of 'anna' cannot be used",
    "body": "agent.json:2:3: no",
    "created_at": "2026-01-01T12:00:00+00:00",
    "read": False,
}


class Daemon:
    """Stands in for the client: answers by method and path, and keeps what was asked."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, home: object) -> Daemon:
        return self

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get(self, path: str, **query: Any) -> Any:
        return self._answer(f"GET {path}", {key: value for key, value in query.items() if value is not None})

    def post(self, path: str, body: Any = None) -> Any:
        return self._answer(f"POST {path}", body)

    def request(self, method: str, path: str) -> Any:
        return self._answer(f"{method} {path}", None)

    def send_text(self, method: str, path: str, text: str, *, kind: str, query: Any) -> Any:
        return self._answer(f"{method} {path}", (text, kind, query))

    def _answer(self, what: str, given: Any) -> Any:
        self.asked.append((what, given))
        return self._answers[what]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_home(tmp_path / "home", memory=True)


def answers(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> Daemon:
    made = Daemon(found)
    for module in (inbox, reloads):
        monkeypatch.setattr(module, "DaemonClient", made)
    monkeypatch.setattr(reloads, "daemon_address", lambda home: "http://127.0.0.1:1")
    return made


# without the daemon


def test_a_plan_without_the_daemon_compares_with_the_file(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.json"
    new.write_text('\ufeff{\r\n "name": "Nova",\r\n "runing": {}}', encoding="utf-8")
    before = (home / "workspaces/default/agent.json").read_bytes()
    assert run(["agents", "plan", "default", "--file", str(new), "--home", str(home), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["kind"], found["changed"]) == ("live", ["name", "description", "runing"])
    assert [problem["near"] for problem in found["problems"]] == ["running"]
    assert "no daemon is running" in shown.err
    assert (home / "workspaces/default/agent.json").read_bytes() == before


def test_a_plan_of_a_patch_from_stdin(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"running": {"max_iters": 7}}')))
    assert run(["agents", "plan", "default", "--file", "-", "--patch", "--home", str(home)]) == 0
    out = capsys.readouterr().out
    assert "from the next turn on" in out and "running.max_iters" in out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"running": {\n "max_iters": "x"}}', "new.json:2:15: running.max_iters must be a whole number"),
        (b"{", "new.json:1:"),
        (b"\xff", "not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_is_named_with_its_place(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, words: str
) -> None:
    new = tmp_path / "new.json"
    if data is not None:
        new.write_bytes(data)
    assert run(["agents", "plan", "default", "--file", str(new), "--home", str(home)]) == 1
    assert words in capsys.readouterr().err


def test_a_broken_file_can_be_planned_away_and_an_unknown_agent_cannot(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "workspaces/default/agent.json").write_text("{")
    (tmp_path / "new.json").write_text('{"name": "Mended"}')
    arguments = ["--file", str(tmp_path / "new.json"), "--home", str(home)]
    assert run(["agents", "plan", "default", *arguments]) == 0
    assert run(["agents", "plan", "nobody", *arguments]) == 1
    assert "'nobody'" in capsys.readouterr().err


# with the daemon


def test_the_daemon_gets_the_text_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = {
        "kind": "reload",
        "changed": ["cron.enabled"],
        "moved": ["chats"],
        "rebuilt": ["cron"],
        "added": [],
    }
    found |= {"removed": [], "live": [], "restart": [], "problems": [{"path": "x", "message": "unknown key 'x'"}]}
    made = answers(monkeypatch, {"POST /api/agents/anna/plan": found})
    new = tmp_path / "new.json"
    new.write_text('{"cron":   {}}')
    assert run(["agents", "plan", "anna", "--file", str(new), "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "a new instance" in out and "rebuilt   cron" in out and "! unknown key 'x'" in out
    assert made.asked[0][1] == ('{"cron":   {}}', "application/json", {"name": "new.json"})
    assert run(["agents", "plan", "anna", "--patch", "--file", str(new), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert made.asked[1][1][1] == "application/merge-patch+json"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("applied", 0), ("live", 0), ("nothing", 0), ("waiting", 0), ("failed", 1), ("rolled_back", 1)],
)
def test_a_reload_says_what_it_came_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: str, code: int
) -> None:
    error = {"error": {"code": "x", "message": "cron cannot start"}} if code else {}
    answers(monkeypatch, {"POST /api/agents/anna/reload": RELOAD | {"outcome": outcome} | error})
    assert run(["agents", "reload", "anna"]) == code
    out = capsys.readouterr().out
    assert out.startswith(f"{outcome}: ") and "rebuilt   cron" in out
    assert ("cron cannot start" in out) == bool(code)
    assert run(["agents", "reload", "anna", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["outcome"] == outcome


def test_the_history_is_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = answers(monkeypatch, {"GET /api/agents/anna/reloads": {"reloads": [RELOAD], "next_cursor": None}})
    assert run(["agents", "history", "anna", "-n", "5"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:4] == ["AT", "GENERATION", "OUTCOME", "TRIGGER"]
    assert "applied" in row and "heartbeat.every, a, b and 2 more" in row and "12.5" in row
    assert made.asked[0][1] == {"limit": 5}


def test_the_inbox_is_listed_read_and_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"items": [ITEM, ITEM | {"id": "inbox_0", "title": "mended one", "settled_at": ITEM["created_at"]}]}
    made = answers(
        monkeypatch,
        {
            "GET /api/inbox": page | {"unread": 2, "next_cursor": None},
            "POST /api/inbox/inbox_1/read": ITEM | {"read": True},
            "POST /api/inbox/inbox_0/read": page["items"][1] | {"read": True},
            "POST /api/inbox/read": {"read": 2},
            "DELETE /api/inbox": {"removed": 2},
            "DELETE /api/inbox/inbox_1": None,
        },
    )
    assert run(["inbox", "list", "--unread", "-a", "anna"]) == 0
    out = capsys.readouterr().out
    assert "✗" in out and "mended" in out and ITEM["title"] in out
    assert made.asked[-1][1] == {"limit": 50, "unread": "true", "agent": "anna"}
    assert run(["inbox", "read"]) == 0
    out = capsys.readouterr().out
    assert out.index("mended one") < out.index("agent.json:2:3: no"), "the oldest first"
    assert run(["inbox", "read", "inbox_1", "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["items"]] == ["inbox_1"]
    assert run(["inbox", "read", "--all"]) == 0
    assert capsys.readouterr().out == "2 marked as read\n"
    assert run(["inbox", "read", "inbox_1", "--all"]) == 1
    assert run(["inbox", "clear"]) == 0
    assert run(["inbox", "clear", "inbox_1", "--json"]) == 0
    assert capsys.readouterr().out == '2 removed\n{\n  "removed": 1\n}\n'
