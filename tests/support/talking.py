"""A client of a real daemon that keeps what it saw of each turn: streams that are cut and joined again."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.daemon import DaemonProcess

ENDS = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})


@dataclass(frozen=True)
class SseEvent:
    """One event of a stream."""

    id: str
    type: str
    data: dict[str, Any]


@dataclass
class Seen:
    """What a client saw of one turn, over as many streams as it took."""

    session: str = ""
    turn: str = ""
    status: int = 0
    events: list[SseEvent] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Whether the daemon has acknowledged the message."""
        return self.status == 200

    @property
    def text(self) -> str:
        """All pieces of text together."""
        return "".join(event.data["text"] for event in self.events if event.type == "text.delta")

    @property
    def last_id(self) -> str:
        """What a browser would send as Last-Event-ID."""
        return next((event.id for event in reversed(self.events) if event.id), "")

    @property
    def end(self) -> SseEvent | None:
        """The last event of the turn, if it has come."""
        return self.events[-1] if self.events and self.events[-1].type in ENDS else None

    def of(self, type: str) -> list[SseEvent]:
        return [event for event in self.events if event.type == type]

    def numbers(self) -> list[int]:
        """The numbers of the events within their turn."""
        return [int(event.id.rpartition(".")[2]) for event in self.events if event.id]


class Talker:
    """Talks to one agent of a daemon. `on_event` hears of each event as it comes, `buffer` makes a slow reader."""

    def __init__(
        self,
        daemon: DaemonProcess,
        agent: str = "default",
        *,
        on_event: Callable[[SseEvent], None] | None = None,
        buffer: int | None = None,
    ) -> None:
        self.agent = agent
        self._on_event = on_event or (lambda event: None)
        self._client = httpx.AsyncClient(
            base_url=daemon.url,
            headers={"Authorization": f"Bearer {daemon.token}"},
            timeout=httpx.Timeout(60.0, pool=None),
            transport=httpx.AsyncHTTPTransport(
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=200),
                socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)] if buffer is not None else None,
                verify=False,  # there is no TLS on the loopback, and loading certificates takes 50 ms
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._client.aclose()

    @property
    def base(self) -> str:
        return f"/api/agents/{self.agent}"

    @asynccontextmanager
    async def sending(
        self, text: str, session: str = "s1", *, key: str | None = None, seen: Seen | None = None, **more: Any
    ) -> AsyncIterator[tuple[Seen, AsyncIterator[SseEvent]]]:
        """Send a message; what was seen, and the events as they come. Leaving the block leaves the stream."""
        seen = seen if seen is not None else Seen()
        seen.session = session
        body = {"session_id": session, "message": text, **more}
        headers = {"Idempotency-Key": key} if key is not None else {}
        async with self._client.stream("POST", f"{self.base}/chat", json=body, headers=headers) as answer:
            if answer.status_code != 200:
                await answer.aread()
            _note(seen, answer)
            yield seen, self._events(answer, seen)

    async def say(self, text: str, session: str = "s1", *, seen: Seen | None = None, **more: Any) -> Seen:
        """Send a message and read its stream to the end."""
        async with self.sending(text, session, seen=seen, **more) as (seen, events):
            async for _ in events:
                pass
        return seen

    @asynccontextmanager
    async def joining(
        self, seen: Seen, *, last_id: str | None = None
    ) -> AsyncIterator[tuple[Seen, AsyncIterator[SseEvent]]]:
        """Join the session's stream again after the last event that was seen."""
        after = seen.last_id if last_id is None else last_id
        headers = {"Last-Event-ID": after} if after else {}
        path = f"{self.base}/sessions/{seen.session}/stream"
        async with self._client.stream("GET", path, headers=headers) as answer:
            _note(seen, answer)
            yield seen, self._events(answer, seen)

    async def rejoin(self, seen: Seen) -> Seen:
        """Join again and read to the end."""
        async with self.joining(seen) as (seen, events):
            async for _ in events:
                pass
        return seen

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request below the agent's address."""
        return await self._client.request(method, path if path.startswith("/") else f"{self.base}/{path}", **options)

    async def get(self, path: str, **options: Any) -> Any:
        """The JSON of a GET that must succeed."""
        answer = await self.request("GET", path, **options)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def post(self, path: str, **options: Any) -> Any:
        """The JSON of a POST that must succeed."""
        answer = await self.request("POST", path, **options)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def messages(self, session: str = "s1") -> list[dict[str, Any]]:
        """All stored messages, oldest first."""
        return await self.listed(f"sessions/{session}/messages", "messages")

    async def turns(self, session: str = "s1") -> list[dict[str, Any]]:
        """All turns, oldest first."""
        return list(reversed(await self.listed(f"sessions/{session}/turns", "turns")))

    async def sessions(self) -> list[str]:
        """The ids of all sessions, newest first."""
        return [session["id"] for session in await self.listed("sessions", "sessions")]

    async def listed(self, path: str, name: str) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.get(path, params={"limit": 200, **cursor})
            found += page[name]
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    async def turn(self, turn_id: str) -> dict[str, Any]:
        """One turn."""
        return dict(await self.get(f"turns/{turn_id}"))

    async def _events(self, answer: httpx.Response, seen: Seen) -> AsyncIterator[SseEvent]:
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                event = SseEvent(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
                seen.events.append(event)
                fields = {}
                self._on_event(event)
                yield event


def _note(seen: Seen, answer: httpx.Response) -> None:
    seen.status = answer.status_code
    seen.turn = answer.headers.get("x-turn-id", seen.turn)


def spoken(messages: list[dict[str, Any]], turn_id: str) -> str:
    """What the turn's stored messages say, as the stream would have said it."""
    said = [m["text"] for m in messages if m["turn_id"] == turn_id and m["role"] == "assistant" and m["text"].strip()]
    return "\n\n".join(said)
