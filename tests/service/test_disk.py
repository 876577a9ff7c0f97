"""Disks that are full or cannot be written: nothing acknowledged is lost, one clear problem, recovery by itself."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qworkspace.base.lock import HomeLock
from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home, write_json
from tests.support.disks import Kind, SmallDisk, read_only, why_not
from tests.support.model_process import ModelProcess

SECONDS = 30.0
LONG = "x" * 20_000
WITHOUT_MEMORY = {"running": {"memory_manager_backend": "none"}}
"""Memory has files and problems of its own, which would be counted here."""

Mount = Callable[..., SmallDisk]
possible = functools.cache(why_not)


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts small disks for this test, which is skipped where that is not possible."""
    mounted: list[SmallDisk] = []

    def make(place: Path, *, kind: Kind = "tmpfs", **options: Any) -> SmallDisk:
        if reason := possible(kind):
            pytest.skip(reason)
        disk = SmallDisk(place, kind=kind, **options).__enter__()
        mounted.append(disk)
        return disk

    yield make
    for disk in reversed(mounted):
        disk.__exit__(None, None, None)


@pytest.fixture
def make(mount: Mount, make_daemon: MakeDaemon, tmp_path: Path) -> MakeDaemon:
    """Daemons that end before the disks go, and whose output goes elsewhere."""

    def make(home: Path) -> DaemonProcess:
        daemon = make_daemon(home)
        daemon.output = tmp_path / f"output-of-{home.name}"
        return daemon

    return make


def ask(daemon: DaemonProcess, text: str, *, agent: str = "default", session: str = "s1") -> httpx.Response:
    body = {"session_id": session, "message": text, "stream": False}
    return daemon.request("POST", f"/api/agents/{agent}/chat", json=body)


def refused(answer: httpx.Response) -> str:
    """The message of a storage error, however far the turn had come; empty for an answer that is stored."""
    found = answer.json()
    if answer.status_code == 200 and found["status"] == "completed":
        return ""
    error = found["error"]
    assert answer.status_code in (200, 507) and error["code"] == "storage_error", answer.text
    return str(error["message"])


def upload(daemon: DaemonProcess, name: str, *, agent: str = "default") -> httpx.Response:
    kind = {"Content-Type": "text/plain"}
    target = f"/api/agents/{agent}/uploads?name={name}"
    return daemon.request("POST", target, content=LONG.encode(), headers=kind)


def said(daemon: DaemonProcess, *, agent: str = "default", session: str = "s1") -> list[str]:
    """What the user said, as it is stored."""
    return [one["text"] for one in daemon.messages(agent=agent, session=session) if one["role"] == "user"]


def states(daemon: DaemonProcess, session: str = "s1") -> list[str]:
    """The states of the session's turns, the newest first."""
    return [turn["state"] for turn in daemon.get(f"/api/agents/default/sessions/{session}/turns")["turns"]]


def problems(daemon: DaemonProcess) -> list[str]:
    return [problem["message"] for problem in daemon.get("/api/status")["problems"]]


