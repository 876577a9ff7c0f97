"""The long-term half of memory: every turn goes to a database, whenever it can be reached, and is found there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from qworkspace.base.clock import Clock
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Tasks, Threads
from qworkspace.base.waiting import ends_within, to_the_end
from qworkspace.errors import InvalidInput, ModelError, QworkspaceError, Unavailable
from qworkspace.memory.contract import Hit, Query
from qworkspace.memory.embeddings import Embedder
from qworkspace.memory.outbox import Entry, Outbox, TurnRecord
from qworkspace.memory.pg_ranking import PREFIX, WEAK_VECTORS, hits_of
from qworkspace.memory.pg_vectors import VectorWork
from qworkspace.memory.tokens import terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qworkspace.memory.pg_store import PgStore

logger = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
AWAY = "local files alone were searched: the long-term database cannot be reached"
FAILED = "local files alone were searched: the long-term database has failed"
BY_WORDS = "the long-term database was searched by words alone"
QUESTION_SECONDS = 1.0
SLOW_IN_A_ROW = 3
SLOW = "local files alone were searched: the long-term database has not answered in time"

Answer = tuple[list[Hit], str]


class Link(StrEnum):
    """How the database is reached. `Archive` is the one writer."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    AWAY = "away"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ArchiveParts:
    """What an archive works with.

    `ready` opens the outbox, however often it is called. `store` makes the store, in a thread: that imports the
    database's library. `turn` is held while entries are carried: a successor waits for its predecessor's. `vectors`
    is the weight of the vectors in a search.
    """

    agent_id: str
    outbox: Outbox
    ready: Callable[[], Awaitable[None]]
    embedder: Embedder
    store: Callable[[], PgStore]
    turn: asyncio.Lock
    clock: Clock
    threads: Threads
    problems: Problems
    vectors: float = WEAK_VECTORS
    search_timeout: float = 10.0


