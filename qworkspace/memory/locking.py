"""The lock of a vault: one writer at a time among the tasks of this process and among all processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from qworkspace.base.files import make_directory, storing
from qworkspace.base.tasks import Threads
from qworkspace.errors import Unavailable

PATIENCE = 10.0  # seconds for another process; a change takes milliseconds
STEP = 0.002


class VaultLock:
    """Held with `async with lock.held():`; it ends with the process, however that ends."""

    def __init__(self, path: Path, threads: Threads) -> None:
        self._path = path
        self._threads = threads
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the others; `Unavailable` when another process does not give it back."""
        async with self._turn:
            acquiring = self._threads.submit(self._acquire)
            try:
                descriptor = await asyncio.shield(acquiring)
            except asyncio.CancelledError:
                acquiring.add_done_callback(_give_back)
                raise
            try:
                yield
            finally:
                os.close(descriptor)

    def _acquire(self) -> int:
        make_directory(self._path.parent)
        with storing(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        for _ in range(int(PATIENCE / STEP)):
            if _lock(descriptor):
                return descriptor
            time.sleep(STEP)
        os.close(descriptor)
        raise Unavailable(f"another process holds {str(self._path)!r}; try again when it has ended")


def _give_back(acquired: asyncio.Future[int]) -> None:
    """Who waited for the lock has gone."""
    if not acquired.cancelled() and acquired.exception() is None:
        os.close(acquired.result())


def _lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt  # there is no other lock on that platform

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # POSIX only

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
