"""What all benchmarks share: figures with goals, a model server beside the daemon, CPU and memory of a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from tests.support.ports import free_port

AS_SHIPPED = {"embedding": {"provider": "builtin"}}
"""What goes into config.json so that a daemon of a benchmark does all that one of a person does."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `at_most` and `at_least` are goals; `baseline` is what was measured in the same run."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    baseline: float | None = None

    @property
    def met(self) -> bool:
        over = self.at_most is not None and self.value > self.at_most
        under = self.at_least is not None and self.value < self.at_least
        return not over and not under

    @property
    def goal(self) -> str:
        if self.at_most is not None and self.baseline is not None:
            return f"<= {self.at_most / self.baseline:.3g} x baseline"
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:,g}" if self.at_least is not None else ""

    @property
    def amount(self) -> str:
        """The value with three digits and its unit."""
        return f"{self.value:,.0f} {self.unit}" if self.value >= 100 else f"{self.value:.3g} {self.unit}"

    @property
    def ratio(self) -> str:
        """Value to baseline; without one, value to goal."""
        to = self.baseline or self.at_most or self.at_least
        return f"{self.value / to:.2f}" if to else ""

    def row(self) -> str:
        mark = "" if not self.goal else ("ok" if self.met else "MISSED")
        return f"{self.name:<58} {self.value:>10.3f} {self.unit:<12} {self.goal:<18} {self.ratio:>6}  {mark}"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="qworkspace-bench-") as folder:
        yield Path(folder)


def environ() -> dict[str, str]:
    """What measured processes run with: as after an installation, their modules are compiled once."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """The scripted model server in a process of its own; its base URL."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.model_server", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_http(f"http://127.0.0.1:{port}/v1/models")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def script(url: str, replies: list[dict[str, object]] | None) -> None:
    """Tell the model server what to answer; None is its echo."""
    httpx.post(url.removesuffix("/v1") + "/script", json={"replies": replies}).raise_for_status()


def wait_http(url: str, seconds: float = 30.0) -> float:
    """Seconds until `url` answered 200. Asking costs little: it shares the machine with what starts."""
    address, begun = urlsplit(url), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        connection = HTTPConnection(address.hostname or "", address.port, timeout=5)
        try:
            connection.request("GET", address.path)
            if connection.getresponse().status == 200:
                return time.perf_counter() - begun
        except (OSError, HTTPException):
            time.sleep(0.003)
        finally:
            connection.close()
    raise TimeoutError(f"{url} did not answer within {seconds} s")


def cpu_seconds(pid: int) -> float:
    """User and system time that the process has used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def rss_mib(pid: int) -> float:
    """Resident memory in MiB."""
    return float(psutil.Process(pid).memory_info().rss) / 2**20
