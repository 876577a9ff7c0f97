"""What only a whole daemon shows: the browser opens, a new home is told, "always" is kept, titles are made."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_process import ModelProcess
from tests.support.tool_calls import Call, play, questions

SECONDS = 20.0
ECHO: Call = ("run_shell", {"command": "echo hi"})


@pytest.mark.skipif(os.name != "posix", reason="the stand-in browser is a script")
def test_up_opens_the_pairing_link_in_the_browser(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f"#!{sys.executable}\nimport sys\nopen({str(opened)!r}, 'w').write(sys.argv[1])\n")
    browser.chmod(0o700)
    daemon = make_daemon(arguments=["--open"], environ={"BROWSER": f"{browser} %s"}).start()
    eventually(lambda: opened.exists() and opened.read_text().startswith(f"{daemon.url}/#pair="))


def test_a_new_home_is_told_what_could_be_connected_and_nothing_is_called(make_daemon: MakeDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ollama:
        host = f"127.0.0.1:{ollama.getsockname()[1]}"
        daemon = make_daemon(environ={"MISTRAL_API_KEY": "secret-value", "OLLAMA_HOST": host}).start()
        eventually(lambda: "qworkspace init --home" in daemon.text())
        daemon.chat("hello")
        ollama.setblocking(False)
        with pytest.raises(BlockingIOError):
            ollama.accept()
    told = daemon.text()
    assert "Mistral can be connected: $MISTRAL_API_KEY is set" in told and "secret-value" not in told
    assert "Ollama can be connected: $OLLAMA_HOST is set" in told
    assert list(json.loads((daemon.home / "config.json").read_text())["providers"]) == ["offline"]
    again = json.loads(daemon.cli("init", "--json").stdout)
    assert {"mistral", "ollama"} <= {one["name"] for one in again["suggestions"]}


def test_a_home_that_is_not_new_is_told_nothing(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(write_home(tmp_path / "home"), environ={"MISTRAL_API_KEY": "secret-value"}).start()
    eventually(lambda: "Console" in daemon.text())
    daemon.chat("hello")
    assert "can be connected" not in daemon.text()


@pytest.mark.skipif(os.name != "posix", reason="the shell is POSIX")
def test_always_is_kept_in_agent_json_and_asked_no_more(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    with ModelProcess() as models, ThreadPoolExecutor(1) as asking:
        daemon = make_daemon(write_home(tmp_path / "home", models=models.url)).start()
        playing = asking.submit(play, daemon, ECHO, session="first")
        [question] = questions(daemon, 1)
        allowed = {"decision": "allow", "remember": True}
        assert daemon.request("POST", f"/api/approvals/{question['id']}", json=allowed).status_code == 200
        assert playing.result()[0]["outcome"] == "ok"
        written = json.loads((daemon.home / "workspaces/default/agent.json").read_text())
        assert written["tools"] == {"run_shell": {"policy": [{"pattern": "echo hi", "decision": "allow"}]}}
        eventually(lambda: _reloads(daemon) == [["tools"]])
        assert play(daemon, ECHO, session="second")[0]["outcome"] == "ok"
        assert len(daemon.get("/api/approvals?state=all")["approvals"]) == 1
        metrics = daemon.request("GET", "/metrics").text
        assert 'qworkspace_reloads_total{agent="default",outcome="live"} 1.0' in metrics
        assert "qworkspace_watch_polls 0.0" in metrics or "qworkspace_watch_polls 1.0" in metrics


def test_a_title_is_made_by_a_model_where_that_is_wanted(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    with ModelProcess() as models:
        home = write_home(tmp_path / "home", models=models.url, agent={"running": {"auto_title": True}})
        daemon = make_daemon(home).start()
        assert daemon.chat("what is tea?")["text"] == "echo: what is tea?"
        titles = "/api/agents/default/sessions"
        eventually(lambda: daemon.get(titles)["sessions"][0]["title"].startswith("echo: <conversation>"))


def _reloads(daemon: DaemonProcess) -> list[list[str]]:
    """What each reload changed, by section."""
    found = daemon.get("/api/agents/default/reloads")["reloads"]
    return [sorted({name.split(".")[0] for name in one["changed"]}) for one in found]


def eventually(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
