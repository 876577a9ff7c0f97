"""What a turn costs: CPU, turns per second, tokens per CPU-second through the event stream."""

from __future__ import annotations

import asyncio

from tests.benchmarks.client import Connection, turns
from tests.benchmarks.harness import AS_SHIPPED, Figure, cpu_seconds, environ, model_server, scratch, script
from tests.support.daemon import DaemonProcess, write_home

WARM_UP = 50
ROUNDS = 5
TURNS = 100
TOKENS = 2000
STREAMS = 5


def run() -> list[Figure]:
    """Plain turns one after another, ten and fifty at a time, then long streams; the best of some rounds each."""
    agents = [f"agent-{number}" for number in range(5)]
    with scratch() as folder, model_server() as url:
        home = write_home(folder / "home", models=url, agents=agents, config=AS_SHIPPED, memory=True)
        with DaemonProcess(home, environ=environ()) as daemon:
            return asyncio.run(_measure(daemon, url, agents))


async def _measure(daemon: DaemonProcess, url: str, agents: list[str]) -> list[Figure]:
    await turns(daemon.url, daemon.token, agents, WARM_UP, 5)
    per_turn: list[float] = []
    rates: dict[int, list[float]] = {10: [], 50: []}
    tokens: list[float] = []
    for _ in range(ROUNDS):
        cpu = cpu_seconds(daemon.pid)
        await turns(daemon.url, daemon.token, agents, TURNS, 1)
        per_turn.append((cpu_seconds(daemon.pid) - cpu) / TURNS)
        for together, found in rates.items():
            found.append(TURNS * 2 / await turns(daemon.url, daemon.token, agents, TURNS * 2, together))
        tokens.append(await _tokens(daemon, url, agents[0]))
    return [
        Figure("turn: CPU", min(per_turn) * 1000, "ms", at_most=20),
        *(
            Figure(f"turns per second, {together} at a time", max(found), "1/s", at_least=40)
            for together, found in rates.items()
        ),
        Figure("tokens per CPU-second through SSE", max(tokens), "1/CPU-s", at_least=1500),
    ]


async def _tokens(daemon: DaemonProcess, url: str, agent: str) -> float:
    """Tokens of some long answers at once, per CPU second of the daemon."""
    script(url, [{"text": "token " * TOKENS}] * STREAMS)
    cpu = cpu_seconds(daemon.pid)

    async def stream(number: int) -> None:
        async with Connection(daemon.url, daemon.token) as connection:
            await connection.turn(agent, f"long-{cpu}-{number}")

    await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    script(url, None)
    return TOKENS * STREAMS / (cpu_seconds(daemon.pid) - cpu)
