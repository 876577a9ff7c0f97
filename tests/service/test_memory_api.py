"""Notes over HTTP and on the command line: written, found, looked back on, taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_inbox import until
from tests.support.daemon import DaemonProcess, write_home

MEMORY = "/api/agents/default/memory"
NOTE = f"{MEMORY}/files/memory/2026-03-04.md"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for all tests here, without a model; each test has notes of its own."""
    config = {"embedding": {"provider": "builtin"}}
    home = write_home(
        tmp_path_factory.mktemp("memory") / "home", agents=("default", "quiet"), config=config, memory=True
    )
    (home / "workspaces/quiet/agent.json").write_text(
        json.dumps({"id": "quiet", "running": {"memory_manager_backend": "none"}}), encoding="utf-8"
    )
    with DaemonProcess(home) as daemon:
        yield daemon


def put(daemon: DaemonProcess, text: str, note: str = NOTE, **headers: str) -> Any:
    return daemon.request(
        "PUT", note, json={"text": text}, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def post(daemon: DaemonProcess, path: str, body: Any = None) -> Any:
    answer = daemon.request("POST", f"{MEMORY}/{path}", json=body if body is not None else {})
    assert answer.is_success, answer.text
    return answer.json()


def found(daemon: DaemonProcess, query: str, **more: Any) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = post(daemon, "search", {"query": query, **more})["results"]
    return results


def test_a_note_is_written_once_and_a_stale_write_refused(daemon: DaemonProcess) -> None:
    first = put(daemon, "# 2026-03-04\n\n- The boat is called Nordwind\n")
    assert first.status_code == 200 and first.json()["change"]["operation"] == "write"
    read = daemon.request("GET", NOTE)
    assert read.headers["etag"] == first.headers["etag"] == f'"{read.json()["version"]}"'
    assert daemon.request("GET", NOTE, headers={"if-none-match": read.headers["etag"]}).status_code == 304
    assert put(daemon, "# 2026-03-04\n\n- The boat is called Ostwind\n", if_match=read.headers["etag"]).is_success
    stale = put(daemon, "mine", if_match=read.headers["etag"])
    assert stale.status_code == 412 and stale.json()["error"]["code"] == "version_mismatch"
    assert "Ostwind" in daemon.get(NOTE)["text"]
    [change, *_] = daemon.get(f"{MEMORY}/history", params={"path": "memory/2026-03-04.md"})["changes"]
    assert "-- The boat is called Nordwind" in daemon.get(f"{MEMORY}/history/{change['id']}")["diff"]
    assert post(daemon, "undo", {"id": change["id"]})["changes"][0]["path"] == "memory/2026-03-04.md"
    assert "Nordwind" in daemon.get(NOTE)["text"]


def test_what_was_written_is_found_within_a_second_or_so_with_its_place(daemon: DaemonProcess) -> None:
    put(
        daemon,
        "# Trip\n\n- Anna is allergic to peanuts\n- 妈妈的生日是五月三日\n",
        f"{MEMORY}/files/memory/2026-03-05.md",
    )
    [hit, *_] = until(lambda: found(daemon, "which nuts must Anna not eat? peanuts"))
    assert hit["path"] == "memory/2026-03-05.md" and "peanuts" in hit["text"] and hit["bm25_rank"] == 1
    assert hit["start_line"] <= 3 <= hit["end_line"] and sum(hit["parts"].values()) > 0
    assert "生日" in found(daemon, "妈妈什么时候过生日？")[0]["text"]
    assert found(daemon, "peanuts", path_prefix="digest/") == []
    assert found(daemon, "peanuts", since="2026-03-06") == []
    edited = daemon.home / "workspaces/default/memory/2026-03-05.md"  # as a person would, past the daemon
    edited.write_text("# Trip\n\n- The zeppelin leaves at nine\n", encoding="utf-8")
    assert "zeppelin" in until(lambda: found(daemon, "zeppelin"))[0]["text"]
    assert not any("peanuts" in hit["text"] for hit in found(daemon, "peanuts"))


def test_status_says_when_everything_can_be_found(daemon: DaemonProcess) -> None:
    put(daemon, "one\n", f"{MEMORY}/files/memory/2026-03-06.md")
    done = until(lambda: (s := daemon.get(f"{MEMORY}/status"))["pending"] == 0 and s["files"] and s)
    assert (done["backend"], done["state"], done["problems"]) == ("markdown", "ready", [])
    assert done["chunks"] >= 1 and done["embedder"].startswith("builtin/")
    post(daemon, "reindex")
    assert until(lambda: daemon.get(f"{MEMORY}/status")["pending"] == 0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/files/memory/none.md", None, 404, "note_not_found"),
        ("GET", "/files/..%2f..%2fconfig.json", None, 400, "invalid_path"),
        ("PUT", "/files/.state/memory.db", {"text": "x"}, 400, "invalid_path"),
        ("PUT", "/files/memory/a.md", {"text": 5}, 400, "invalid_input"),
        ("POST", "/search", {"query": ""}, 400, "invalid_input"),
        ("POST", "/search", {"query": "x", "since": "2026-02-01", "until": "2026-01-01"}, 400, "invalid_input"),
        ("POST", "/undo", {"id": "change_none"}, 404, "change_not_found"),
        ("POST", "/import", {"path": "relative"}, 400, "invalid_input"),
        ("POST", "/tasks/none/retry", {}, 404, "task_not_found"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    daemon: DaemonProcess, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = daemon.request(method, MEMORY + path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_an_agent_without_memory_says_so_and_still_chats(daemon: DaemonProcess) -> None:
    assert daemon.get("/api/agents/quiet/memory/status")["state"] == "off"
    answer = daemon.request("GET", "/api/agents/quiet/memory/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_memory")
    assert daemon.chat("hello", agent="quiet")["status"] == "completed"


def test_the_command_line_writes_finds_and_takes_back(daemon: DaemonProcess, tmp_path: Path) -> None:
    written = daemon.cli("memory", "write", "The spare key hangs behind the clock")
    assert written.returncode == 0 and "+1" in written.stdout.replace("+2", "+1"), written.stderr
    assert until(lambda: "behind the clock" in daemon.cli("memory", "search", "spare key", "--why").stdout)
    listed = daemon.cli("memory", "show").stdout
    assert "memory/2" in listed and "daily" in listed
    note = written.stdout.partition(":")[0]
    assert "behind the clock" in daemon.cli("memory", "show", note).stdout
    assert "append" in daemon.cli("memory", "history", note).stdout
    assert daemon.cli("memory", "undo").returncode == 0
    assert "behind the clock" not in daemon.cli("memory", "show", note).stdout
    assert "no task 'none'" in daemon.cli("memory", "retry", "none").stderr
    assert daemon.cli("memory", "search", "\udcff").returncode == 0, "arguments need not be text"
    assert "no note" in daemon.cli("memory", "show", "\udcff").stderr
    other = tmp_path / "other"
    (other / "memory").mkdir(parents=True)
    (other / "MEMORY.md").write_text("# Facts\n\n- Prefers trains to planes\n", encoding="utf-8")
    (other / "memory/2025-12-24.md").write_text("- Gave Tom a kite\n", encoding="utf-8")
    assert "kite" not in daemon.cli("memory", "import", str(other), "--dry-run").stdout
    assert "memory/2025-12-24.md" in daemon.cli("memory", "import", str(other)).stdout
    assert "kite" in daemon.cli("memory", "show", "memory/2025-12-24.md").stdout
    assert "trains" in daemon.get(f"{MEMORY}/files/MEMORY.md")["text"]
    again = json.loads(daemon.cli("memory", "import", str(other), "--json").stdout)
    assert {one["outcome"] for one in again["files"]} == {"skipped"}


def test_without_a_model_the_answer_comes_from_memory(daemon: DaemonProcess) -> None:
    put(daemon, "# 2026-03-07\n\n- The gardener comes on Thursdays\n", f"{MEMORY}/files/memory/2026-03-07.md")
    until(lambda: found(daemon, "gardener"))
    assert "Thursdays" in daemon.chat("When does the gardener come?")["text"]
