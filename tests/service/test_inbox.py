"""The inbox and the command line while a running daemon's files are edited: told once, planned, looked back on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home

AGENT = "/api/agents/default"


def agent_file(daemon: DaemonProcess) -> Path:
    return daemon.home / "workspaces" / "default" / "agent.json"


def until(true: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of `true`."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


def inbox(daemon: DaemonProcess) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = daemon.get("/api/inbox")["items"]
    return items


def test_a_bad_edit_is_told_once_and_over_when_mended_also_across_a_restart(
    tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(write_home(tmp_path / "home", memory=True)).start()
    daemon.chat("hello")
    good = agent_file(daemon).read_text(encoding="utf-8")
    agent_file(daemon).write_text('{"running": {\n  "max_iters": "many"}}', encoding="utf-8")
    [item] = until(lambda: inbox(daemon))
    assert "agent.json:2:16: running.max_iters must be a whole number" in item["body"]
    assert daemon.chat("still there?")["status"] == "completed"
    assert daemon.get(f"{AGENT}/reloads")["reloads"][0]["outcome"] == "failed"
    assert daemon.cli("inbox", "read").stdout.startswith(item["title"])
    agent_file(daemon).write_text(good, encoding="utf-8")
    until(lambda: inbox(daemon)[0].get("settled_at"))
    (daemon.home / "config.json").write_text("{", encoding="utf-8")
    until(lambda: len(inbox(daemon)) == 2)
    daemon.kill()
    daemon.start()
    time.sleep(1.0)
    assert [one["title"] for one in inbox(daemon)] == ["config.json cannot be used", item["title"]]


def test_a_change_is_planned_written_and_looked_back_on(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(write_home(tmp_path / "home", memory=True)).start()
    daemon.chat("hello")
    new = tmp_path / "new.json"
    new.write_text(json.dumps({"id": "default", "running": {"max_iters": 7}}), encoding="utf-8")
    planned = json.loads(daemon.cli("agents", "plan", "default", "--file", str(new), "--json").stdout)
    assert planned["kind"] == "live" and "running.max_iters" in planned["live"]
    assert "nothing" in daemon.cli("agents", "reload", "default").stdout
    agent_file(daemon).write_bytes(new.read_bytes())
    until(lambda: daemon.get(f"{AGENT}/reloads")["reloads"])
    history = daemon.cli("agents", "history", "default").stdout
    assert "agent.json edited" in history and "running.max_iters" in history
    new.write_text('{"running": {"max_iters": 0}}', encoding="utf-8")
    refused = daemon.cli("agents", "plan", "default", "--file", str(new))
    assert refused.returncode == 1 and "new.json:1:27: running.max_iters must be at least 1" in refused.stderr