class Archive:
    """Carries the outbox to the database, embeds what is there, searches. Never fails its caller by the database."""

    def __init__(self, parts: ArchiveParts) -> None:
        self._parts = parts
        self.link = Link.IDLE
        self._store: PgStore | None = None
        self._vectors: VectorWork | None = None
        self._failure: QworkspaceError | None = None
        self._pause = FIRST_PAUSE
        self._slow = 0
        self._tasks = Tasks(f"archive of {parts.agent_id}", on_error=self._crashed)
        self._carrier: asyncio.Task[None] | None = None
        self._something = asyncio.Event()
        self._settled = asyncio.Event()
        self._key = f"memory-database/{parts.agent_id}"

    def activate(self) -> None:
        """Begin to connect and to carry."""
        if self._carrier is None and self.link is not Link.CLOSED:
            self._carrier = self._tasks.start(self._carry(), name="carrier")

    def deactivate(self) -> None:
        """Stop carrying; what is connected can still be searched."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.cancel("deactivated")
            for kind in ("", "/full", "/refused", "/vectors"):  # a successor tells its own, under the same keys
                self._parts.problems.clear(self._key + kind)

    async def close(self) -> None:
        """End all work and give the connections back. Idempotent."""
        self.deactivate()
        self.link = Link.CLOSED
        await self._tasks.close()
        await self._let_go()

    @property
    def busy(self) -> bool:
        """Whether something is being carried now; not what waits for the database."""
        return self._carrier is not None and self.link is Link.READY and self._parts.outbox.counts.waiting > 0

    async def add(self, record: TurnRecord) -> None:
        """Keep a turn. Durable when it returns; the database gets it later."""
        self._settled.clear()
        await self._parts.ready()
        if await self._parts.outbox.put(record):
            self._report(
                "the long-term database has been away for so long that the oldest turns which waited for it were"
                " dropped; the conversations still have them",
                "/full",
            )
        self._something.set()

    async def forget(self, session_id: str) -> None:
        """Delete what this agent has stored of the session. Durable when it returns; the database does it later."""
        self._settled.clear()
        await self._parts.ready()
        await self._parts.outbox.forget(session_id)
        self._something.set()

    async def settled(self) -> None:
        """Return when the database has everything and all of it is embedded."""
        await self._settled.wait()

    def begin_search(self, query: Query, user: str, seconds: float | None = None) -> asyncio.Task[Answer]:
        """`search` as a task, which ends by itself."""
        return self._tasks.start(self.search(query, user, seconds), name="asking")

    async def search(self, query: Query, user: str, seconds: float | None = None) -> Answer:
        """Hits, best first, and why that is not everything. Waits at most `search_timeout`, or so many seconds."""
        if query.path_prefix and not query.path_prefix.startswith(PREFIX):
            return [], ""
        if self.link is not Link.READY or self._store is None:
            return [], AWAY
        limit = min(self._parts.search_timeout, self._parts.search_timeout if seconds is None else seconds)
        store = self._store
        looking = self._tasks.start(self._look(store, query, user, limit), name="search")
        try:
            if await ends_within(looking, limit, self._parts.clock):
                return looking.result() if not looking.cancelled() else ([], AWAY)
        finally:
            looking.cancel("too late")
        self._slow += 1
        if self._slow >= SLOW_IN_A_ROW:  # it is left alone for a while, so that not every answer waits for it
            self._failed(store, Unavailable(f"the last {self._slow} searches took longer than {limit:g} s"))
        return [], SLOW

    async def _look(self, store: PgStore, query: Query, user: str, limit: float) -> Answer:
        words = await self._parts.threads.run(terms, query.text)
        vector, partial = await self._question(query.text, limit / 2)
        try:
            rows = await store.search(words, vector, user=user, since=query.since, until=query.until)
        except Exception as error:
            self._failed(store, self._named(error))
            return [], FAILED
        self._slow = 0
        hits = hits_of(rows, self._parts.vectors)
        return [hit for hit in hits if hit.path.startswith(query.path_prefix)], partial

    async def _question(self, text: str, limit: float) -> tuple[NDArray[np.float32] | None, str]:
        """The question's vector, and why not every row can be compared with it. Waits for it a moment at most."""
        work = self._vectors
        if work is None or not work.ready:
            return None, "" if self._parts.embedder.id == "none" else f"{BY_WORDS}: it has no vectors yet"
        asking = self._tasks.start(_vector(self._parts.embedder, text), name="question")
        patience = min(QUESTION_SECONDS, limit) if self._parts.embedder.ready else 0.0
        if not await ends_within(asking, patience, self._parts.clock):
            return None, f"{BY_WORDS}: the question's vector is not ready yet"
        found = asking.result()
        if isinstance(found, str):
            return None, f"{BY_WORDS}: {found}"
        return found, "" if work.idle else "the long-term database is still being embedded"

    async def _carry(self) -> None:
        """Connect, carry, and after a failure do so again, later and later until something has been carried."""
        while True:
            try:
                await self._attend(await self._connected())
            except Exception as error:
                self.link = Link.AWAY
                reason = self._named(error).message
                self._report(f"{reason}; memory works on its notes, and turns wait to be stored")
                await self._let_go()
            await self._parts.clock.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _connected(self) -> PgStore:
        await self._parts.ready()
        if self._store is None:
            self.link = Link.CONNECTING
            self._store = await self._parts.threads.run(self._parts.store)
        await self._store.open()
        self._failure, self._slow = None, 0
        self.link = Link.READY
        return self._store

    async def _attend(self, store: PgStore) -> NoReturn:
        """Carry what comes, until something fails."""
        work = self._vectors = VectorWork(
            store,
            self._parts.embedder,
            clock=self._parts.clock,
            report=self._report_vectors,
            settled=self._something.set,
        )
        embedding = self._tasks.start(self._embed(store, work), name="vectors")
        try:
            while self._failure is None:
                self._something.clear()
                carried = await self._carried(store, work)
                self._parts.problems.clear(self._key)
                if not carried:
                    self._settle(work)
                    await self._something.wait()
            raise self._failure
        finally:
            embedding.cancel("detached")

    async def _carried(self, store: PgStore, work: VectorWork) -> bool:
        """Carry the next entries; False when there are none."""
        async with self._parts.turn:
            entries = await self._parts.outbox.next()
            if not entries:
                return False
            done = await self._delivered(store, entries)
            await self._parts.outbox.done(done)
        self._pause = FIRST_PAUSE
        times = [entry.record.at for entry in done if entry.record is not None]
        if times:
            work.add(min(times))
        return True

    async def _delivered(self, store: PgStore, entries: Sequence[Entry]) -> list[Entry]:
        """Store them together; where the database refuses that, one by one, without those it refuses."""
        try:
            await store.deliver(entries)
        except InvalidInput as error:
            if len(entries) > 1:
                return [done for entry in entries for done in await self._delivered(store, [entry])]
            await self._parts.outbox.refuse(entries[0], error.message)
            self._report(f"a turn cannot be stored in the database: {error.message}", "/refused")
            return []
        return list(entries)

    async def _embed(self, store: PgStore, work: VectorWork) -> None:
        try:
            await work.run()
        except Exception as error:
            self._failed(store, self._named(error))

    def _settle(self, work: VectorWork) -> None:
        counts = self._parts.outbox.counts
        if not counts.waiting:
            self._parts.problems.clear(f"{self._key}/full")
            if work.idle:
                self._settled.set()

    def _failed(self, store: PgStore, error: QworkspaceError) -> None:
        """Something else than the carrier has met a failure: it connects anew."""
        if store is self._store:
            self._failure = self._failure or error
            self._something.set()

    def _named(self, error: Exception) -> QworkspaceError:
        """The failure itself, or what is told of a fault that nobody has foreseen, which is logged."""
        if isinstance(error, QworkspaceError):
            return error
        logger.error("long-term memory of agent %s failed", self._parts.agent_id, exc_info=error)
        return Unavailable(f"{type(error).__name__}: {error}; see the log")

    async def _let_go(self) -> None:
        store, self._store, self._vectors = self._store, None, None
        if store is not None:
            await to_the_end(store.close(), name=f"{self._key}/closing")

    def _report(self, message: str, kind: str = "") -> None:
        self._parts.problems.report(
            self._key + kind, f"long-term memory: {message}", severity="warning", agent_id=self._parts.agent_id
        )

    def _report_vectors(self, message: str) -> None:
        if message:
            self._report(f"its vectors wait: {message}", "/vectors")
        else:
            self._parts.problems.clear(f"{self._key}/vectors")

    def _crashed(self, name: str, error: BaseException) -> None:
        self._report(f"{name} has failed ({type(error).__name__}: {error}); see the log")


async def _vector(embedder: Embedder, text: str) -> NDArray[np.float32] | str:
    """The question's vector, or why there is none."""
    try:
        return await embedder.embed_query(text)
    except ModelError as error:
        return error.message