def eventually(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


# the whole home on a full disk


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_loses_nothing_and_is_forgotten_once_there_is_space(
    tmp_path: Path, mount: Mount, make: MakeDaemon, kind: Kind
) -> None:
    disk = mount(tmp_path / "disk", kind=kind)
    daemon = make(write_home(disk.place / "home", agent=WITHOUT_MEMORY)).start()
    assert daemon.chat("before")["status"] == "completed"
    disk.fill()
    acknowledged, reasons = ["before"], []
    for number in range(100):
        text = f"message {number} {LONG}"
        if reason := refused(ask(daemon, text)):
            reasons.append(reason)
        else:
            acknowledged.append(text)
        if len(reasons) == 5:
            break
    assert len(reasons) == 5 and all("disk" in reason for reason in reasons)
    [problem] = problems(daemon)
    assert "the disk is full" in problem and "sessions.db" in problem
    assert [one["message"] for one in daemon.get("/readyz")["degraded"]] == [problem]
    assert said(daemon)[: len(acknowledged)] == acknowledged
    disk.free()
    assert daemon.chat("after")["status"] == "completed"
    assert problems(daemon) == []
    daemon.kill()
    assert [*acknowledged, "after"] == [text for text in said(daemon.start()) if text in {*acknowledged, "after"}]
    assert "Traceback" not in daemon.said()


def test_what_is_no_message_is_refused_whole_by_a_full_disk(tmp_path: Path, mount: Mount, make: MakeDaemon) -> None:
    disk = mount(tmp_path / "disk")
    daemon = make(write_home(disk.place / "home", agent=WITHOUT_MEMORY)).start()
    daemon.chat("hello")
    workspace = daemon.home / "workspaces/default"
    before = (workspace / "agent.json").read_bytes()
    disk.fill()
    config = daemon.request("PATCH", "/api/agents/default/config", json={"description": LONG})
    created = daemon.request("POST", "/api/agents", json={"id": "fresh"})
    rotated = daemon.request("POST", "/api/token/rotate", json={})
    code = daemon.request("POST", "/api/pairing").json()["code"]
    paired = daemon.request("POST", "/api/pair", json={"code": code}, token=False)
    for answer in (config, created, upload(daemon, "a.txt"), rotated, paired):
        assert answer.status_code == 507 and answer.json()["error"]["code"] == "storage_error", answer.text
        assert "the disk is full" in answer.json()["error"]["message"]
    assert (workspace / "agent.json").read_bytes() == before
    assert "fresh" not in [agent["id"] for agent in daemon.get("/api/agents")["agents"]]
    assert [path for path in (workspace / "files").rglob("*") if path.is_file()] == []
    assert len(problems(daemon)) == 1
    disk.free()
    assert daemon.request("POST", "/api/agents", json={"id": "fresh"}).status_code == 201
    assert daemon.chat("hello", agent="fresh")["status"] == "completed"
    assert eventually(lambda: problems(daemon) == [])  # nobody had to write to home.db for that
    assert "Traceback" not in daemon.said()


def test_a_start_on_a_full_disk_waits_and_says_so(tmp_path: Path, mount: Mount, make: MakeDaemon) -> None:
    disk = mount(tmp_path / "disk")
    daemon = make(used(write_home(disk.place / "home", agent=WITHOUT_MEMORY)))
    disk.fill()
    daemon.start(ready=False)
    assert daemon.request("GET", "/healthz", token=False).status_code == 200
    waiting = eventually(lambda: (found := daemon.request("GET", "/readyz")).json()["degraded"] and found)
    assert waiting.status_code == 503, daemon.text()
    [problem] = waiting.json()["degraded"]
    assert "the disk is full" in problem["message"] and "home.db" in problem["message"]
    assert "the disk is full" in daemon.cli("status").stderr
    disk.free()
    daemon.wait_for("/readyz")
    assert daemon.chat("after")["status"] == "completed"
    assert said(daemon) == ["after"] and problems(daemon) == []
    assert "Traceback" not in daemon.said()


def used(home: Path) -> Path:
    """The home as an earlier daemon has left it: its lock and its token are there."""
    lock = HomeLock(home / ".daemon" / "lock")
    lock.acquire("2026-01-01T00:00:00+00:00")
    lock.release()
    write_json(home / "secrets.json", {"access_token": "made-by-an-earlier-start"})
    return home


# homes and workspaces that cannot be written


def test_a_home_that_cannot_be_written_is_named_and_nothing_begins(tmp_path: Path, make: MakeDaemon) -> None:
    if reason := possible("tmpfs"):
        pytest.skip(reason)
    (tmp_path / "empty").mkdir()
    for home in (tmp_path / "empty", used(write_home(tmp_path / "used"))):
        daemon = make(home)
        with read_only(home), pytest.raises(AssertionError, match="ended with 1"):
            daemon.start()
        [line] = daemon.text().splitlines()
        assert "not writable" in line and str(home) in line and "--home" in line
    assert daemon.start().chat("hello")["status"] == "completed"


def test_a_read_only_workspace_stops_its_own_agent_only(tmp_path: Path, make: MakeDaemon) -> None:
    if reason := possible("tmpfs"):
        pytest.skip(reason)
    daemon = make(write_home(tmp_path / "home", agents=("good", "bad")))
    workspace = daemon.home / "workspaces/bad"
    with read_only(workspace):
        daemon.start()
        for number in range(2):
            answer = ask(daemon, "hello", agent="bad")
            assert answer.status_code == 507 and answer.json()["error"]["code"] == "storage_error", answer.text
            assert "read-only" in answer.json()["error"]["message"] and str(workspace) in answer.text
            assert ask(daemon, f"hello {number}", agent="good").json()["status"] == "completed"
        shown = [(one["agent_id"], one["message"]) for one in daemon.get("/api/status")["problems"]]
        assert len(shown) == 1 and shown[0][0] == "bad" and "read-only" in shown[0][1]
        config = daemon.request("PATCH", "/api/agents/bad/config", json={"description": "changed"})
        assert config.status_code == 507 and "read-only" in config.text
    assert ask(daemon, "hello again", agent="bad").json()["status"] == "completed"
    assert said(daemon, agent="bad") == ["hello again"] and problems(daemon) == []
    assert "Traceback" not in daemon.said()


# turns that run meanwhile


@pytest.fixture(scope="module")
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    if reason := possible("tmpfs"):
        pytest.skip(reason)
    with SmallDisk(tmp_path_factory.mktemp("turns") / "disk", megabytes=16) as small:
        yield small


@pytest.fixture(scope="module")
def running(disk: SmallDisk, models: ModelProcess) -> Iterator[DaemonProcess]:
    """A daemon whose whole home is on the small disk, as is its output; its model does what the message says."""
    home = write_home(disk.place / "home", models=models.url, agents=("default", "good"))
    with DaemonProcess(home) as daemon:
        daemon.chat("hello", session="s0")
        yield daemon


@pytest.fixture
def daemon(running: DaemonProcess) -> Iterator[DaemonProcess]:
    with running.unsurprised():
        yield running
    assert problems(running) == []


def stream(
    daemon: DaemonProcess, text: str, *, session: str, after_first_text: Callable[[], None]
) -> list[tuple[str, Any]]:
    """The events of a turn; the callback is called once there is text, and the turn goes on meanwhile."""
    events: list[tuple[str, Any]] = []
    body = {"session_id": session, "message": text}
    with daemon.client() as client, client.stream("POST", "/api/agents/default/chat", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("event: "):
                events.append((line.removeprefix("event: "), None))
            elif line.startswith("data: "):
                events[-1] = (events[-1][0], json.loads(line.removeprefix("data: ")))
                if events[-1][0] == "text.delta" and [kind for kind, _ in events].count("text.delta") == 1:
                    after_first_text()
    return events


def test_a_disk_that_fills_up_under_a_stream_fails_the_turn_and_keeps_its_answer(
    disk: SmallDisk, daemon: DaemonProcess
) -> None:
    text = "[[slow:0.03]] [[long:100]]"
    events = stream(daemon, text, session="full", after_first_text=disk.fill)
    assert [kind for kind, _ in events].count("text.delta") > 5
    kind, data = events[-1]
    assert kind == "turn.failed" and data["code"] == "storage_error" and data["retryable"]
    assert "disk is full" in data["message"] and len(problems(daemon)) == 1
    disk.free()
    assert daemon.chat("after", session="full")["status"] == "completed"
    assert said(daemon, session="full") == [text, "after"]
    assert eventually(lambda: states(daemon, "full") == ["completed", "completed"]), states(daemon, "full")
    assert any(one["text"].endswith("word99") for one in daemon.messages(session="full"))


def test_a_disk_that_is_full_for_a_moment_costs_no_answer(disk: SmallDisk, daemon: DaemonProcess) -> None:
    def full_for_a_while() -> None:
        disk.fill()
        time.sleep(2.5)  # a draft is due meanwhile
        disk.free()

    events = stream(daemon, "[[slow:0.04]] [[long:150]]", session="moment", after_first_text=full_for_a_while)
    assert events[-1][0] == "turn.completed" and events[-1][1]["text"].endswith("word149")
    assert states(daemon, "moment") == ["completed"]


def test_a_full_disk_of_the_agents_files_is_told_to_the_agent(daemon: DaemonProcess, mount: Mount) -> None:
    files = mount(daemon.home / "workspaces/default/files", megabytes=1)
    daemon.chat('[[tool:write_file {"path": "files/a.txt", "content": "first"}]]', session="files")
    files.fill()
    write = f'[[tool:write_file {{"path": "files/a.txt", "content": "{LONG}"}}]] then'
    told = daemon.chat(write, session="files")
    assert told["status"] == "completed" and "the disk is full" in told["text"]
    assert upload(daemon, "b.txt").status_code == 507
    assert (files.place / "a.txt").read_text(encoding="utf-8") == "first"
    files.free()
    assert "replaced" in daemon.chat(write, session="files")["text"]
    assert [path.name for path in files.place.rglob("*") if path.is_file()] == ["a.txt"]


def test_a_workspace_that_becomes_read_only_while_it_runs_recovers(daemon: DaemonProcess) -> None:
    write = '[[tool:write_file {"path": "files/b.txt", "content": "x"}]] now'
    with read_only(daemon.home / "workspaces/default"):
        told = ask(daemon, write, session="closed").json()
        assert "read-only" in json.dumps(told), told
        assert upload(daemon, "c.txt").status_code == 507
        assert ask(daemon, "hello", agent="good").json()["status"] == "completed"
    assert "made files/b.txt" in daemon.chat(write, session="closed")["text"]
    assert upload(daemon, "c.txt").status_code == 201
