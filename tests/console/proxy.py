"""A wire between browser and daemon that can be cut."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self


class Wire:
    """Forwards a port of its own to `target` on the loopback. `cut` breaks all that is connected."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connected = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="wire")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def cut(self, *, stay: bool = False) -> None:
        """Break every connection now; with `stay`, new ones are refused until `mend`."""
        self.connected = not stay
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._break)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(10)

    def mend(self) -> None:
        self.connected = True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        self._break()
        if self._handlers:
            await asyncio.wait(self._handlers)

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            await self._forward(reader, writer)
        except OSError:
            return  # cut, or nobody there: what this wire is for
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.connected:
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        ends = {writer, back}
        self._writers |= ends
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._writers -= ends
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()
