"""Two hundred edits at random moments while forty clients talk: nothing is cut, nothing acts twice, nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.benchmarks.harness import AS_SHIPPED, Figure, model_server, rss_mib, scratch
from tests.support.daemon import DaemonProcess, write_home
from tests.support.ticks import read_ticks

EDITS = 200
STREAMING = 20
STARTING = 20
AGENT = "default"
MEMORY_SECTIONS = ("running.memory", "language")


@dataclass
class Seen:
    """What the clients and the event stream have seen."""

    turns: int = 0
    failed: list[str] = field(default_factory=list)
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
    edits: list[tuple[float, bool]] = field(default_factory=list)
    reloads: list[dict[str, Any]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)


def run() -> list[Figure]:
    """Edit, talk, and look at what is left."""
    with scratch() as folder, model_server() as url:
        home = write_home(folder / "home", models=url, config=AS_SHIPPED, memory=True)
        with DaemonProcess(home, module="tests.support.ticking") as daemon:
            return asyncio.run(_measure(daemon))


async def _measure(daemon: DaemonProcess) -> list[Figure]:
    seen = Seen()
    limits = httpx.Limits(max_connections=100)
    headers = {"Authorization": f"Bearer {daemon.token}"}
    async with httpx.AsyncClient(base_url=daemon.url, headers=headers, timeout=120, limits=limits) as client:
        await asyncio.gather(*(_turn(client, Seen(), f"warm-up-{n}", "one two") for n in range(STREAMING + STARTING)))
        process = psutil.Process(daemon.pid)
        await _use_memory(client)
        await _overlap(client, daemon.home / "workspaces" / AGENT / "agent.json")
        await _settled(client)
        before = (_files(daemon.pid), process.num_threads(), rss_mib(daemon.pid))
        listener = asyncio.create_task(_listen(client, seen))
        talkers = [
            asyncio.create_task(_talk(client, seen, f"stream-{n}", "[[slow:0.05]] " + "word " * 20))
            for n in range(STREAMING)
        ]
        talkers += [asyncio.create_task(_talk(client, seen, f"start-{n}", "hello", pause=0.5)) for n in range(STARTING)]
        await _edit(daemon.home / "workspaces" / AGENT / "agent.json", seen)
        seen.stop.set()
        await asyncio.gather(*talkers)
        await _use_memory(client)
        retired = await _settled(client)
        listener.cancel()
        await asyncio.wait({listener})
        after = (_files(daemon.pid), process.num_threads(), rss_mib(daemon.pid))
    ticks = read_ticks(daemon.home / "workspaces" / AGENT / "ticks")
    return [*_clients(seen), *_acting(ticks, retired), *_memory(seen), *_left(before, after), *_times(seen)]


def _memory(seen: Seen) -> list[Figure]:
    """Edits of other sections leave the memory, and so its index, as it is; edits of its own make another."""
    planned = [event for event in seen.reloads if event["type"] == "reload.planned" and event["rebuilt"]]
    own = [event for event in planned if any(name.startswith(MEMORY_SECTIONS) for name in event["changed"])]
    others = [event for event in planned if event not in own]
    disturbed = [event for event in others if "memory" not in event["moved"]]
    kept = [event for event in own if "memory" not in event["rebuilt"]]
    return [
        Figure("reload: edits of other sections that moved the memory", len(others) - len(disturbed), ""),
        Figure("reload: edits of other sections that disturbed the memory", len(disturbed), "", at_most=0),
        Figure("reload: edits of the memory section that did not reach it", len(kept), "", at_most=0),
    ]


def _clients(seen: Seen) -> list[Figure]:
    for failure in seen.failed[:5]:
        print(f"  failed turn: {failure}")
    return [
        Figure("reload: edits", len(seen.edits), ""),
        Figure("reload: turns beside them", seen.turns, ""),
        Figure("reload: failed or truncated turns", len(seen.failed), "", at_most=0),
    ]


def _acting(ticks: Any, retired: int) -> list[Figure]:
    return [
        Figure("reload: instances that acted", ticks.instances, ""),
        Figure("reload: missing ticks", ticks.missing, "", at_most=0),
        Figure("reload: doubled ticks", ticks.doubled, "", at_most=0),
        Figure("reload: instances acting at once", ticks.most, "", at_most=1),
        Figure("reload: ticks of one that does not act", ticks.gaps, "", at_most=0),
        Figure("reload: retired instances left", retired, "", at_most=0),
    ]


def _left(before: tuple[int, int, float], after: tuple[int, int, float]) -> list[Figure]:
    return [
        Figure("reload: file descriptors more or fewer", abs(after[0] - before[0]), "", at_most=5),
        Figure("reload: threads more", after[1] - before[1], "", at_most=2),
        Figure("reload: memory more", after[2] - before[2], "MiB", at_most=15),
    ]


def _times(seen: Seen) -> list[Figure]:
    swaps = [event for event in seen.reloads if event["type"] == "reload.swapped"]
    latencies, lengths = [], []
    for event in swaps:
        earlier = [at for at, valid in seen.edits if valid and at <= event["at"]]
        if earlier:
            latencies.append((event["at"] - earlier[-1]) * 1000)
        if "swap_ms" in event:
            lengths.append(event["swap_ms"])
    during, apart = _first_tokens(seen)
    return [
        Figure("reload: edit to serving, p50", _part(latencies, 0.5), "ms", at_most=500),
        Figure("reload: edit to serving, p99", _part(latencies, 0.99), "ms"),
        Figure("reload: critical section, p50", _part(lengths, 0.5), "ms", at_most=2),
        Figure("reload: critical section, p99", _part(lengths, 0.99), "ms"),
        Figure("reload: added to a first token, p50", max(0.0, during - apart), "ms", at_most=20),
    ]


def _first_tokens(seen: Seen) -> tuple[float, float]:
    """Median milliseconds to the first token of turns that began within a reload, and of the others."""
    begun: float | None = None
    windows: list[tuple[float, float]] = []
    for event in seen.reloads:
        if event["type"] == "reload.planned":
            begun = event["at"]
        elif event["type"] in ("reload.swapped", "reload.failed") and begun is not None:
            windows.append((begun, event["at"]))
            begun = None
    inside: list[float] = []
    outside: list[float] = []
    for at, took in seen.first_tokens:
        near = any(start - 0.05 <= at <= end + 0.05 for start, end in windows)
        (inside if near else outside).append(took * 1000)
    return (statistics.median(inside) if inside else 0.0), (statistics.median(outside) if outside else 0.0)


def _part(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


async def _edit(path: Path, seen: Seen) -> None:
    """Two hundred edits of all sections, every fifth of them invalid, each way an editor saves."""
    chance = random.Random(7)
    good: dict[str, Any] = json.loads(path.read_text())
    for number in range(EDITS):
        await asyncio.sleep(chance.uniform(0.05, 0.9))
        valid = number % 5 != 4
        text = json.dumps(_changed(good, number, chance)) if valid else chance.choice(_BAD)
        seen.edits.append((time.time(), valid))
        if chance.random() < 0.5:
            path.write_text(text)
        else:
            new = path.with_suffix(".new")
            new.write_text(text)
            new.replace(path)
    await asyncio.sleep(0.5)
    seen.edits.append((time.time(), True))
    path.write_text(json.dumps(_changed(good, EDITS, chance)))
    await asyncio.sleep(2)


_BAD = ("", "{", '{"id": "default", "heartbeat": {"every": "soon"}}', '{"id": "other"}', '{"id": "default", "id": "x"}')


def _changed(good: dict[str, Any], number: int, chance: random.Random) -> dict[str, Any]:
    changes: list[dict[str, Any]] = [
        {"heartbeat": {"every": f"{number + 1}m"}},
        {"cron": {"dream_cron": f"{number % 60} 23 * * *"}},
        {"channels": {"console": {"enabled": number % 2 == 0, "note": number}}},
        {"proactive": {"idle_minutes": number + 1}},
        {"running": {"max_iters": number % 50 + 5}},
        {"running": {"memory": {"auto_memory_interval": number}}},
        {"description": f"edit {number}"},
        {"tools": {"run_shell": {"policy": ("ask", "deny")[number % 2]}}},
    ]
    return good | chance.choice(changes)


async def _talk(client: httpx.AsyncClient, seen: Seen, name: str, text: str, pause: float = 0.0) -> None:
    number = 0
    while not seen.stop.is_set():
        number += 1
        await _turn(client, seen, f"{name}-{number}", text)
        await asyncio.sleep(pause)


async def _turn(client: httpx.AsyncClient, seen: Seen, session: str, text: str) -> None:
    begun, clock = time.time(), time.perf_counter()
    said, last = "", {}
    try:
        async for kind, data in _events(
            client, "POST", f"/api/agents/{AGENT}/chat", json={"session_id": session, "message": text}
        ):
            if kind == "text.delta":
                if not said:
                    seen.first_tokens.append((begun, time.perf_counter() - clock))
                said += data["text"]
            last = data | {"kind": kind}
    except (httpx.HTTPError, AssertionError) as error:
        last = {"kind": repr(error)}
    seen.turns += 1
    if last.get("kind") != "turn.completed" or last.get("text") != said or not said:
        seen.failed.append(f"{session}: {last}")


async def _listen(client: httpx.AsyncClient, seen: Seen) -> None:
    async for kind, data in _events(client, "GET", "/api/events"):
        if kind.startswith("reload."):
            seen.reloads.append(data | {"type": kind, "at": datetime.fromisoformat(data["ts"]).timestamp()})


async def _events(
    client: httpx.AsyncClient, method: str, path: str, **options: Any
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    async with client.stream(method, path, **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                yield kind, json.loads(line[5:])


async def _use_memory(client: httpx.AsyncClient) -> None:
    """Have everything open that memory opens when it is first needed."""
    memory = f"/api/agents/{AGENT}/memory"
    (await client.post(f"{memory}/search", json={"query": "what is here?"})).raise_for_status()
    (await client.get(f"{memory}/tasks")).raise_for_status()


async def _overlap(client: httpx.AsyncClient, path: Path) -> None:
    """Let several instances have the memory's files open at once: SQLite keeps the descriptors of what is closed
    while others use the same file, and takes them again later."""
    good: dict[str, Any] = json.loads(path.read_text())
    turns = []
    for number in range(4):
        turns.append(asyncio.create_task(_turn(client, Seen(), f"overlap-{number}", "[[slow:0.1]] " + "word " * 60)))
        await asyncio.sleep(0.5)
        path.write_text(json.dumps(good | {"running": {"memory": {"auto_memory_interval": number + 1}}}))
        await asyncio.sleep(1)
        await _use_memory(client)
    await asyncio.gather(*turns)
    path.write_text(json.dumps(good))
    await asyncio.sleep(1)
    await _use_memory(client)


async def _settled(client: httpx.AsyncClient) -> int:
    """Wait until no retired instance is left, half a minute at most; how many are left."""
    left = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            while True:
                status = (await client.get(f"/api/agents/{AGENT}")).json()
                left = len(status.get("retired", ()))
                if not left:
                    break
                await asyncio.sleep(0.2)
    await asyncio.sleep(1)
    return left


def _files(pid: int) -> int:
    """Descriptors but sockets, of which clients and provider keep as many open as they like."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += not str(path.readlink()).startswith("socket:")
    return count
