"""A client that costs next to nothing: it shares the machine with what it measures."""

from __future__ import annotations

import asyncio
import json
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

LAST_EVENT = b"event: turn.completed"


class Connection:
    """One kept-alive connection to the daemon."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._headers = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._writer.close()

    async def turn(self, agent: str, session: str, message: str = "one two three") -> None:
        """One streamed turn, read to its end; AssertionError when it did not complete."""
        body = json.dumps({"session_id": session, "message": message}).encode()
        head = f"POST /api/agents/{agent}/chat HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert await self._completed(), f"{session}: the turn did not complete"

    async def _completed(self) -> bool:
        """Read a chunked body to its end; whether the last event was in it. The daemon sends events whole."""
        completed = False
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            completed = LAST_EVENT in await self._reader.readexactly(size + 2)
        await self._reader.readexactly(2)
        return completed


async def turns(url: str, token: str, agents: list[str], count: int, together: int) -> float:
    """`count` turns, `together` at a time, each in a session of its own; seconds that they took."""
    numbers = iter(range(count))
    batch = time.monotonic_ns()

    async def worker() -> None:
        async with Connection(url, token) as connection:
            for number in numbers:
                await connection.turn(agents[number % len(agents)], f"bench-{batch}-{number}")

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(together)))
    return time.perf_counter() - begun
