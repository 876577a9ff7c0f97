"""`doctor` beside a real daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home


def diagnosis(daemon: DaemonProcess, *arguments: str) -> dict[str, dict[str, Any]]:
    """Findings by check, the worst of each."""
    done = daemon.cli("doctor", "--json", "--no-network", *arguments)
    found: dict[str, dict[str, Any]] = {}
    for one in json.loads(done.stdout)["checks"]:
        if one["check"] not in found or one["level"] != "ok":
            found[one["check"]] = one
    return found


def test_a_running_daemon_is_healthy_and_its_port_is_no_problem(daemon: DaemonProcess) -> None:
    found = diagnosis(daemon)
    assert found["daemon"]["level"] == "ok" and str(daemon.pid) in found["daemon"]["message"]
    assert "port" not in found
    assert [one for one in found.values() if one["level"] == "error"] == []


def test_a_killed_daemon_is_explained_and_forgotten(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(write_home(tmp_path / "home", config={"server": {"port": 0}})).start()
    pid = daemon.pid
    daemon.kill()
    assert str(pid) in diagnosis(daemon)["daemon"]["message"]
    assert diagnosis(daemon, "--fix")["daemon"]["level"] == "ok"
    assert "no daemon runs" in diagnosis(daemon)["daemon"]["message"]
    assert "resumed" not in diagnosis(daemon)["daemon"]["advice"]
