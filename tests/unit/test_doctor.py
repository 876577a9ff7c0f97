"""`qworkspace doctor`: each illness is named, explained, and mended where that is safe."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qworkspace.base.lock import Holder, HomeLock
from qworkspace.cli.app import run
from qworkspace.cli.checks import machine, models
from qworkspace.cli.checks.finding import Finding, Level, Subject
from qworkspace.cli.doctor import examine
from tests.support.daemon import write_home, write_json


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_home(tmp_path / "home", config={"server": {"port": free_port()}})


def found(home: Path, check: str, *, network: bool = False, level: Level | None = None) -> list[Finding]:
    """What is wrong under that name."""
    everything = examine(Subject.of(home, environ={}, network=network))
    return [one for one in everything if one.check == check and (one.level is not Level.OK if level is None else True)]


def test_a_sound_home_has_only_the_model_to_think_of(home: Path) -> None:
    everything = examine(Subject.of(home, environ={}))
    assert {one.check for one in everything if one.level is not Level.OK} <= {"model", "watches", "open files", "disk"}
    assert [one.message for one in everything if one.check == "model"] == [
        "no model is connected: the built-in offline provider answers"
    ]


def test_a_broken_config_is_shown_with_its_place(home: Path) -> None:
    (home / "config.json").write_text('{\n  "server": {"port": "many"}\n}', encoding="utf-8")
    [finding] = found(home, "config")
    assert f"{home / 'config.json'}:2:" in finding.message
    assert "server.port" in finding.message
    assert "line 2" in finding.advice


def test_a_config_that_is_no_json_is_shown_with_its_place(home: Path) -> None:
    (home / "config.json").write_text('{\n  "server": {\n', encoding="utf-8")
    [finding] = found(home, "config")
    assert f"{home / 'config.json'}:3:" in finding.message


def test_a_broken_agent_is_named_and_the_others_are_fine(tmp_path: Path) -> None:
    home = write_home(tmp_path / "home", agents=("good", "bad"))
    write_json(home / "workspaces" / "bad" / "agent.json", {"id": "bad", "running": {"max_iters": "x"}})
    [finding] = found(home, "agent bad")
    assert "agent.json:4:" in finding.message and "running.max_iters" in finding.message
    assert [one.message for one in found(home, "agents", level=Level.OK)] == ["1 of 2 agents can start"]


def test_an_unknown_key_is_shown_with_what_was_meant(home: Path) -> None:
    write_json(home / "workspaces" / "default" / "agent.json", {"id": "default", "runing": {"max_iters": 3}})
    [finding] = found(home, "agent default")
    assert "'runing'" in finding.message and "'running'" in finding.message


def test_an_active_agent_that_does_not_exist(home: Path) -> None:
    write_json(home / "config.json", {"agents": {"active_agent": "ghost", "profiles": {"default": {}}}})
    assert "'ghost'" in found(home, "agents")[0].message


def test_names_in_config_json_that_lead_nowhere(home: Path) -> None:
    profiles = {"default": {"enabled": False}}
    agents = {"active_agent": "default", "profiles": profiles}
    write_json(
        home / "config.json",
        {"agents": agents, "roles": {"light": "nobody/small"}, "embedding": {"provider": "nobody"}},
    )
    said = [finding.message for finding in found(home, "config") if finding.level is Level.WARNING]
    assert any("that agent is disabled" in message for message in said), said
    assert sum("'nobody" in message for message in said) == 2, said


def test_a_taken_port_names_who_has_it(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        write_home(home, config={"server": {"port": port}})
        [finding] = found(home, "port")
    assert f"port {port}" in finding.message and f"(process {os.getpid()})" in finding.message
    assert "--port" in finding.advice


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_a_home_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*, dir: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr("qworkspace.cli.checks.home.tempfile.TemporaryFile", refuse)
    [finding] = found(home, "home")
    assert "not writable: Permission denied" in finding.message and "chown" in finding.advice


def test_secrets_that_others_can_read_are_closed(home: Path) -> None:
    (home / "secrets.json").write_text("{}", encoding="utf-8")
    (home / "secrets.json").chmod(0o644)
    [finding] = found(home, "secrets")
    assert "mode 644" in finding.message and "change the keys" in finding.advice
    assert (home / "secrets.json").stat().st_mode & 0o777 == 0o600


def test_what_a_killed_daemon_left_is_explained_and_removed(home: Path) -> None:
    write_json(home / ".daemon" / "lock", {"pid": 4242, "since": "2026-01-01T00:00:00+00:00", "address": ""})
    [finding] = found(home, "daemon")
    assert "4242" in finding.message and "resumed" in finding.advice
    assert finding.mended().level is Level.OK
    assert found(home, "daemon") == []


def test_a_daemon_that_holds_the_home_and_says_nothing(home: Path) -> None:
    lock = HomeLock(home / ".daemon" / "lock")
    lock.acquire("2026-01-01T00:00:00+00:00")
    lock.tell(Holder(os.getpid(), "2026-01-01T00:00:00+00:00", f"http://127.0.0.1:{free_port()}"))
    try:
        [finding] = found(home, "daemon")
    finally:
        lock.release()
    assert "does not answer" in finding.message and str(os.getpid()) in finding.advice


def test_a_clock_that_went_back(home: Path) -> None:
    ahead = datetime.now(UTC).timestamp() + 7200
    os.utime(home / "config.json", (ahead, ahead))
    [finding] = found(home, "clock")
    assert "1:59:5" in finding.message or "2:00:00" in finding.message


@contextmanager
def provider(status: int, *, date: datetime | None = None) -> Iterator[tuple[str, list[str]]]:
    """Something that answers like a provider; which keys it was shown."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization", ""))
            self.send_response_only(status)
            self.send_header("Date", format_datetime(date or datetime.now(UTC), usegmt=True))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_provider_that_takes_the_key(tmp_path: Path) -> None:
    with provider(200) as (url, keys):
        home = write_home(tmp_path / "home", models=url)
        everything = examine(Subject.of(home, environ={}))
    assert keys == ["Bearer test-key"]
    assert [one.level for one in everything if one.check in ("provider scripted", "clock", "model")] == [Level.OK] * 3


