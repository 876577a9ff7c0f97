"""The sessions of one workspace: every change is durable before it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Concatenate, ParamSpec, TypeVar

from qworkspace.base.clock import Clock
from qworkspace.base.ids import SessionId
from qworkspace.base.mending import MendingDatabase
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.sessions import journal, shelf
from qworkspace.sessions.models import (
    CallState,
    Message,
    Session,
    StoredMessage,
    ToolResultPart,
    Turn,
    TurnRequest,
    TurnState,
    Usage,
)
from qworkspace.sessions.schema import ADOPT, MIGRATIONS
from qworkspace.sessions.shelf import History

T = TypeVar("T")
P = ParamSpec("P")
LARGEST_PAGE = 1000


class SessionStore:
    """Transcripts and the turn journal in `sessions.db`; a service of the workspace."""

    def __init__(self, state_dir: Path, *, clock: Clock, threads: Threads, problems: Problems, agent_id: str) -> None:
        self._clock = clock
        self._database = MendingDatabase(
            state_dir / "sessions.db",
            migrations={"sessions": MIGRATIONS},
            adopt=ADOPT,
            threads=threads,
            clock=clock,
            problems=problems,
            agent_id=agent_id,
        )

    async def start(self) -> None:
        """Open the file, mended if need be, and mark what an earlier process left open."""
        await self._database.open()
        try:
            await self.recover()
        except BaseException:
            await self._database.close()
            raise

    def activate(self) -> None:
        """Nothing here acts by itself."""

    def deactivate(self) -> None:
        """Nothing here acts by itself."""

    async def stop(self) -> None:
        """Store what is queued and close the file. Idempotent."""
        await self._database.close()

    # the journal of turns

    async def accept(self, request: TurnRequest) -> tuple[Turn, bool]:
        """Store the message and its queued turn; for a known idempotency key the known turn and False."""
        return await self._write(journal.accept, request, self._clock.now())

    async def known(self, request: TurnRequest) -> Turn | None:
        """The turn that the request's idempotency key stands for already."""
        return await self._read(journal.turn_by_key, request) if request.idempotency_key is not None else None

    async def begin(self, turn_id: str) -> None:
        """The turn runs; `Conflict` unless it was queued."""
        await self._write(journal.begin, turn_id, self._clock.now())

    async def save_response(self, turn_id: str, message: Message, usage: Usage) -> None:
        """Store a step's answer with its calls as pending. `usage` is what the turn used since it (re)began."""
        await self._write(journal.save_response, turn_id, message, usage, self._clock.now())

    async def call_started(self, turn_id: str, call_id: str) -> None:
        """The call is about to take effect: after a crash it is not to be run again."""
        await self._write(journal.call_started, turn_id, call_id)

    async def save_result(self, turn_id: str, result: ToolResultPart) -> None:
        """Store a call's result; a second one is ignored."""
        await self._write(journal.save_result, turn_id, result, self._clock.now())

    async def save_draft(self, turn_id: str, text: str) -> None:
        """Store what the running step has said so far; after a crash it is kept as a partial answer."""
        await self._write(journal.save_draft, turn_id, text)

    async def save_context(self, turn_id: str, notes: list[dict[str, Any]]) -> None:
        """Store what was put into the turn's context and where it came from."""
        await self._write(journal.save_context, turn_id, notes)

    async def finish(
        self,
        turn_id: str,
        state: TurnState,
        *,
        text: str = "",
        usage: Usage | None = None,
        error: dict[str, Any] | None = None,
        partial: Message | None = None,
        reply: Message | None = None,
        in_context: bool = True,
    ) -> Turn:
        """End the turn, with its final message or with what it had said so far. The first ending stands.

        `usage` is what the turn used since it (re)began; None keeps what its steps have stored. With
        `in_context=False` later turns do not see this one.
        """
        ending = journal.TurnEnding(state, text, usage, error, partial, reply, in_context)
        return await self._write(journal.finish, turn_id, ending, self._clock.now())

    async def reopen(self, turn_id: str) -> Turn:
        """The interrupted turn waits to be carried on from its last complete step; `Conflict` for any other."""
        return await self._write(journal.reopen, turn_id)

    async def recover(self) -> list[Turn]:
        """Mark the turns that an earlier process left open as interrupted; those turns."""
        return await self._write(journal.recover, self._clock.now())

    async def get_turn(self, turn_id: str) -> Turn:
        return await self._read(journal.get_turn, turn_id)

    async def turns(self, session_id: str, limit: int = 50, cursor: str | None = None) -> tuple[list[Turn], str | None]:
        """The session's turns, the newest first, and where to go on."""
        return await self._read(shelf.turns, session_id, _page(limit), cursor)

    async def find_interrupted(self, session_id: str) -> Turn | None:
        """The newest turn of the session that can be resumed."""
        return await self._read(shelf.find_interrupted, session_id)

    async def turn_messages(self, turn_id: str) -> list[StoredMessage]:
        """The turn's messages as they are stored, the user's first."""
        return await self._read(shelf.turn_messages, turn_id)

    async def pending_calls(self, turn_id: str) -> dict[str, CallState]:
        """How far each call of the turn came: a pending one may be run, a started one is `interrupted`."""
        return await self._read(shelf.call_states, turn_id)

    # what was said

    async def history(self, session_id: str, *, before_turn: str | None = None) -> History:
        """What a model is told of the session before that turn (None: of all ended turns), repaired."""
        return await self._read(shelf.history, session_id, before_turn)

    async def messages(
        self, session_id: str, *, limit: int = 200, cursor: str | None = None
    ) -> tuple[list[StoredMessage], str | None]:
        """The session's messages, the oldest first, and where to go on."""
        return await self._read(shelf.messages, session_id, _page(limit), cursor)

    async def start_afresh(self, session_id: str) -> None:
        """Later turns no longer see what was said before; the messages stay stored."""
        await self._write(shelf.start_afresh, session_id)

    async def set_summary(self, session_id: str, summary: str, upto_message_id: str) -> None:
        """Later turns see `summary` instead of the messages up to that one."""
        await self._write(shelf.set_summary, session_id, summary, upto_message_id)

    async def find_by_prefix(self, user_id: str, texts: Sequence[tuple[str, str]]) -> SessionId | None:
        """The user's session in which exactly these (role, text) were said so far; of several the newest."""
        return await self._read(shelf.find_by_prefix, user_id, texts)

    # the sessions themselves

    async def sessions(
        self, *, limit: int = 50, cursor: str | None = None, query: str | None = None, user_id: str | None = None
    ) -> tuple[list[Session], str | None]:
        """The sessions, the newest first, and where to go on; `query` looks into titles and messages."""
        return await self._read(shelf.sessions, _page(limit), cursor, query, user_id)

    async def get_session(self, session_id: str) -> Session:
        return await self._read(shelf.get_session, session_id)

    async def rename(self, session_id: str, title: str) -> None:
        """Give the session a title that stays."""
        await self._write(shelf.rename, session_id, title)

    async def suggest_title(self, session_id: str, title: str) -> None:
        """Give the session a title unless a person has given it one."""
        await self._write(shelf.suggest_title, session_id, title)

    async def pin(self, session_id: str, pinned: bool = True) -> None:
        """A pinned session is not removed by age."""
        await self._write(shelf.pin, session_id, pinned)

    async def delete(self, session_id: str) -> None:
        """Remove the session with everything in it; `Conflict` while a turn of it waits or runs."""
        await self._write(shelf.delete, session_id)

    async def delete_older(self, days: int) -> int:
        """Remove the sessions that nobody used for `days` days, pinned ones excepted; how many they were."""
        return await self._write(shelf.delete_older, days, self._clock.now())

    async def setting(self, session_id: str, key: str) -> str | None:
        """What the session has chosen, for example its model."""
        return await self._read(shelf.setting, session_id, key)

    async def set_setting(self, session_id: str, key: str, value: str | None) -> None:
        """Choose for this session; None takes the choice back."""
        await self._write(shelf.set_setting, session_id, key, value)

    async def _write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.write(lambda db: work(db, *args, **kwargs))

    async def _read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(lambda db: work(db, *args, **kwargs))


def _page(limit: int) -> int:
    return max(1, min(limit, LARGEST_PAGE))
