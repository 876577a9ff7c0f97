"""From nothing to a conversation, and every way in which a start can be refused."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home, write_json

HEAVY = ["pydantic_ai", "openai", "chromadb", "mcp", "numpy", "httpx", "httpx2", "apscheduler", "watchfiles"]
HEAVY += ["typer", "rich", "uvicorn", "prometheus_client"]


def test_a_first_start_makes_the_home_and_answers(daemon: DaemonProcess) -> None:
    answer = daemon.chat("hello")
    assert answer["status"] == "completed" and answer["text"]
    assert [message["role"] for message in daemon.messages()] == ["user", "assistant"]
    assert (daemon.home / "config.json").is_file()
    assert (daemon.home / "workspaces" / "default" / "agent.json").is_file()
    assert stat.S_IMODE((daemon.home / "secrets.json").stat().st_mode) == 0o600


def test_the_printed_link_pairs_one_browser_once(daemon: DaemonProcess) -> None:
    link = re.search(r"http://127\.0\.0\.1:\d+/#pair=(\S+)", daemon.text())
    assert link is not None, daemon.text()
    with httpx.Client(base_url=daemon.url, headers={"Origin": daemon.url, "Sec-Fetch-Site": "same-origin"}) as browser:
        assert browser.get("/api/status").status_code == 401
        assert browser.post("/api/pair", json={"code": link[1]}).status_code == 200
        assert browser.get("/api/status").status_code == 200
        assert browser.post("/api/pair", json={"code": link[1]}).status_code == 403


def test_neither_token_nor_code_is_in_the_log(daemon: DaemonProcess) -> None:
    token = daemon.token
    daemon.request("GET", "/api/status")
    daemon.request("GET", f"/api/status?token={token}")
    daemon.request("GET", "/api/status", headers={"Authorization": "Bearer wrong-token-value"})
    daemon.terminate()
    link = re.search(r"#pair=(\S+)", daemon.text())
    log = (daemon.home / ".daemon" / "log" / "qworkspace.log").read_text(encoding="utf-8")
    assert link is not None and log
    for secret in (token, link[1], "wrong-token-value"):
        assert secret not in log
    assert token not in daemon.text()


def test_a_second_start_says_who_is_first_and_ends(daemon: DaemonProcess, make_daemon: MakeDaemon) -> None:
    second = make_daemon(daemon.home)
    second.output = daemon.home.parent / "second.output"
    began = time.monotonic()
    with pytest.raises(AssertionError, match="ended with 1"):
        second.start()
    assert time.monotonic() - began < 3
    assert str(daemon.pid) in second.text() and daemon.url in second.text()
    assert daemon.chat("still there?")["status"] == "completed"


def test_a_taken_port_is_named_before_anything_begins(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = make_daemon(port=port)
        with pytest.raises(AssertionError, match="ended with 1"):
            daemon.start()
    assert f"port {port}" in daemon.text() and f"(process {os.getpid()})" in daemon.text()
    assert sorted(path.name for path in daemon.home.iterdir()) == [".daemon"]
    assert [path.name for path in (daemon.home / ".daemon").iterdir()] == ["lock"]
    assert daemon.start().chat("hello")["status"] == "completed"


def test_nothing_heavy_is_imported_before_the_port_is_bound(tmp_path: Path) -> None:
    code = (
        "import sys, qworkspace.daemon as daemon\n"
        "from qworkspace.cli.main import main\n"
        "def bind(host, port):\n"
        "    sys.exit(' '.join(sorted(set(sys.argv[3:]) & set(sys.modules))))\n"
        "daemon.bind = bind\n"
        "main(['up', *sys.argv[1:3]])\n"
    )
    home = write_home(tmp_path / "home", memory=True)
    command = [sys.executable, "-c", code, "--home", str(home), *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == "\n"


def test_a_home_that_is_no_directory_is_said(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    (tmp_path / "home").write_text("", encoding="utf-8")
    daemon = make_daemon(tmp_path / "home")
    with pytest.raises(AssertionError, match="ended with 1"):
        daemon.start()
    assert "not writable" in daemon.text() and "--home" in daemon.text()
    assert "Traceback" not in daemon.text()


def test_no_token_beyond_the_loopback_is_refused(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    write_home(tmp_path / "home", config={"server": {"auth": "off"}}, memory=True)
    daemon = make_daemon(tmp_path / "home", arguments=["--host", "0.0.0.0"])
    with pytest.raises(AssertionError, match="ended with 1"):
        daemon.start()
    assert "loopback" in daemon.text() and "Traceback" not in daemon.text()


def test_a_broken_config_leaves_the_daemon_up_and_its_repair_is_picked_up(
    tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    home = write_home(tmp_path / "home", memory=True)
    sound = (home / "config.json").read_text(encoding="utf-8")
    (home / "config.json").write_text('{\n  "agents": {"active_agent": 5}\n}', encoding="utf-8")
    daemon = make_daemon(home).start()
    [problem] = daemon.get("/readyz")["degraded"]
    assert f"{home / 'config.json'}:2:" in problem["message"] and "active_agent" in problem["message"]
    answer = daemon.request("POST", "/api/agents/default/chat", json={"message": "hello", "stream": False})
    assert answer.status_code >= 400 and "config.json" in answer.json()["error"]["message"]
    assert daemon.get("/api/status")["problems"][0]["key"] == problem["key"]
    (home / "config.json").write_text(sound, encoding="utf-8")
    assert daemon.chat("hello")["status"] == "completed"
    end = time.monotonic() + 10
    while daemon.get("/readyz")["degraded"] and time.monotonic() < end:
        time.sleep(0.1)
    assert daemon.get("/readyz")["degraded"] == []


def test_one_broken_agent_does_not_stop_the_others(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    home = write_home(tmp_path / "home", agents=("good", "bad"), memory=True)
    (home / "workspaces" / "bad" / "agent.json").write_text("{", encoding="utf-8")
    daemon = make_daemon(home).start()
    assert daemon.chat("hello", agent="good")["status"] == "completed"
    refused = daemon.request("POST", "/api/agents/bad/chat", json={"message": "hello", "stream": False})
    assert refused.status_code >= 400 and "agent.json:1:2" in refused.json()["error"]["message"]
    write_json(home / "workspaces" / "bad" / "agent.json", {"id": "bad"})
    assert daemon.chat("hello", agent="bad")["status"] == "completed"


def test_the_terminal_gets_json_when_asked(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(arguments=["--log-json"]).start()
    daemon.terminate()
    lines = [json.loads(line) for line in daemon.text().splitlines() if line.startswith("{")]
    assert "stopping: SIGTERM" in [line["message"] for line in lines]
    assert {"time", "level", "logger", "message"} <= lines[0].keys()
