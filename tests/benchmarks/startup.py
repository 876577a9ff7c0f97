"""Start-up, memory when idle, and what a thousand configured agents cost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.harness import (
    AS_SHIPPED,
    ROOT,
    Figure,
    cpu_seconds,
    environ,
    model_server,
    rss_mib,
    scratch,
    wait_http,
)
from tests.support.daemon import DaemonProcess, write_home
from tests.support.ports import free_port

ROUNDS = 9


def run() -> list[Figure]:
    """Spawn → /healthz against a bare server, CPU to ready, RSS, and one agent against a thousand.

    Rounds take turns, and the best of each counts: the rest is what else the machine did.
    """
    with scratch() as folder:
        write_home(folder / "one", config=AS_SHIPPED, memory=True)
        write_home(
            folder / "many", agents=[f"agent-{number:04d}" for number in range(1000)], config=AS_SHIPPED, memory=True
        )
        bare, one, many = [], [], []
        _spawn_bare(), _spawn(folder / "one"), _spawn(folder / "many")  # their modules are compiled now
        for _ in range(ROUNDS):
            bare.append(_spawn_bare())
            one.append(_spawn(folder / "one"))
            many.append(_spawn(folder / "many"))
        start, cpu, idle = (min(sample[index] for sample in one) for index in range(3))
        many_start, _, many_idle = (min(sample[index] for sample in many) for index in range(3))
        base = min(bare)
        return [
            Figure("start: bare starlette + uvicorn", base * 1000, "ms"),
            Figure("start: spawn to /healthz", start * 1000, "ms", at_most=2.5 * base * 1000, baseline=base * 1000),
            Figure("start: CPU to ready", cpu, "CPU-s", at_most=0.8),
            Figure("memory: idle, model library not loaded", idle, "MiB", at_most=60),
            _loaded(folder / "loaded"),
            Figure("1,000 agents: start", many_start * 1000, "ms", at_most=1.2 * start * 1000, baseline=start * 1000),
            Figure("1,000 agents: memory idle", many_idle, "MiB", at_most=1.2 * idle, baseline=idle),
        ]


def _loaded(home: Path) -> Figure:
    with (
        model_server() as url,
        DaemonProcess(write_home(home, models=url, config=AS_SHIPPED, memory=True), environ=environ()) as daemon,
    ):
        daemon.chat("hello")
        time.sleep(1)
        return Figure("memory: idle, model library loaded", rss_mib(daemon.pid), "MiB", at_most=100)


def _spawn_bare() -> float:
    port = free_port()
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.bare", str(port)], cwd=ROOT, env=environ())
    try:
        wait_http(f"http://127.0.0.1:{port}/healthz")
        return time.perf_counter() - begun
    finally:
        process.kill()
        process.wait()


def _spawn(home: Path) -> tuple[float, float, float]:
    """Seconds to /healthz, CPU seconds to /readyz, MiB a second later."""
    port = free_port()
    command = [sys.executable, "-m", "qworkspace", "up", "--home", str(home), "--port", str(port)]
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_http(f"http://127.0.0.1:{port}/healthz")
        healthy = time.perf_counter() - begun
        wait_http(f"http://127.0.0.1:{port}/readyz")
        cpu = cpu_seconds(process.pid)
        time.sleep(1)
        return healthy, cpu, rss_mib(process.pid)
    finally:
        process.kill()
        process.wait()
