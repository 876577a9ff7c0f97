"""What the person has yet to read: results of work in the background, and problems, each told once."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database
from qworkspace.base.events import Event, EventBus
from qworkspace.base.ids import new_id
from qworkspace.base.problems import Problem, Problems
from qworkspace.base.tasks import Tasks
from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidInput, NotFound, QworkspaceError

logger = logging.getLogger(__name__)

Severity = Literal["info", "warning", "error"]

KEPT = 1_000
"""Items kept; the oldest go first."""
KEPT_DAYS = 90
TITLE_CHARS = 300
BODY_CHARS = 100_000
PROBLEM = "problem"
AGENT_TOPICS = ("config", "reload", "agent")

# steps of the component `inbox` of home.db
MIGRATIONS = (
    """
    CREATE TABLE inbox (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        agent_id TEXT,
        kind TEXT NOT NULL,
        severity TEXT NOT NULL,
        title TEXT NOT NULL,
        body TEXT NOT NULL,
        created_at TEXT NOT NULL,
        read INTEGER NOT NULL DEFAULT 0,
        trace_id TEXT,
        key TEXT,
        settled_at TEXT,
        hidden INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX inbox_open ON inbox (key) WHERE settled_at IS NULL;
    """,
)
_COLUMNS = "id, agent_id, kind, severity, title, body, created_at, read, trace_id, key, settled_at"
_SHOWN = "hidden = 0"
_OPEN = "key = ? AND settled_at IS NULL"


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One thing to read. With a `key` it stands for something that lasts until it is settled."""

    id: str
    agent_id: str | None
    kind: str
    severity: Severity
    title: str
    body: str
    created_at: datetime
    read: bool = False
    trace_id: str | None = None
    key: str | None = None
    settled_at: datetime | None = None


class InboxStore:
    """The items of all agents, in home.db."""

    def __init__(self, database: Database, *, clock: Clock, bus: EventBus) -> None:
        self._database = database
        self._clock = clock
        self._bus = bus

    async def add(
        self,
        kind: str,
        title: str,
        body: str = "",
        *,
        severity: Severity = "info",
        agent_id: str | None = None,
        key: str | None = None,
        trace_id: str | None = None,
    ) -> InboxItem | None:
        """Store the item and tell everyone. None, and nothing happens, while one with that `key` is open.

        An item stays open until its key is settled, even if it is read or deleted meanwhile.
        """
        now = self._clock.now()
        item = InboxItem(
            id=new_id("inbox", now),
            agent_id=agent_id,
            kind=clean_text(kind),
            severity=severity,
            title=clean_text(title)[:TITLE_CHARS],
            body=clean_text(body)[:BODY_CHARS],
            created_at=now,
            trace_id=trace_id,
            key=key,
        )
        oldest = now - timedelta(days=KEPT_DAYS)
        if not await self._database.write(lambda db: _add(db, item, oldest)):
            return None
        facts = {"item_id": item.id, "kind": item.kind, "severity": severity, "title": item.title}
        self._bus.publish("inbox.added", agent_id=agent_id, **facts)
        return item

    async def settle(self, key: str) -> None:
        """What the open item with that key stands for is over. Unknown keys are no error."""
        now = self._clock.now().isoformat()
        settled = await self._database.write(lambda db: _settle(db, key, now))
        for item in settled:
            self._bus.publish("inbox.settled", agent_id=item.agent_id, item_id=item.id)

    async def open_item(self, key: str) -> InboxItem | None:
        """The item with that key that is not settled, deleted or not; None when there is none."""
        found = await self._database.read(lambda db: _select(db, _OPEN, (key,)))
        return found[0] if found else None

    async def list(
        self, limit: int = 50, cursor: str | None = None, *, unread: bool = False, agent_id: str | None = None
    ) -> tuple[list[InboxItem], str | None]:
        """The items, the newest first, and where to go on."""
        where, bound = [_SHOWN], list[str]()
        if unread:
            where.append("read = 0")
        if agent_id is not None:
            where.append("agent_id = ?")
            bound.append(agent_id)
        if cursor is not None:
            where.append("number < ?")
            bound.append(_number(cursor))
        return await self._database.read(lambda db: _page(db, " AND ".join(where), tuple(bound), limit))

    async def unread(self) -> int:
        """How many items nobody has read."""
        return await self._database.read(lambda db: _count(db, f"{_SHOWN} AND read = 0"))

    async def read(self, item_id: str) -> InboxItem:
        """Mark one as read; `NotFound`. The item as it is now."""
        item = await self._database.write(lambda db: _read(db, item_id))
        self._bus.publish("inbox.read", agent_id=item.agent_id, item_id=item_id)
        return replace(item, read=True)

    async def read_all(self) -> int:
        """Mark all as read; how many were not."""
        count = await self._database.write(
            lambda db: db.execute(f"UPDATE inbox SET read = 1 WHERE {_SHOWN} AND read = 0").rowcount
        )
        if count:
            self._bus.publish("inbox.read", count=count)
        return count

    async def delete(self, item_id: str) -> None:
        """Remove one; `NotFound`."""
        if not await self._database.write(lambda db: _remove(db, "id = ?", (item_id,))):
            raise NotFound("inbox_item", item_id)
        self._bus.publish("inbox.removed", item_id=item_id)

    async def clear(self) -> int:
        """Remove all; how many they were."""
        count = await self._database.write(lambda db: _remove(db, "1"))
        if count:
            self._bus.publish("inbox.removed", count=count)
        return count


class ProblemsToInbox:
    """Files what is wrong with the configuration, and what keeps agents from starting: each text once.

    The same text is not told again while it stays wrong, whatever restarts or is deleted meanwhile.
    """

    def __init__(self, inbox: InboxStore, problems: Problems, bus: EventBus) -> None:
        self._inbox = inbox
        self._problems = problems
        self._bus = bus
        self._tasks = Tasks("problems to inbox")
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._unlisten: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin with what is open now. After the first look at config.json and secrets.json."""
        for key in dict.fromkeys(["config", "secrets", *(problem.key for problem in self._problems.of())]):
            self._look_at(key)
        self._unlisten = self._bus.log.listen(self._heard)
        self._tasks.start(self._work(), name="file")

    async def idle(self) -> None:
        """Return once everything that has happened is filed."""
        await self._waiting.join()

    async def stop(self) -> None:
        """Listen no more. Idempotent."""
        self._unlisten()
        await self._tasks.close("the daemon stops")

    def _heard(self, event: Event) -> None:
        if event.type in ("problem.opened", "problem.cleared"):
            self._look_at(str(event.data.get("key")))
        elif event.type == "workspace.started":  # what was mended while no daemon ran is settled here
            for topic in AGENT_TOPICS:
                self._look_at(f"{topic}:{event.data.get('agent_id')}")

    def _look_at(self, key: str) -> None:
        if _title(key) is not None:
            self._waiting.put_nowait(key)

    async def _work(self) -> None:
        while True:
            key = await self._waiting.get()
            try:
                await self._follow(key)
            except QworkspaceError as error:
                logger.warning("a problem could not be put into the inbox: %s", error.message)
            finally:
                self._waiting.task_done()

    async def _follow(self, key: str) -> None:
        """Make the inbox say of that problem what is true now."""
        topic = f"{PROBLEM}:{key}"
        problem = next((problem for problem in self._problems.of() if problem.key == key), None)
        told = await self._inbox.open_item(topic)
        if told is not None and (problem is None or told.body != _body(problem)):
            await self._inbox.settle(topic)
        if problem is not None:
            title = _title(key) or problem.key
            severity, agent_id = problem.severity, problem.agent_id
            await self._inbox.add(PROBLEM, title, _body(problem), severity=severity, agent_id=agent_id, key=topic)


def _title(key: str) -> str | None:
    """What an item about that problem is called; None for problems that are not the inbox's business."""
    topic, _, agent_id = key.partition(":")
    if agent_id:
        titles = {
            "config": f"agent.json of {agent_id!r} cannot be used",
            "reload": f"an edit of agent {agent_id!r} could not be applied",
            "agent": f"agent {agent_id!r} cannot start",
        }
    else:
        titles = {"config": "config.json cannot be used", "secrets": "secrets.json cannot be used"}
    return titles.get(topic)


def _body(problem: Problem) -> str:
    return clean_text(problem.message)[:BODY_CHARS]


def _number(cursor: str) -> str:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInput(f"cursor: {cursor[:80]!r} is not one that this list gave out", field="cursor")
    return cursor


def _add(db: sqlite3.Connection, item: InboxItem, oldest: datetime) -> bool:
    if item.key is not None and _count(db, _OPEN, (item.key,)):
        return False
    db.execute(
        "INSERT INTO inbox (id, agent_id, kind, severity, title, body, created_at, trace_id, key)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            item.id,
            item.agent_id,
            item.kind,
            item.severity,
            item.title,
            item.body,
            item.created_at.isoformat(),
            item.trace_id,
            item.key,
        ),
    )
    db.execute("DELETE FROM inbox WHERE created_at < ?", (oldest.isoformat(),))
    db.execute(
        "DELETE FROM inbox WHERE number <= (SELECT number FROM inbox ORDER BY number DESC LIMIT 1 OFFSET ?)", (KEPT,)
    )
    return True


