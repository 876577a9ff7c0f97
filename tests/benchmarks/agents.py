"""Two hundred started agents: what each costs, and what they cost while nothing happens."""

from __future__ import annotations

import statistics
import time

import httpx

from tests.benchmarks.harness import AS_SHIPPED, Figure, cpu_seconds, environ, rss_mib, scratch
from tests.support.daemon import DaemonProcess, write_home

AGENTS = 200
IDLE_SECONDS = 60


def run() -> list[Figure]:
    """Start 200 workspaces by asking each for its sessions, then watch them idle for a minute."""
    names = [f"agent-{number:03d}" for number in range(AGENTS + 1)]
    with (
        scratch() as folder,
        DaemonProcess(
            write_home(folder / "home", agents=names, config=AS_SHIPPED, memory=True), environ=environ()
        ) as daemon,
    ):
        daemon.get(f"/api/agents/{names[0]}/sessions")
        before = rss_mib(daemon.pid)
        with daemon.client() as client:
            took = [_start(client, name) for name in names[1:]]
        each = (rss_mib(daemon.pid) - before) / AGENTS
        cpu = cpu_seconds(daemon.pid)
        time.sleep(IDLE_SECONDS)
        idle = (cpu_seconds(daemon.pid) - cpu) / IDLE_SECONDS * 100
    return [
        Figure("200 started agents: memory each", each, "MiB", at_most=0.5),
        Figure("200 started agents: start each", statistics.median(took) * 1000, "ms", at_most=20),
        Figure("200 started agents: CPU while idle", idle, "% of a core", at_most=0.2),
    ]


def _start(client: httpx.Client, name: str) -> float:
    begun = time.perf_counter()
    client.get(f"/api/agents/{name}/sessions").raise_for_status()
    return time.perf_counter() - begun
