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
from qworkspace.memory.contract import BaseMemoryManager, MemoryBackends
from qworkspace.memory.embeddings import Embedder, Embedders
from qworkspace.memory.vector_stores import VectorStores
from qworkspace.sessions.store import SessionStore

if TYPE_CHECKING:
    from qworkspace.memory.asking import Ask

Language = Literal["auto", "en", "zh"]

Tell = Callable[[str, str, str], Awaitable[None]]
"""Puts (title, body, id of the change that can be undone) into the inbox."""


class DaemonMemory:
    """What the memories of all agents share: backends, embedders, vector stores, one place for whoever indexes.

    Of each agent one memory acts. `state_dir` names the agent.
    """

    def __init__(self, threads: Threads, clock: Clock, home: Path) -> None:
        self.backends = MemoryBackends()
        self.embedders = Embedders(threads, clock)
        self.stores = VectorStores(home / ".daemon" / "chroma", owner=str(home))
        self.indexing = asyncio.Semaphore(1)
        self.tasks = Tasks("memory")
        self._threads = threads
        self._actors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._acting: dict[str, BaseMemoryManager] = {}
        self._ending: dict[str, set[asyncio.Task[None]]] = {}

    def actor(self, state_dir: Path) -> asyncio.Lock:
        """The lock that whoever changes this agent's queue, notes or index by itself holds meanwhile.

        A replaced instance lets go of it when it is quiet; until then its successor waits.
        """
        key = str(state_dir)
        lock = self._actors.get(key)
        if lock is None:
            lock = self._actors[key] = asyncio.Lock()
        return lock

    def acting(self, state_dir: Path) -> BaseMemoryManager | None:
        """The memory of the agent that acts now."""
        return self._acting.get(str(state_dir))

    def begin(self, state_dir: Path, memory: BaseMemoryManager) -> bool:
        """This one acts from now on; whether another has just ended for it."""
        self._acting[str(state_dir)] = memory
        return str(state_dir) in self._ending

    def end(self, state_dir: Path, memory: BaseMemoryManager, quiet: asyncio.Task[None]) -> None:
        """It acts no more; what it had begun is over when `quiet` is."""
        key = str(state_dir)
        if self._acting.get(key) is memory:
            del self._acting[key]
        self._ending.setdefault(key, set()).add(quiet)
        quiet.add_done_callback(lambda task: self._forget(key, task))

    async def until_quiet(self, state_dir: Path) -> None:
        """Return when the memories that acted before have nothing under way any more."""
        while ending := self._ending.get(str(state_dir)):
            await asyncio.wait(set(ending))

    def _forget(self, key: str, quiet: asyncio.Task[None]) -> None:
        self._ending[key].discard(quiet)
        if not self._ending[key]:
            del self._ending[key]

    async def close(self) -> None:
        """End the searches that nobody waits for, close embedders and stores. Idempotent."""
        await self.tasks.close("the daemon stops")
        await self.embedders.close()
        await self._threads.run(self.stores.close)


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What one agent's memory works with. `config` and `language` are those it was made for; the rest is asked anew.

    `home()` is config.json as it is now, `zone()` the user's time zone, `dreams()` whether notes are consolidated.
    """

    agent_id: str
    workspace: Path
    state_dir: Path
    config: MemoryConfig
    language: Language
    home: Callable[[], HomeConfig]
    zone: Callable[[], tzinfo]
    dreams: Callable[[], bool]
    sessions: SessionStore
    ask: Ask
    tell: Tell
    daemon: DaemonMemory
    clock: Clock
    threads: Threads
    problems: Problems
    bus: EventBus

    @property
    def embedder(self) -> Embedder:
        """What makes the agent's vectors by the configuration as it is now."""
        home = self.home()
        embedding = self.config.embedding or home.embedding
        return self.daemon.embedders.of(embedding, home.providers.get(embedding.provider))