def test_a_key_that_is_rejected(tmp_path: Path) -> None:
    with provider(401) as (url, _):
        [finding] = found(write_home(tmp_path / "home", models=url), "provider scripted", network=True)
    assert "rejects the key (401)" in finding.message and "new key" in finding.advice


def test_a_provider_that_is_away(tmp_path: Path) -> None:
    home = write_home(tmp_path / "home", models=f"http://127.0.0.1:{free_port()}/v1")
    [finding] = found(home, "provider scripted", network=True)
    assert "does not answer" in finding.message and finding.level is Level.WARNING


def test_a_clock_that_disagrees_with_the_providers(tmp_path: Path) -> None:
    with provider(200, date=datetime.now(UTC) - timedelta(hours=1)) as (url, _):
        [finding] = found(write_home(tmp_path / "home", models=url), "clock", network=True)
    assert "ahead of scripted's" in finding.message and "timedatectl" in finding.advice


def test_a_key_that_is_nowhere(home: Path) -> None:
    write_json(home / "config.json", {"providers": {"openai": {"type": "openai", "api_key": "${NO_SUCH_KEY}"}}})
    [finding] = found(home, "provider openai", network=True)
    assert "NO_SUCH_KEY" in finding.message and "secrets.json" in finding.advice


def test_a_default_model_of_nobody(home: Path) -> None:
    providers = {"openai": {"type": "openai", "models": ["gpt"]}}
    write_json(home / "config.json", {"providers": providers, "default_model": {"provider": "opnai", "name": "gpt"}})
    [finding] = found(home, "model")
    assert finding.level is Level.ERROR and "opnai/gpt" in finding.message


def test_too_few_watches_and_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_kernel", lambda name: 100)
    monkeypatch.setattr(machine, "_can_watch", lambda: True)
    [finding] = found(home, "watches")
    assert "100" in finding.message and "max_user_watches=65536" in finding.advice and "polling" in finding.advice


def test_no_inotify_instance_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_can_watch", lambda: False)
    [finding] = found(home, "watches")
    assert "max_user_instances" in finding.advice


def test_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1_000_000

    monkeypatch.setattr("qworkspace.cli.checks.home.shutil.disk_usage", lambda path: Usage)
    [finding] = found(home, "disk")
    assert finding.level is Level.ERROR and "make room" in finding.advice


def test_the_command_prints_exits_and_mends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = write_home(tmp_path / "home", config={"server": {"port": free_port()}})
    assert run(["doctor", "--home", str(home), "--json", "--no-network"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    (home / "config.json").write_text("{", encoding="utf-8")
    assert run(["doctor", "--home", str(home), "--no-network"]) == 1
    assert "✗ config: " in capsys.readouterr().out


def test_fix_makes_a_home_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    run(["doctor", "--fix", "--no-network", "--home", str(home)])
    assert (home / "config.json").is_file() and (home / "workspaces" / "default" / "agent.json").is_file()
    assert "made what was missing" in capsys.readouterr().out


def test_each_kind_of_provider_gets_its_own_header() -> None:
    from qworkspace.config.home import ProviderConfig

    made = {kind: ProviderConfig.model_validate({"type": kind, "api_key": "k"}) for kind in models.ENDPOINTS}
    headers = {kind: set(models._credentials(provider)) for kind, provider in made.items()}
    assert headers["anthropic"] == {"x-api-key", "anthropic-version"}
    assert headers["google"] == {"x-goog-api-key"}
    assert headers["openai"] == headers["ollama"] == {"Authorization"}