def _settle(db: sqlite3.Connection, key: str, now: str) -> list[InboxItem]:
    settled = _select(db, f"{_OPEN} AND {_SHOWN}", (key,))
    db.execute(f"DELETE FROM inbox WHERE {_OPEN} AND hidden = 1", (key,))
    db.execute(f"UPDATE inbox SET settled_at = ? WHERE {_OPEN}", (now, key))
    return settled


def _read(db: sqlite3.Connection, item_id: str) -> InboxItem:
    found = _select(db, f"id = ? AND {_SHOWN}", (item_id,))
    if not found:
        raise NotFound("inbox_item", item_id)
    db.execute("UPDATE inbox SET read = 1 WHERE id = ?", (item_id,))
    return found[0]


def _remove(db: sqlite3.Connection, where: str, bound: tuple[Any, ...] = ()) -> int:
    """Those that are open are kept out of sight: what was told is not told again because it was deleted."""
    is_open = "key IS NOT NULL AND settled_at IS NULL"
    hidden = db.execute(f"UPDATE inbox SET hidden = 1 WHERE {where} AND {_SHOWN} AND {is_open}", bound).rowcount
    return hidden + db.execute(f"DELETE FROM inbox WHERE {where} AND {_SHOWN}", bound).rowcount


def _page(db: sqlite3.Connection, where: str, bound: tuple[Any, ...], limit: int) -> tuple[list[InboxItem], str | None]:
    query = f"SELECT number, {_COLUMNS} FROM inbox WHERE {where} ORDER BY number DESC LIMIT ?"
    rows = db.execute(query, (*bound, limit + 1)).fetchall()
    more = str(rows[limit - 1][0]) if len(rows) > limit else None
    return [_item(row[1:]) for row in rows[:limit]], more


def _count(db: sqlite3.Connection, where: str, bound: tuple[Any, ...] = ()) -> int:
    return int(db.execute(f"SELECT count(*) FROM inbox WHERE {where}", bound).fetchone()[0])


def _select(db: sqlite3.Connection, where: str, bound: tuple[Any, ...]) -> list[InboxItem]:
    return [_item(row) for row in db.execute(f"SELECT {_COLUMNS} FROM inbox WHERE {where}", bound)]


def _item(row: tuple[Any, ...]) -> InboxItem:
    id, agent_id, kind, severity, title, body, created_at, read, trace_id, key, settled_at = row
    return InboxItem(
        id=id,
        agent_id=agent_id,
        kind=kind,
        severity=severity,
        title=title,
        body=body,
        created_at=datetime.fromisoformat(created_at),
        read=bool(read),
        trace_id=trace_id,
        key=key,
        settled_at=datetime.fromisoformat(settled_at) if settled_at is not None else None,
    )
