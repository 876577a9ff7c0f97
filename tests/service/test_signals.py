"""Ending the daemon: politely, impatiently, and not at all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home, write_json
from tests.support.model_process import ModelProcess

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")


@pytest.fixture
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture
def thinking(models: ModelProcess, tmp_path: Path, make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon whose model does what the message says; shell commands need no permission."""
    tools = {"run_shell": {"policy": "allow"}}
    return warm(make_daemon(write_home(tmp_path / "home", models=models.url, agent={"tools": tools}, memory=True)))


def warm(daemon: DaemonProcess) -> DaemonProcess:
    """Started, with the model library loaded: its import takes seconds on a busy machine, and is not what is timed."""
    daemon.start().chat("are you there?", session="warm")
    return daemon


def begin(daemon: DaemonProcess, text: str, session: str = "s1") -> None:
    """Start a turn and leave its stream at once."""
    body = {"session_id": session, "message": text}
    with daemon.client() as client, client.stream("POST", "/api/agents/default/chat", json=body) as stream:
        assert stream.status_code == 200, stream.read()


def test_sigterm_ends_an_idle_daemon_at_once(daemon: DaemonProcess) -> None:
    daemon.chat("hello")
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 3
    assert (daemon.home / ".daemon" / "lock").read_text(encoding="utf-8").strip() == ""
    assert "Traceback" not in daemon.text()


def test_sigterm_lets_a_running_turn_finish(thinking: DaemonProcess) -> None:
    begin(thinking, "[[slow:0.05]] " + "word " * 30)
    assert thinking.terminate() == 0
    thinking.start()
    assert [turn["state"] for turn in thinking.get("/api/agents/default/sessions/s1/turns")["turns"]] == ["completed"]


def test_sigterm_interrupts_what_takes_too_long_and_says_so(
    models: ModelProcess, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    patience = {"lifecycle": {"shutdown_grace": 1}}
    daemon = warm(make_daemon(write_home(tmp_path / "home", models=models.url, config=patience, memory=True)))
    begin(daemon, "[[stall]] on and on")
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert 0.9 < time.monotonic() - began < 8
    daemon.start()
    [turn] = daemon.get("/api/agents/default/sessions/s1/turns")["turns"]
    assert turn["state"] == "interrupted"
    assert daemon.chat("and now?")["status"] == "completed"


def test_a_second_interrupt_does_not_wait(thinking: DaemonProcess) -> None:
    begin(thinking, "[[stall]] on and on")
    began = time.monotonic()
    thinking.send(signal.SIGINT)
    time.sleep(0.3)
    thinking.send(signal.SIGINT)
    assert thinking.wait() == 0
    assert time.monotonic() - began < 8


def test_no_new_turns_while_it_ends(thinking: DaemonProcess) -> None:
    begin(thinking, "[[slow:0.05]] " + "word " * 30)
    thinking.send(signal.SIGTERM)
    time.sleep(0.2)
    refused = thinking.request("POST", "/api/agents/default/chat", json={"session_id": "s2", "message": "me too"})
    assert refused.status_code == 503 and "stopping" in refused.json()["error"]["message"]
    assert thinking.wait() == 0


def test_children_of_tools_end_with_it(thinking: DaemonProcess) -> None:
    begin(thinking, '[[tool:run_shell {"command": "sleep 300 & sleep 301"}]]')
    pid, end = thinking.pid, time.monotonic() + 15
    while time.monotonic() < end:
        children = psutil.Process(pid).children(recursive=True)
        if len(children) >= 2:
            break
        time.sleep(0.05)
    assert len(children) >= 2, thinking.text()
    assert thinking.terminate(30) == 0
    assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []


def test_sighup_reads_the_configuration_anew_and_ends_nothing(thinking: DaemonProcess) -> None:
    begin(thinking, "[[slow:0.1]] " + "word " * 30)
    thinking.chat("start", session="s2")
    file = thinking.home / "workspaces" / "default" / "agent.json"
    write_json(file, {"id": "default", "model": {"provider": "offline", "name": "offline"}})
    thinking.send(signal.SIGHUP)
    end = time.monotonic() + 10
    while thinking.chat("who answers?", session="s2")["text"].startswith("echo:") and time.monotonic() < end:
        time.sleep(0.1)
    assert "offline" in thinking.chat("and now?", session="s2")["text"]
    assert thinking.chat("after it")["status"] == "completed"
    states = [turn["state"] for turn in thinking.get("/api/agents/default/sessions/s1/turns")["turns"]]
    assert states == ["completed", "completed"]


def test_restart_keeps_process_and_address(daemon: DaemonProcess) -> None:
    daemon.chat("remember this")
    before = daemon.get("/api/status")["started_at"]
    done = daemon.cli("restart")
    assert done.returncode == 0, done.stderr + daemon.text()
    daemon.wait_for("/readyz")
    assert daemon.get("/api/status")["started_at"] > before
    assert len(daemon.messages()) == 2


def test_what_was_said_outlives_a_kill(thinking: DaemonProcess) -> None:
    thinking.chat("the first")
    begin(thinking, "[[stall]] the second")
    thinking.kill()
    thinking.start()
    texts = [message["text"] for message in thinking.messages() if message["role"] == "user"]
    assert texts == ["the first", "[[stall]] the second"]
    states = [turn["state"] for turn in thinking.get("/api/agents/default/sessions/s1/turns")["turns"]]
    assert states == ["interrupted", "completed"]
    assert thinking.chat("the third")["status"] == "completed"
