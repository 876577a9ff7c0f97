"""What a memory does by itself: opens its files when they are needed, indexes, reads documents, dreams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

from qworkspace.base.tasks import SingleFlight, Tasks
from qworkspace.errors import QworkspaceError, Unavailable
from qworkspace.memory.contract import BaseMemoryManager
from qworkspace.memory.database import MemoryDb
from qworkspace.memory.documents import Documents
from qworkspace.memory.dream import Dreamer
from qworkspace.memory.index import MemoryIndex
from qworkspace.memory.parts import MemoryParts
from qworkspace.memory.queue import SummarizeQueue
from qworkspace.memory.vault import AgentMdManager

logger = logging.getLogger(__name__)

LATER_SECONDS = 5.0
"""After a start, what nobody waits for waits so long: many agents may be starting."""
DREAM_SECONDS = 60.0
DREAM_AGAIN_SECONDS = 3_600.0
_WORDS = {
    "open": "open its files",
    "queue": "queue what was said",
    "index": "open its search index",
    "dream": "consolidate its notes",
    "documents": "read new documents",
}


class Upkeep:
    """The background life of one memory. Until something has to be stored or searched, no file is open."""

    def __init__(
        self,
        memory: BaseMemoryManager,
        parts: MemoryParts,
        *,
        database: MemoryDb,
        vault: AgentMdManager,
        index: MemoryIndex,
        queue: SummarizeQueue,
        dreamer: Dreamer,
        documents: Documents,
    ) -> None:
        self._memory = memory
        self._parts = parts
        self._database = database
        self._vault = vault
        self._index = index
        self._queue = queue
        self._dreamer = dreamer
        self._documents = documents
        self._tasks = Tasks(f"memory of {parts.agent_id}")
        self._opening: SingleFlight[None] = SingleFlight()
        self._actor = parts.daemon.actor(parts.state_dir)
        self._background: set[asyncio.Task[Any]] = set()
        self._working = 0
        self._dropped = False
        self._reading: asyncio.Task[None] | None = None
        self._quieting: asyncio.Task[None] | None = None
        self._closed = False
        self.active = False
        self.opened = False
        self.index_opened = False

    # life

    def activate(self) -> None:
        """Begin to act, in the background."""
        self.active = True
        if self._parts.daemon.begin(self._parts.state_dir, self._memory):
            self.prepare()  # the agent is in use
        self._beside(self._begin(), "begin")
        self._beside(self._catch_up_dreams(), "dreams")

    def deactivate(self) -> None:
        """Begin nothing any more, and end what was begun."""
        if not self.active:
            return
        self.active = False
        self._queue.deactivate()
        self._index.halt()
        ending = list(self._background)
        for task in ending:
            task.cancel()
        self._quieting = self._tasks.start(self._quieten(ending), name="quieten")
        self._parts.daemon.end(self._parts.state_dir, self._memory, self._quieting)

    async def close(self) -> None:
        """End everything and close the files. Idempotent."""
        self.deactivate()
        self._closed = True
        if self._quieting is not None:
            await asyncio.wait({self._quieting})  # a successor waits for it
        await self._tasks.close()
        await self._queue.close()
        await self._index.close()
        await self._vault.close()
        await self._database.close()
        self.opened = self.index_opened = False

    @property
    def busy(self) -> bool:
        """Whether something is under way that ends by itself."""
        indexing = self.index_opened and self._index.status().pending > 0
        return self.active and (self._working > 0 or self._queue.busy or indexing)

    # files that are opened when they are needed

    async def ready(self) -> None:
        """The vault may be changed and the queue filled from now on; what a crash left half done is finished."""
        self._expect_alive()
        if not self.opened:
            await self._opening.run("files", lambda: self._carried_out(self._open_files, "open"))

    async def index_ready(self) -> None:
        """The index can be asked; the first look at the notes has begun."""
        self._expect_alive()
        if not self.index_opened:
            await self._opening.run("index", lambda: self._carried_out(self._open_and_look, "open index"))

    def prepare(self) -> None:
        """A search is likely to come: open the index now, and load what it needs."""
        if self.index_opened:
            self._index.warm()
        elif self.active:
            self._beside(self.guarded("index", self._warm), "prepare")

    async def _warm(self) -> None:
        await self.index_ready()
        self._index.warm()

    def _expect_alive(self) -> None:
        if self._closed:
            raise Unavailable(f"the memory of agent {self._parts.agent_id!r} has ended")

    async def _carried_out(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Do it although whoever asked first may be cancelled; `Unavailable` for all who wait when this memory ends."""
        self._expect_alive()
        task = self._tasks.start(work(), name=name)
        await asyncio.wait({task})
        if task.cancelled():
            self._expect_alive()  # it raises: only `close` cancels
        task.result()

    async def _open_files(self) -> None:
        await self._parts.daemon.until_quiet(self._parts.state_dir)
        await self._database.open()
        await self._vault.start()
        self.opened = True
        if self.active:
            self._queue.activate()

    async def _open_and_look(self) -> None:
        await self._parts.daemon.until_quiet(self._parts.state_dir)
        await self._index.open()
        self.index_opened = True
        if self.active:
            self._index.refresh()

    # what happens by itself

    async def _begin(self) -> None:
        """What an earlier instance or process has left, then what is new. A fresh agent has nothing to be opened."""
        run, settings = self._parts.threads.run, self._parts.config
        places = (settings.daily_dir, settings.digest_dir, settings.resource_dir)
        await self._parts.daemon.until_quiet(self._parts.state_dir)
        if self.index_opened:
            self._index.refresh()
        if self.opened:
            self._queue.activate()
        elif await run(self._database.path.exists):
            await self.guarded("open", self.ready)
        if self.opened:
            await self.guarded("dream", self._recover_dream)
        await self._parts.clock.sleep(LATER_SECONDS)
        if not self.opened and await self._has_conversations():
            await self.guarded("open", self.ready)
        found = await run(lambda: [place for place in places if self._has_files(place)])
        if settings.daily_dir in found or settings.digest_dir in found:
            await self.guarded("index", self.index_ready)
        if settings.resource_dir in found:
            self.read_documents()

    async def _has_conversations(self) -> bool:
        found, _ = await self._parts.sessions.sessions(limit=1)
        return bool(found)

    async def _recover_dream(self) -> None:
        async with self.alone():
            await self._dreamer.recover()

    def files_changed(self, names: Collection[str] | None) -> None:
        """Look at these notes and documents again; None: at all of them."""
        settings = self._parts.config
        if self.index_opened and self.active:
            notes = None if names is None else [name for name in names if name.endswith(".md")]
            if notes is None or notes:
                self._index.refresh(notes)
        if names is None or any(PurePosixPath(name).is_relative_to(settings.resource_dir) for name in names):
            self.read_documents()

    def wake(self) -> None:
        """A model may be there now."""
        if self.active and self.opened:
            self._queue.wake()

    def read_documents(self) -> None:
        """Read what was dropped, in the background; asked for meanwhile, once more."""
        self._dropped = True
        if self.active and (self._reading is None or self._reading.done()):
            self._reading = self._beside(self._read_documents(), "documents")

    async def _read_documents(self) -> None:
        while self._dropped:
            self._dropped = False
            if await self._parts.threads.run(self._has_files, self._parts.config.resource_dir):
                await self.guarded("documents", self.read_new)

    async def read_new(self) -> int:
        """Read the documents that are new; the number of notes that came of them."""
        await self.ready()
        async with self.alone():
            return await self._documents.read_new()

    async def _catch_up_dreams(self) -> None:
        """Days that were missed are caught up a while after the start, and whenever a day has passed."""
        await self._parts.clock.sleep(DREAM_SECONDS)
        while True:
            if self._parts.dreams() and await self._parts.threads.run(self._has_files, self._parts.config.daily_dir):
                await self.guarded("dream", self._dream_if_due)
            await self._parts.clock.sleep(DREAM_AGAIN_SECONDS)

    async def _dream_if_due(self) -> None:
        await self.ready()
        if await self._dreamer.catch_up_due():
            async with self.alone():
                await self._dreamer.dream()

    def _has_files(self, directory: str) -> bool:
        try:
            return any(not entry.name.startswith(".") for entry in (self._parts.workspace / directory).iterdir())
        except OSError:
            return False

    # the tools of all that

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Work that changes notes by itself: one piece at a time, whichever instance of the agent does it."""
        self._working += 1
        try:
            async with self._actor:
                yield
        finally:
            self._working -= 1

    async def guarded(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do it; a failure is shown until it succeeds, and ends nothing else."""
        key = f"memory-upkeep-{what}/{self._parts.agent_id}"
        try:
            await work()
        except Exception as error:
            if not isinstance(error, QworkspaceError):
                logger.exception("the memory of agent %s: %s failed", self._parts.agent_id, what)
            told = f"the memory of agent {self._parts.agent_id!r} could not {_WORDS[what]}: {error}"
            self._parts.problems.report(key, told, severity="warning", agent_id=self._parts.agent_id)
        else:
            self._parts.problems.clear(key)

    def _beside(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.start(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _quieten(self, ending: Collection[asyncio.Task[Any]]) -> None:
        """Return when nothing that was begun goes on."""
        if ending:
            await asyncio.wait(ending)
        await self._queue.idle()
        await self._index.halted()
