"""What a memory backend is made from, and what all memories of a daemon share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Tasks, Threads
from qworkspace.config.home import HomeConfig
from qworkspace.config.memory import MemoryConfig
from qworkspace.memory.contract import MemoryBackends
from qworkspace.memory.embeddings import Embedders
from qworkspace.sessions.store import SessionStore

if TYPE_CHECKING:
    from qworkspace.memory.asking import Ask

Language = Literal["auto", "en", "zh"]

Tell = Callable[[str, str, str], Awaitable[None]]
"""Puts (title, body, id of the change that can be undone) into the inbox."""


class DaemonMemory:
    """What the memories of all agents share: backends, embedders, one place for whoever indexes, one actor per agent.

    Making it costs nothing; embedders are made when the first memory needs one.
    """

    def __init__(self, threads: Threads, clock: Clock, backends: MemoryBackends | None = None) -> None:
        self.backends = backends if backends is not None else MemoryBackends()
        self.indexing = asyncio.Semaphore(1)
        self.tasks = Tasks("memory")
        self._threads = threads
        self._clock = clock
        self._embedders: Embedders | None = None
        self._actors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def embedders(self) -> Embedders:
        """The embedders; loading one is their own business."""
        if self._embedders is None:
            self._embedders = Embedders(self._threads, self._clock)
        return self._embedders

    def actor(self, state_dir: Path) -> asyncio.Lock:
        """The lock that whoever changes this agent's queue, notes or index by itself holds meanwhile.

        A replaced instance lets go of it when it is quiet; until then its successor waits.
        """
        key = str(state_dir)
        lock = self._actors.get(key)
        if lock is None:
            lock = self._actors[key] = asyncio.Lock()
        return lock

    async def close(self) -> None:
        """End the searches that nobody waits for, and close the embedders. Idempotent."""
        await self.tasks.close("the daemon stops")
        if self._embedders is not None:
            await self._embedders.close()


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What one agent's memory works with. `config` and `language` are those it was made for; the rest is asked anew.

    `home()` is config.json as it is now, `zone()` the user's time zone.
    """

    agent_id: str
    workspace: Path
    state_dir: Path
    config: MemoryConfig
    language: Language
    home: Callable[[], HomeConfig]
    zone: Callable[[], tzinfo]
    sessions: SessionStore
    ask: Ask
    tell: Tell
    daemon: DaemonMemory
    clock: Clock
    threads: Threads
    problems: Problems
    bus: EventBus
