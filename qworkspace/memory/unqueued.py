"""What was said and is not queued yet: counted turns, sessions that become idle, and what an earlier process left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database
from qworkspace.memory import queue_rows as rows
from qworkspace.memory.extract import Extractor
from qworkspace.memory.queue_pauses import IDLE_SECONDS
from qworkspace.memory.queue_rows import Mark
from qworkspace.sessions.models import Session
from qworkspace.sessions.store import SessionStore

FIRST_LOOK = timedelta(days=30)
"""How far the very first look goes back: a new memory does not read years of conversations by itself."""

MARGIN = timedelta(days=1)
"""Against clocks that were set back."""

PAGE = 200


class Unqueued:
    """Knows of a session only until it is queued, which is `IDLE_SECONDS` after its last turn at the latest."""

    def __init__(self, database: Database, extractor: Extractor, sessions: SessionStore, *, clock: Clock) -> None:
        self.caught_up = False
        self._database = database
        self._extractor = extractor
        self._sessions = sessions
        self._clock = clock
        self._turns: dict[str, int] = {}
        self._idle_at: dict[str, float] = {}

    def count(self, session_id: str) -> int:
        """One more turn; how many there are that nobody has queued."""
        self._turns[session_id] = self._turns.get(session_id, 0) + 1
        self._idle_at[session_id] = self._clock.monotonic() + IDLE_SECONDS
        return self._turns[session_id]

    def forget(self, session_id: str) -> None:
        """It is queued."""
        self._turns.pop(session_id, None)
        self._idle_at.pop(session_id, None)

    def next_idle(self) -> float | None:
        """When the next session will have been idle for long enough."""
        return min(self._idle_at.values(), default=None)

    async def queue_idle(self) -> None:
        """Queue the sessions in which nothing was said for `IDLE_SECONDS`."""
        monotonic, now = self._clock.monotonic(), self._clock.now()
        for session_id in [name for name, moment in self._idle_at.items() if moment <= monotonic]:
            turns = self._turns.get(session_id)
            await self._database.write(lambda db, name=session_id: rows.add(db, name, "idle", "", now))  # type: ignore[misc]
            if self._turns.get(session_id) == turns:
                self.forget(session_id)

    async def catch_up(self, interval: int) -> None:
        """Queue the sessions that have `interval` new turns or are idle with fewer; know of the others. 0 is never."""
        if interval <= 0:
            self.caught_up = True
            return
        now = self._clock.now()
        seen = await self._database.read(rows.seen)
        marks = await self._database.read(rows.marks)
        oldest = now
        async for session in self._recent(seen - MARGIN if seen is not None else now - FIRST_LOOK):
            mark = marks.get(session.id)
            new = mark is None or session.updated_at > mark.moment
            if new and await self._catch_up(session, mark, interval, now):
                oldest = min(oldest, session.updated_at)
        await self._database.write(lambda db: rows.set_seen(db, oldest))
        self.caught_up = True

    async def _catch_up(self, session: Session, mark: Mark | None, interval: int, now: datetime) -> bool:
        """Whether the session is left for later."""
        fresh = await self._extractor.fresh(session.id, mark)
        last = fresh.last
        if fresh.turns == 0:
            if last is not None:
                await self._database.write(lambda db: rows.set_mark(db, session.id, last))
            return False
        quiet = (now - session.updated_at).total_seconds()
        if fresh.turns >= interval or quiet >= IDLE_SECONDS:
            await self._database.write(lambda db: rows.add(db, session.id, "start", "", now))
            return False
        self._turns[session.id] = max(fresh.turns, self._turns.get(session.id, 0))
        self._idle_at.setdefault(session.id, self._clock.monotonic() + IDLE_SECONDS - max(0.0, quiet))
        return True

    async def _recent(self, since: datetime) -> AsyncIterator[Session]:
        """The sessions that were used since, the newest first."""
        cursor: str | None = None
        while True:
            page, cursor = await self._sessions.sessions(limit=PAGE, cursor=cursor)
            for session in page:
                if session.updated_at < since:
                    return
                yield session
            if cursor is None:
                return
