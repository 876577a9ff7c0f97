"""Questions to a person that outlive a restart: may this tool call run? No answer within the time is a no."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from qworkspace.base.clock import Clock
from qworkspace.base.database import Database
from qworkspace.base.events import EventBus
from qworkspace.base.ids import new_id
from qworkspace.base.tasks import Tasks
from qworkspace.base.text import clean_text, clean_value
from qworkspace.base.waiting import happens_within
from qworkspace.errors import Conflict, NotFound, StorageError

# steps of the component `approvals` of home.db
MIGRATIONS = (
    """
    CREATE TABLE approvals (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        agent_id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        turn_id TEXT NOT NULL,
        call_id TEXT NOT NULL,
        tool TEXT NOT NULL,
        args TEXT NOT NULL,
        reason TEXT NOT NULL,
        state TEXT NOT NULL,
        created_at TEXT NOT NULL,
        expires_at TEXT NOT NULL,
        answered_at TEXT,
        answered_by TEXT NOT NULL DEFAULT '',
        remember INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX approvals_of_call ON approvals (turn_id, call_id);
    CREATE INDEX approvals_pending ON approvals (state) WHERE state = 'pending';
    """,
    """
    ALTER TABLE approvals ADD COLUMN source TEXT NOT NULL DEFAULT '';
    ALTER TABLE approvals ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
    """,
)
LOOK_AGAIN = 30.0  # seconds; time limits are wall time, which may be changed while we sleep
SERVED_HELD = 10_000  # more than any running turns may ask
StateName = Literal["pending", "allowed", "denied", "expired", "withdrawn"]
_COLUMNS = (
    "id, agent_id, session_id, turn_id, call_id, tool, args, reason, state, created_at, expires_at,"
    " source, user_id, answered_at, answered_by, remember"
)


class ApprovalState(StrEnum):
    """`ApprovalStore` is the one writer."""

    PENDING = "pending"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Approval:
    """One question. `source` and `user_id` are those of the message that led to it.

    `remember` asks to treat later calls like this one the same way.
    """

    id: str
    agent_id: str
    session_id: str
    turn_id: str
    call_id: str
    tool: str
    args: dict[str, Any]
    reason: str
    state: ApprovalState
    created_at: datetime
    expires_at: datetime
    source: str = ""
    user_id: str = ""
    answered_at: datetime | None = None
    answered_by: str = ""
    remember: bool = False

    @property
    def allowed(self) -> bool:
        return self.state is ApprovalState.ALLOWED

    @property
    def decision(self) -> Literal["allow", "deny"]:
        """What the asking turn has to do once the question is closed."""
        return "allow" if self.allowed else "deny"

    @property
    def why(self) -> str:
        """The decision in words."""
        return {
            ApprovalState.PENDING: "nobody has answered yet",
            ApprovalState.ALLOWED: "a person allowed it",
            ApprovalState.DENIED: "a person said no",
            ApprovalState.EXPIRED: "nobody answered in time",
            ApprovalState.WITHDRAWN: "the turn that asked has ended",
        }[self.state]


class ApprovalStore:
    """The questions of all agents, in home.db. `on_late_answer` hears of answers that no running turn waits for."""

    def __init__(self, database: Database, *, clock: Clock, bus: EventBus) -> None:
        self._database = database
        self._clock = clock
        self._bus = bus
        self._tasks = Tasks("approvals")
        self._waiters: dict[str, asyncio.Future[Approval]] = {}
        self._deadlines: dict[str, datetime] = {}
        self._new_deadline = asyncio.Event()
        self._expiry: asyncio.Task[None] | None = None
        self._served: dict[str, None] = {}
        self.on_late_answer: Callable[[Approval], Awaitable[None]] | None = None

    async def start(self) -> None:
        """Take up the open questions; those whose time ran out meanwhile are closed."""
        for approval in await self.list(ApprovalState.PENDING):
            self._deadlines[approval.id] = approval.expires_at
        await self._expire_due()
        self._watch()

    async def stop(self) -> None:
        """End the watch over time limits; open questions stay open. Idempotent."""
        await self._tasks.close()

    async def create(
        self,
        agent_id: str,
        session_id: str,
        turn_id: str,
        call_id: str,
        tool: str,
        args: dict[str, Any],
        reason: str,
        expires_at: datetime,
        *,
        source: str = "",
        user_id: str = "",
    ) -> Approval:
        """Store the question and tell everyone. The asking turn counts as waiting from now on."""
        now = self._clock.now()
        approval = Approval(
            id=new_id("approval", now),
            agent_id=agent_id,
            session_id=session_id,
            turn_id=turn_id,
            call_id=clean_text(call_id),
            tool=clean_text(tool),
            args=clean_value(args),
            reason=clean_text(reason),
            state=ApprovalState.PENDING,
            created_at=now,
            expires_at=expires_at,
            source=source,
            user_id=clean_text(user_id),
        )
        await self._database.write(lambda db: _insert(db, approval))
        self._waiter(approval.id)
        self._deadlines[approval.id] = expires_at
        self._new_deadline.set()
        self._watch()
        facts = {"tool": approval.tool, "source": source, "expires_at": expires_at.isoformat()}
        self._publish("approval.created", approval, **facts)
        return approval

    async def of_call(self, turn_id: str, call_id: str) -> Approval | None:
        """The newest question about that call, open or answered, unless its answer was used by this process.

        After a restart it saves asking again; a call that merely has the same id later is asked about anew.
        """
        key = (turn_id, clean_text(call_id))
        where = "turn_id = ? AND call_id = ? ORDER BY number DESC LIMIT 1"
        found = await self._database.read(lambda db: _select(db, where, key))
        return found[0] if found and found[0].id not in self._served else None

    async def wait(self, approval_id: str) -> Approval:
        """The question once it is closed: answered, expired or withdrawn."""
        waiter = self._waiter(approval_id)  # before reading, so that no answer falls in between
        try:
            approval = await self.get(approval_id)
            if approval.state is ApprovalState.PENDING:
                approval = await asyncio.shield(waiter)
        finally:
            self._waiters.pop(approval_id, None)
        self._served[approval_id] = None
        if len(self._served) > SERVED_HELD:
            del self._served[next(iter(self._served))]
        return approval

    async def answer(
        self, approval_id: str, decision: Literal["allow", "deny"], by: str = "", remember: bool = False
    ) -> Approval:
        """Close the question; `Conflict` when it is closed already or its time has run out."""
        await self._expire_due()
        state = ApprovalState.ALLOWED if decision == "allow" else ApprovalState.DENIED
        approval = await self._close(approval_id, state, by=by, remember=remember)
        if approval is None:
            known = await self.get(approval_id)
            raise Conflict(f"this question is closed: {known.why}", code="approval_closed", state=known.state)
        self._publish("approval.answered", approval, decision=approval.decision, by=approval.answered_by)
        if not self._serve(approval) and self.on_late_answer is not None:
            self._tasks.start(_call(self.on_late_answer, approval), name=f"late answer {approval.id}")
        return approval

    async def withdraw(self, turn_id: str) -> None:
        """Close the open questions of a turn that has ended for good."""
        where = "turn_id = ? AND state = 'pending'"
        for approval in await self._database.read(lambda db: _select(db, where, (turn_id,))):
            closed = await self._close(approval.id, ApprovalState.WITHDRAWN)
            if closed is not None:
                self._serve(closed)
                self._publish("approval.withdrawn", closed)

    async def get(self, approval_id: str) -> Approval:
        found = await self._database.read(lambda db: _select(db, "id = ?", (approval_id,)))
        if not found:
            raise NotFound("approval", approval_id)
        return found[0]

    async def list(
        self, state: ApprovalState | StateName | None = None, *, agent_id: str | None = None, limit: int = 10_000
    ) -> list[Approval]:
        """The questions, the newest first."""
        where, bound = ["1"], list[str]()
        if state is not None:
            where.append("state = ?")
            bound.append(ApprovalState(state))
        if agent_id is not None:
            where.append("agent_id = ?")
            bound.append(agent_id)
        order = f"{' AND '.join(where)} ORDER BY number DESC LIMIT {int(limit)}"
        return await self._database.read(lambda db: _select(db, order, tuple(bound)))

    async def forget(self, *, agent_id: str | None = None, older_than: timedelta | None = None) -> int:
        """Remove the closed questions of that age, or all of that agent; how many they were."""
        if agent_id is not None:
            removed = await self._database.write(lambda db: _delete(db, "agent_id = ?", agent_id))
        else:
            limit = (self._clock.now() - (older_than or timedelta(0))).isoformat()
            where = "state != 'pending' AND created_at < ?"
            removed = await self._database.write(lambda db: _delete(db, where, limit))
        return removed

    async def _close(
        self, approval_id: str, state: ApprovalState, *, by: str = "", remember: bool = False
    ) -> Approval | None:
        """The question as closed now; None when it is closed already."""
        moment = self._clock.now()
        facts = (state, moment.isoformat(), clean_text(by), int(remember), approval_id)
        approval = await self._database.write(lambda db: _update(db, facts))
        self._deadlines.pop(approval_id, None)
        return approval

    async def _expire_due(self) -> None:
        now = self._clock.now()
        for approval_id in [key for key, until in self._deadlines.items() if until <= now]:
            approval = await self._close(approval_id, ApprovalState.EXPIRED)
            if approval is not None:
                self._publish("approval.expired", approval)
                self._serve(approval)

    def _watch(self) -> None:
        """See to the time limits as long as there are any; nothing runs otherwise."""
        if self._deadlines and (self._expiry is None or self._expiry.done()):
            self._expiry = self._tasks.start(self._expire_in_time(), name="time limits")

    async def _expire_in_time(self) -> None:
        while self._deadlines:
            left = (min(self._deadlines.values()) - self._clock.now()).total_seconds()
            self._new_deadline.clear()
            await happens_within(self._new_deadline, min(max(left, 0.0), LOOK_AGAIN), self._clock)
            try:
                await self._expire_due()
            except StorageError:
                await self._clock.sleep(LOOK_AGAIN)  # reported where it happened; the disk may take it later

    def _waiter(self, approval_id: str) -> asyncio.Future[Approval]:
        if approval_id not in self._waiters:
            self._waiters[approval_id] = asyncio.get_running_loop().create_future()
        return self._waiters[approval_id]

    def _serve(self, approval: Approval) -> bool:
        """Hand the closed question to the turn that waits; False when none does."""
        waiter = self._waiters.get(approval.id)
        if waiter is not None and not waiter.done():
            waiter.set_result(approval)
        return waiter is not None

    def _publish(self, type: str, approval: Approval, **facts: Any) -> None:
        ids = {"session_id": approval.session_id, "turn_id": approval.turn_id, "call_id": approval.call_id}
        self._bus.publish(type, agent_id=approval.agent_id, approval_id=approval.id, **ids, **facts)


async def _call(listener: Callable[[Approval], Awaitable[None]], approval: Approval) -> None:
    await listener(approval)


def _insert(db: sqlite3.Connection, approval: Approval) -> None:
    db.execute(
        f"INSERT INTO approvals ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '', 0)",
        (
            approval.id,
            approval.agent_id,
            approval.session_id,
            approval.turn_id,
            approval.call_id,
            approval.tool,
            json.dumps(approval.args, ensure_ascii=False),
            approval.reason,
            approval.state,
            approval.created_at.isoformat(),
            approval.expires_at.isoformat(),
            approval.source,
            approval.user_id,
        ),
    )


def _update(db: sqlite3.Connection, facts: tuple[Any, ...]) -> Approval | None:
    changed = db.execute(
        "UPDATE approvals SET state = ?, answered_at = ?, answered_by = ?, remember = ?"
        " WHERE id = ? AND state = 'pending'",
        facts,
    ).rowcount
    return _select(db, "id = ?", (facts[-1],))[0] if changed else None


def _select(db: sqlite3.Connection, where: str, bound: tuple[Any, ...]) -> list[Approval]:
    return [_approval(row) for row in db.execute(f"SELECT {_COLUMNS} FROM approvals WHERE {where}", bound)]


def _delete(db: sqlite3.Connection, where: str, value: str) -> int:
    return db.execute(f"DELETE FROM approvals WHERE {where}", (value,)).rowcount


def _approval(row: tuple[Any, ...]) -> Approval:
    id, agent_id, session_id, turn_id, call_id, tool, args, reason, state, created, expires, *more = row
    source, user_id, answered, by, remember = more
    return Approval(
        id=id,
        agent_id=agent_id,
        session_id=session_id,
        turn_id=turn_id,
        call_id=call_id,
        tool=tool,
        args=json.loads(args),
        reason=reason,
        state=ApprovalState(state),
        created_at=datetime.fromisoformat(created),
        expires_at=datetime.fromisoformat(expires),
        source=source,
        user_id=user_id,
        answered_at=datetime.fromisoformat(answered) if answered is not None else None,
        answered_by=by,
        remember=bool(remember),
    )
