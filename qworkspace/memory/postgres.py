"""The backend `pgvector`: notes as ever, and every turn kept in PostgreSQL, where it is found again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, ClassVar

from qworkspace.base.scope import current_scope
from qworkspace.errors import Unavailable
from qworkspace.memory import outbox
from qworkspace.memory.contract import Found, MemoryStatus, MemoryTurn, Query
from qworkspace.memory.extract import REMEMBERED
from qworkspace.memory.markdown import RECALL_SHARE, SEARCH_SECONDS, MarkdownMemory
from qworkspace.memory.middleware import recall_query, within_tokens
from qworkspace.memory.outbox import Outbox, TurnRecord
from qworkspace.memory.parts import MemoryParts
from qworkspace.memory.pg_archive import AWAY, Archive, ArchiveParts, Link
from qworkspace.memory.pg_missed import missed
from qworkspace.memory.pg_ranking import merged, vector_share

if TYPE_CHECKING:
    from qworkspace.memory.pg_store import PgStore

SHARED = "shared"
MARGIN = timedelta(hours=1)  # turns may end in another order than they began; what comes twice is stored once
UNCONFIGURED = (
    "it has no database yet: give `running.memory.postgres` a `dsn`, or `host`, `user`, `password` and `dbname`"
)
UNINSTALLED = "it needs psycopg: pip install 'qworkspace[postgres]'"


class PgvectorMemory(MarkdownMemory):
    """Everything that the notes can, and turns word for word in a database that may be away.

    A turn of a named user finds what that user has said; without a user (the console, the command line) everybody's.
    """

    backend = "pgvector"
    components: ClassVar[Mapping[str, Sequence[str]]] = {**MarkdownMemory.components, "outbox": outbox.MIGRATIONS}

    def __init__(self, parts: MemoryParts) -> None:
        super().__init__(parts)
        self.outbox = Outbox(self.database)
        self._outbox_open = False
        embedder = parts.embedder
        self.archive = Archive(
            ArchiveParts(
                agent_id=parts.agent_id,
                outbox=self.outbox,
                ready=self._outbox_ready,
                embedder=embedder,
                store=self._make_store,
                turn=parts.daemon.actor(parts.state_dir / "outbox"),
                clock=parts.clock,
                threads=parts.threads,
                problems=self.parts.problems,
                vectors=vector_share(parts.config.vector_weight, strong=embedder.strong),
                search_timeout=parts.config.postgres.search_timeout if parts.config.postgres else SEARCH_SECONDS,
            )
        )

    def activate(self) -> None:
        super().activate()
        self.archive.activate()

    def deactivate(self) -> None:
        self.archive.deactivate()
        super().deactivate()

    async def close(self) -> None:
        await self.archive.close()
        await super().close()

    @property
    def busy(self) -> bool:
        return super().busy or self.archive.busy

    # search

    async def search(self, query: Query) -> Found:
        """The best of notes and turns; the database may take its `search_timeout`."""
        return await self._both(query, SEARCH_SECONDS, None)

    async def auto_memory_search(self, turn: MemoryTurn) -> Found:
        settings = self.parts.config
        seconds = settings.auto_memory_search.timeout * RECALL_SHARE
        heard = [message.text for message in turn.history]
        found = await self._both(recall_query(turn, settings), seconds, seconds, heard)
        return within_tokens(found, settings.auto_memory_search)

    async def _both(self, query: Query, seconds: float, limit: float | None, heard: Sequence[str] = ()) -> Found:
        """Notes and turns; `heard` is what the model has before it anyway."""
        if self.archive.link is Link.CLOSED:
            return await self.search_within(query, seconds)
        scope = current_scope()
        asking = self.archive.begin_search(query, scope.user_id if scope is not None else "", limit)
        try:
            local = await self.search_within(query, seconds)
            await asyncio.wait({asking})
            hits, partial = asking.result() if not asking.cancelled() else ([], AWAY)  # the archive has ended
        finally:
            asking.cancel("nobody waits")
        news = [hit for hit in hits if not any(hit.text in text for text in heard)]
        return merged(local, news, query, partial=partial)

    # what was said

    async def replied(self, turn: MemoryTurn) -> None:
        acting = self.parts.daemon.acting(self.parts.state_dir)
        if acting is not None and acting is not self:
            await acting.replied(turn)
        elif turn.source in REMEMBERED:
            self.replies.add(turn)

    async def _turn_stored(self, turn: MemoryTurn) -> None:
        await self.upkeep.guarded("queue", lambda: self.archive.add(self._record(turn)))
        if self.get_auto_memory_interval() > 0:
            await super()._turn_stored(turn)

    async def forget(self, session_id: str) -> None:
        await self.archive.forget(session_id)

    def _record(self, turn: MemoryTurn) -> TurnRecord:
        scope = turn.scope
        return TurnRecord(
            turn_id=scope.turn_id,
            session_id=scope.session_id,
            user_id=scope.user_id,
            agent_id=self.parts.agent_id,
            at=turn.at.astimezone(UTC),
            day=turn.at.astimezone(self.parts.zone()).date(),
            message=turn.message.text,
            reply=turn.reply,
        )

    # how it is

    def status(self) -> MemoryStatus:
        known = super().status()
        database = {"state": self.archive.link.value, **asdict(self.outbox.counts)}
        return replace(known, details={**known.details, "database": database})

    # making it

    def _make_store(self) -> PgStore:
        config, agent_id = self.parts.config.postgres, self.parts.agent_id
        if config is None or not (config.dsn or config.host or config.dbname):
            raise Unavailable(UNCONFIGURED, code="no_database")
        try:
            from qworkspace.memory.pg_store import PgStore  # psycopg: heavy, and an extra
        except ImportError as error:
            raise Unavailable(UNINSTALLED, code="missing_extra", reason=str(error)) from None
        namespace = f"agent:{agent_id}" if config.memory_isolation else SHARED
        return PgStore(config, namespace=namespace, agent_id=agent_id, threads=self.parts.threads)

    async def _outbox_ready(self) -> None:
        await self.ready()
        if self._outbox_open:
            return
        await self.outbox.open()
        if self.upkeep.active:
            since = await self.outbox.last_at(self.parts.clock.now()) - MARGIN
            async for record in missed(self.parts.sessions, since, self.parts.zone(), self.parts.agent_id):
                await self.outbox.put(record)
        self._outbox_open = True
