"""The command line's entrance: the short way to `up`, and usage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qworkspace import __version__
from qworkspace.cli.app import run
from qworkspace.cli.main import plain_up
from qworkspace.cli.up import UpOptions, home_directory

COMMANDS = ["up", "init", "stop", "restart", "console", "logs", "token", "status", "doctor"]
COMMANDS += ["chat", "agents", "sessions", "models", "approvals", "inbox"]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("up", UpOptions()),
        ("up --home h --host 0.0.0.0 --port 0", UpOptions("h", "0.0.0.0", 0)),
        ("up --home=h --port=8421 --open --log-json", UpOptions("h", "", 8421, True, True)),
    ],
)
def test_a_plain_up_goes_straight_to_the_daemon(arguments: str, options: UpOptions) -> None:
    assert plain_up(arguments.split()) == options


@pytest.mark.parametrize(
    "arguments", ["", "status", "up --help", "up --port", "up --port x", "up --port 70000", "up --prot 1", "up extra"]
)
def test_everything_else_takes_the_way_that_explains(arguments: str) -> None:
    assert plain_up(arguments.split()) is None


@pytest.mark.parametrize("arguments", ["up --port x", "up --prot 1", "nonsense", "agents create", "chat --bad"])
def test_wrong_usage_exits_2_and_says_why(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments.split()) == 2
    assert "Usage: qworkspace" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert [name for name in COMMANDS if name not in shown] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Usage: qworkspace " + command in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_the_home_is_named_given_or_usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("QWORKSPACE_HOME", raising=False)
    assert home_directory("") == tmp_path / ".qworkspace"
    monkeypatch.setenv("QWORKSPACE_HOME", str(tmp_path / "given"))
    assert home_directory("") == tmp_path / "given"
    assert home_directory("~/named") == tmp_path / "named"


@pytest.mark.parametrize(
    "arguments",
    [
        "status",
        "chat hello",
        "sessions list",
        "approvals list",
        "stop",
        "console",
        "inbox list",
        "agents reload x",
        "agents history x",
    ],
)
def test_commands_that_need_the_daemon_say_how_to_start_it(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run([*arguments.split(), "--home", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert f"qworkspace up --home {tmp_path}" in shown.out + shown.err


def test_up_imports_neither_typer_nor_rich() -> None:
    code = "import sys, qworkspace.cli.main; print([m for m in ('typer', 'rich', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
