"""The one writer of server-sent events: an event log becomes a stream that may be left and re-joined."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from qworkspace.base.clock import Clock
from qworkspace.base.events import Event, EventLog, TooSlow
from qworkspace.errors import InvalidInput

logger = logging.getLogger(__name__)
Frame = Callable[[Event], bytes]

PIECE_BYTES = 64_000
KEEP_ALIVE = b": still here\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Seconds of silence before a comment, seconds that one send may take, events a reader may fall behind."""

    keep_alive: float = 15.0
    send: float = 30.0
    backlog: int = 1_000


class EventStream:
    """An answer: the events of a log later than `after`, until the log closes or the client leaves.

    Leaving changes nothing for whoever writes the log. A reader that is too slow is cut off and may re-join.
    `frame` gives an event's bytes, none for an event that this stream leaves out; `counted` is held meanwhile. The
    stream ends soon after `welcome` has become false.
    """

    def __init__(
        self,
        log: EventLog,
        frame: Frame,
        *,
        clock: Clock,
        limits: StreamLimits,
        after: int = 0,
        headers: Mapping[str, str] | None = None,
        counted: AbstractContextManager[object] | None = None,
        welcome: Callable[[], bool] = lambda: True,
    ) -> None:
        self.headers = {**HEADERS, **(headers or {})}
        self._log = log
        self._frame = frame
        self._clock = clock
        self._limits = limits
        self._after = after
        self._counted = counted if counted is not None else nullcontext()
        self._welcome = welcome
        self._sent_at = clock.monotonic()
        self._sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        work = [asyncio.ensure_future(part) for part in (self._pump(send), _left(receive), self._watch(send))]
        with self._counted:
            try:
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
        for task in done:
            task.result()

    async def _pump(self, send: Send) -> None:
        """Send what is there and what comes, then the end of the answer."""
        after = await self._over_gap(send)
        caught_up = False
        try:
            async for events in self._log.batches(after):
                if caught_up and len(events) > self._limits.backlog:
                    raise TooSlow(f"{len(events)} events behind")
                for piece in pieces(map(self._frame, events)):
                    await self._send(send, piece)
                caught_up = caught_up or events[-1].seq == self._log.last
        except TooSlow as error:
            logger.info("cut off an event stream, its reader is too slow: %s", error)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _over_gap(self, send: Send) -> int:
        """Where to begin: what the log no longer holds is told as a notice, not silently left out."""
        missing = self._log.oldest - max(self._after + 1, self._log.first)
        if missing <= 0:
            return self._after
        data = to_json({"code": "events_missing", "message": f"{missing} earlier events are no longer held"})
        await self._send(send, f"event: notice\ndata: {data}\n\n".encode())
        return self._log.oldest - 1

    async def _send(self, send: Send, piece: bytes) -> None:
        self._sending, self._sent_at = True, self._clock.monotonic()
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        self._sending = False

    async def _watch(self, send: Send) -> None:
        """Keep a silent stream alive; return when a send does not get through, or the reader must go."""
        while True:
            await self._clock.sleep(min(self._limits.keep_alive, self._limits.send) / 3)
            if not self._welcome():
                logger.info("cut off an event stream: its token or browser is no longer known")
                return
            waited = self._clock.monotonic() - self._sent_at
            if self._sending and waited >= self._limits.send:
                logger.info("cut off an event stream, its reader took nothing for %.0f s", waited)
                return
            if not self._sending and waited >= self._limits.keep_alive:
                await self._send(send, KEEP_ALIVE)


async def _left(receive: Receive) -> None:
    """Return when the client is gone."""
    while True:
        if (await receive())["type"] == "http.disconnect":
            return


def pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Frames joined into pieces of about 64 KB: few sends, and a long one cannot block for long."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        piece.append(frame)
        size += len(frame)
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if size:
        yield b"".join(piece)


def turn_frame(turn_id: str) -> Frame:
    """Events of a turn: their id is `<turn_id>.<seq>`, and stands in the data too."""

    def frame(event: Event) -> bytes:
        id = f"{turn_id}.{event.seq}"
        data = to_json({"id": id, "turn_id": turn_id, "ts": event.at.isoformat(), **event.data})
        return f"id: {id}\nevent: {event.type}\ndata: {data}\n\n".encode("utf-8", "replace")

    return frame


def split_id(last_event_id: str) -> tuple[str, int]:
    """`<log>.<seq>` of a `Last-Event-ID` header."""
    log, dot, seq = last_event_id.strip().rpartition(".")
    if not dot or not log or not seq.isascii() or not seq.isdigit() or len(seq) > 12:
        raise InvalidInput(
            f"Last-Event-ID {last_event_id[:80]!r} is not an id that this daemon gave out", field="Last-Event-ID"
        )
    return log, int(seq)
