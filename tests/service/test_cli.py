"""The command line against a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_process import ModelProcess


@pytest.fixture
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture
def echoing(models: ModelProcess, tmp_path: Path, make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon whose model echoes."""
    return make_daemon(write_home(tmp_path / "home", models=models.url, agents=("default", "second"))).start()


def cli_json(daemon: DaemonProcess, *arguments: str) -> Any:
    done = daemon.cli(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_chat_answers_reads_pipes_and_keeps_sessions(echoing: DaemonProcess) -> None:
    assert echoing.cli("chat", "hello").stdout == "echo: hello\n"
    assert echoing.cli("chat", "-s", "s1", "review:", stdin="some diff").stdout == "echo: review: some diff\n"
    assert echoing.cli("chat", "-a", "second", stdin="only piped").stdout == "echo: only piped\n"
    answer = cli_json(echoing, "chat", "-s", "s1", "again")
    assert (answer["status"], answer["text"], answer["session_id"]) == ("completed", "echo: again", "s1")
    assert len(echoing.messages(session="s1")) == 4


def test_chat_says_what_is_wrong(echoing: DaemonProcess) -> None:
    unknown = echoing.cli("chat", "-a", "ghost", "hello")
    assert unknown.returncode == 1 and "'ghost'" in unknown.stderr
    failed = echoing.cli("chat", "[[error:400]] hello")
    assert failed.returncode == 1 and "error:" in failed.stderr and failed.stdout == ""
    assert echoing.cli("chat").returncode == 1


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_ctrl_c_stops_the_turn(echoing: DaemonProcess) -> None:
    command = [sys.executable, "-m", "qworkspace", "chat", "-s", "s1", "[[stall]] on", "--home", str(echoing.home)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=echoing.environ()
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"echo: "
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
    assert process.returncode == 1 and b"(stopped)" in err
    [turn] = echoing.get("/api/agents/default/sessions/s1/turns")["turns"]
    assert turn["state"] == "cancelled"


def test_an_answer_survives_a_restart_of_the_daemon_as_far_as_it_came(echoing: DaemonProcess) -> None:
    command = [sys.executable, "-m", "qworkspace", "chat", "-s", "s1", "[[stall]] on", "--home", str(echoing.home)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=echoing.environ()
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"echo: "
        echoing.kill()
        time.sleep(0.3)
        echoing.start()
        _, err = process.communicate(timeout=30)
    assert b"waiting for the daemon" in err and b"stopped during this turn" in err
    assert process.returncode == 1


def test_agents_are_made_changed_and_removed_with_and_without_the_daemon(echoing: DaemonProcess) -> None:
    for name, running in (("one", True), ("two", False)):
        if not running:
            echoing.terminate()
        assert echoing.cli("agents", "create", name, "--template", "researcher").returncode == 0
        assert echoing.cli("agents", "create", name).returncode == 1
        assert echoing.cli("agents", "disable", name).returncode == 0
        states = {agent["id"]: agent["state"] for agent in cli_json(echoing, "agents", "list")["agents"]}
        assert states[name] == "disabled"
        assert echoing.cli("agents", "enable", name).returncode == 0
        assert cli_json(echoing, "agents", "show", name)["config"]["id"] == name
        assert echoing.cli("agents", "delete", name, "--files").returncode == 0
        assert name not in {agent["id"] for agent in cli_json(echoing, "agents", "list")["agents"]}
        assert not (echoing.home / "workspaces" / name).exists()


def test_sessions_are_listed_shown_exported_and_deleted(echoing: DaemonProcess) -> None:
    echoing.chat("tell me about tea", session="tea")
    assert [one["id"] for one in cli_json(echoing, "sessions", "list")["sessions"]] == ["tea"]
    assert "echo: tell me about tea" in echoing.cli("sessions", "show", "tea").stdout
    page = echoing.cli("sessions", "export", "tea").stdout
    assert page.startswith("# tell me about tea") and "echo: tell me about tea" in page
    whole = json.loads(echoing.cli("sessions", "export", "tea", "--format", "json").stdout)
    assert [message["role"] for message in whole["messages"]] == ["user", "assistant"]
    assert echoing.cli("sessions", "delete", "tea").returncode == 0
    assert echoing.cli("sessions", "show", "tea").returncode == 1


def test_models_are_listed_and_tested(echoing: DaemonProcess) -> None:
    [model] = cli_json(echoing, "models", "list")["models"]
    assert model["model"] == "scripted/scripted" and model["default"] and model["ready"]
    tested = cli_json(echoing, "models", "test")
    assert tested["ok"] and tested["text"].startswith("echo: ")
    assert echoing.cli("models", "test", "scripted/[[error:401]]").returncode in (0, 1)
    missing = echoing.cli("models", "test", "ghost/model")
    assert missing.returncode == 1 and "ghost" in missing.stdout
    bare = echoing.cli("models", "test", "ghost")
    assert bare.returncode == 2 and "PROVIDER/NAME" in bare.stderr and "Traceback" not in bare.stderr


def test_status_token_console_and_logs(echoing: DaemonProcess) -> None:
    assert cli_json(echoing, "status")["status"] == "ready"
    assert cli_json(echoing, "token", "show")["token"] == echoing.token
    assert "#pair=" in cli_json(echoing, "console")["link"]
    before = echoing.token
    assert echoing.cli("token", "rotate").returncode == 0
    assert echoing.token != before
    assert echoing.chat("with the new one")["status"] == "completed"
    assert before not in echoing.cli("logs", "-n", "1000").stdout


def test_stop_ends_it_and_says_so(echoing: DaemonProcess) -> None:
    assert echoing.cli("stop").stdout == "stopped\n"
    assert echoing.wait() == 0
    assert echoing.cli("stop").returncode == 1
    assert "qworkspace up" in echoing.cli("status").stdout


def test_init_makes_a_home_once_and_suggests_providers(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(tmp_path / "home", environ={"OPENAI_API_KEY": "k"})
    made = cli_json(daemon, "init", "--template", "default-zh")
    assert made["written"] and [one["name"] for one in made["suggestions"]] == ["openai"]
    config = (daemon.home / "config.json").read_text(encoding="utf-8")
    assert not cli_json(daemon, "init")["written"]
    assert (daemon.home / "config.json").read_text(encoding="utf-8") == config
