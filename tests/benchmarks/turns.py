"""What a turn costs: CPU, turns per second, tokens per CPU-second through the event stream."""

from __future__ import annotations

import asyncio
import time

import httpx

from tests.benchmarks.harness import Figure, cpu_seconds, model_server, scratch, script
from tests.support.daemon import DaemonProcess, write_home

WARM_UP = 20
TURNS = 200
TOKENS = 2000
STREAMS = 5


def run() -> list[Figure]:
    """Plain turns one after another, ten and fifty at a time, then long streams."""
    agents = [f"agent-{number}" for number in range(5)]
    with scratch() as folder, model_server() as url:
        home = write_home(folder / "home", models=url, agents=agents)
        with DaemonProcess(home) as daemon:
            return asyncio.run(_measure(daemon, url, agents))


async def _measure(daemon: DaemonProcess, url: str, agents: list[str]) -> list[Figure]:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    headers = {"Authorization": f"Bearer {daemon.token}"}
    async with httpx.AsyncClient(base_url=daemon.url, headers=headers, timeout=60, limits=limits) as client:
        await _turns(client, agents, WARM_UP, 5)
        cpu = cpu_seconds(daemon.pid)
        await _turns(client, agents, TURNS, 1)
        per_turn = (cpu_seconds(daemon.pid) - cpu) / TURNS
        figures = [Figure("turn: CPU", per_turn * 1000, "ms", at_most=20)]
        for together in (10, 50):
            begun = time.perf_counter()
            await _turns(client, agents, TURNS * 2, together)
            rate = TURNS * 2 / (time.perf_counter() - begun)
            figures.append(Figure(f"turns per second, {together} at a time", rate, "1/s", at_least=40))
        script(url, [{"text": "token " * TOKENS}] * STREAMS)
        cpu = cpu_seconds(daemon.pid)
        await asyncio.gather(*(_stream(client, agents[0], f"long-{number}") for number in range(STREAMS)))
        rate = TOKENS * STREAMS / (cpu_seconds(daemon.pid) - cpu)
        return [*figures, Figure("tokens per CPU-second through SSE", rate, "1/CPU-s", at_least=1500)]


async def _turns(client: httpx.AsyncClient, agents: list[str], count: int, together: int) -> None:
    """`count` turns, `together` at a time, each in a session of its own."""
    numbers = iter(range(count))

    async def worker(name: int) -> None:
        for number in numbers:
            session = f"bench-{time.monotonic_ns()}-{name}-{number}"
            await _stream(client, agents[number % len(agents)], session)

    await asyncio.gather(*(worker(name) for name in range(together)))


async def _stream(client: httpx.AsyncClient, agent: str, session: str) -> None:
    body = {"session_id": session, "message": "one two three"}
    async with client.stream("POST", f"/api/agents/{agent}/chat", json=body) as answer:
        last = b""
        async for piece in answer.aiter_bytes():
            last = (last + piece)[-200_000:]
        if answer.status_code != 200 or b"event: turn.completed" not in last:
            raise AssertionError(f"{answer.status_code}: {last[-500:]!r}")
