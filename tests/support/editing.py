"""How editors save, and the files of one agent of a real daemon: edited, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.daemon import DaemonProcess
from tests.support.model_process import ModelProcess
from tests.support.model_replies import said
from tests.support.talking import Talker
from tests.support.ticks import Ticks, read_ticks

T = TypeVar("T")
Save = Callable[[Path, str], Awaitable[None]]

PATIENCE = 30.0
"""Seconds in which anything happens on a busy machine."""
BRIEF = 0.15
LONG = 0.9
"""Pauses within the quiet time after which an edit is applied, and well beyond it."""


async def in_place(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def rename_over(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.swp")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def in_two_halves(pause: float) -> Save:
    async def save(path: Path, text: str) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            await asyncio.sleep(pause)
            file.write(text[len(text) // 2 :])

    return save


def remove_and_create(pause: float) -> Save:
    async def save(path: Path, text: str) -> None:
        path.unlink()
        await asyncio.sleep(pause)
        path.write_text(text, encoding="utf-8")

    return save


SAVES: dict[str, Save] = {
    "in place": in_place,
    "rename over": rename_over,
    "two halves": in_two_halves(BRIEF),
    "two halves, long pause": in_two_halves(LONG),
    "remove and create": remove_and_create(BRIEF),
    "remove and create, long pause": remove_and_create(LONG),
}


async def until(look: Callable[[], Awaitable[T]], seconds: float = PATIENCE, *, pause: float = 0.05) -> T:
    """The first result of `look` that counts as true."""
    end = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < end, f"still {found!r} after {seconds} s"
        await asyncio.sleep(pause)
    return found


class EditedAgent:
    """One agent of a daemon: its files, what the daemon says of it, and what the model is told by it."""

    def __init__(self, daemon: DaemonProcess, models: ModelProcess, talker: Talker) -> None:
        self.daemon = daemon
        self.models = models
        self.talker = talker
        self.name = talker.agent
        self.directory = daemon.home / "workspaces" / self.name
        self.file = self.directory / "agent.json"

    def text(self, **keys: Any) -> str:
        """An agent.json with these keys."""
        return json.dumps({"id": self.name, **keys}, indent=2)

    @property
    def ticks(self) -> Ticks:
        return read_ticks(self.directory / "ticks")

    async def status(self) -> dict[str, Any]:
        return dict(await self.talker.get(self.talker.base))

    async def problems(self, *topics: str) -> list[dict[str, Any]]:
        """The agent's open problems whose keys begin with one of the topics (all)."""
        found = (await self.status())["problems"]
        return [p for p in found if not topics or p["key"].partition(":")[0] in topics]

    @asynccontextmanager
    async def hearing(self) -> AsyncIterator[list[dict[str, Any]]]:
        """The daemon's events from now on, as they come."""
        heard: list[dict[str, Any]] = []
        open = asyncio.Event()

        async def listen() -> None:
            async with self.daemon.async_client() as client, client.stream("GET", "/api/events") as answer:
                open.set()
                async for line in answer.aiter_lines():
                    heard.extend(_data(line))

        listening = asyncio.create_task(listen())
        try:
            async with asyncio.timeout(PATIENCE):
                await open.wait()
            yield heard
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            if not listening.cancelled():
                listening.result()

    async def put(self, **keys: Any) -> dict[str, Any]:
        """Write agent.json through the interface; what became of it."""
        answer = await self.talker.request("PUT", "config", json={"id": self.name, **keys})
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["reload"])

    async def edited(self, name: str, content: str) -> None:
        """Write a file that nothing is reloaded for, and return once the daemon has noticed it."""
        async with self.hearing() as heard:
            (self.directory / name).write_text(content, encoding="utf-8")

            async def look() -> bool:
                return any(event["type"] == "files.changed" and name in event["names"] for event in heard)

            await until(look)

    async def reloads(self) -> list[dict[str, Any]]:
        """The newest first."""
        return list((await self.talker.get("reloads", params={"limit": 200}))["reloads"])

    async def reloaded(self, since: int) -> dict[str, Any]:
        """The newest reload, once there are more than `since` and it is not a failure."""
        return await self._newest(since, "applied", "live")

    async def refused(self, since: int) -> dict[str, Any]:
        """The newest reload, once there are more than `since` and it is a failure."""
        return await self._newest(since, "failed", "rolled_back")

    async def _newest(self, since: int, *outcomes: str) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            found = await self.reloads()
            return found[0] if len(found) > since and found[0]["outcome"] in outcomes else {}

        return await until(look)

    async def serves(self, name: str) -> None:
        """Return once the agent's turns go by that name."""

        async def look() -> bool:
            return f"You are {name} ({self.name})." in await self.prompt()

        await until(look)

    async def prompt(self, session: str = "probe") -> str:
        """The system prompt of a turn that begins now."""
        asked = f"question {time.monotonic_ns()}"
        seen = await self.talker.say(asked, session)
        assert seen.end is not None and seen.end.type == "turn.completed", seen
        for request in reversed(self.models.requests()):
            messages = request["body"]["messages"]
            if said(messages[-1]["content"]) == asked:
                return str(messages[0]["content"])
        raise AssertionError(f"the model was not asked {asked!r}")


def _data(line: str) -> list[dict[str, Any]]:
    """The event whose data stands in that line of a stream, if it does."""
    return [json.loads(line.removeprefix("data: "))] if line.startswith("data: ") else []
