"""From a fresh clone, the README's run command leads to a conversation."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from qworkspace.base.lock import read_holder

ROOT = Path(__file__).resolve().parents[2]
DOWNLOAD_SECONDS = 300.0
START_SECONDS = 10.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.name != "posix" or shutil.which("git") is None, reason="needs a shell and git"),
    pytest.mark.skipif(
        "QWORKSPACE_FRESH" not in os.environ, reason="a minute of downloads; QWORKSPACE_FRESH=1 runs it"
    ),
]


def run_command() -> str:
    """The first command of the README."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(.*?)\n```", page, re.S)
    assert block is not None
    return block[1].strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a person gets: the committed files, nothing else."""
    place = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place)], check=True)
    return place


def test_the_run_command_of_the_readme_leads_to_an_answer(clone: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "QWORKSPACE_HOME": str(home), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environ.pop("PYTHONPATH", None)
    output = tmp_path / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            ["bash", "-c", run_command() + " --port 0"],
            cwd=clone,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = _address(process, home, output)
        answer = subprocess.run(
            [str(clone / ".venv" / "bin" / "qworkspace"), "chat", "hello"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert httpx.get(f"{address}/", timeout=5).status_code == 200
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert answer.returncode == 0, answer.stderr
    assert "offline" in answer.stdout and "config.json" in answer.stdout


def _address(process: subprocess.Popen[bytes], home: Path, output: Path) -> str:
    """The daemon's address, once downloads are done and it answers."""
    end = time.monotonic() + DOWNLOAD_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, output.read_text(encoding="utf-8", errors="replace")
        holder = read_holder(home / ".daemon" / "lock")
        if holder is not None and holder.address:
            return _ready(holder.address, output)
        time.sleep(0.1)
    raise AssertionError(output.read_text(encoding="utf-8", errors="replace"))


def _ready(address: str, output: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            if httpx.get(f"{address}/readyz", timeout=5).status_code == 200:
                return address
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(output.read_text(encoding="utf-8", errors="replace"))
