"""A session store over real SQLite and a simulated clock, and the words to fill it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.ids import AgentId, SessionId
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.sessions.models import (
    Message,
    Source,
    StoredMessage,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Turn,
    TurnRequest,
    TurnState,
    user_message,
)
from qworkspace.sessions.store import SessionStore


def request(
    text: str = "hello", session: str = "s1", *, user: str = "ann", key: str | None = None, source: Source = "chat"
) -> TurnRequest:
    """A message, of a person unless `source` says otherwise."""
    message, more = user_message(text), {"n": 1}
    return TurnRequest(
        AgentId("a"), SessionId(session), message, user_id=user, source=source, idempotency_key=key, metadata=more
    )


def says(text: str = "", *calls: str) -> Message:
    """What the model answers: text, and calls of the tool `look`."""
    said = [TextPart(text=text)] if text else []
    return Message(role="assistant", parts=(*said, *(ToolCallPart(id=call, name="look") for call in calls)))


def result(call: str, text: str = "seen") -> ToolResultPart:
    return ToolResultPart(id=call, name="look", text=text)


def lines(messages: list[StoredMessage]) -> list[str]:
    """`user: hello`, `assistant: hi`, `tool: `"""
    return [f"{item.message.role}: {item.message.text}" for item in messages]


class Bench:
    """Stores in one directory; `async with` closes what is left open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = SimulatedClock()
        self.threads = Threads(3)
        self.problems = Problems(self.clock, EventBus(self.clock))
        self.store = self._make(directory)

    async def __aenter__(self) -> Bench:
        await self.store.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.store.stop()
        await asyncio.to_thread(self.threads.close)

    async def crash(self) -> None:
        """Go on with what `kill -9` would leave: the files as they are at this moment."""
        old = self.store
        self.directory = self.directory.with_name(self.directory.name + "+")
        shutil.copytree(self.directory.with_name(self.directory.name[:-1]), self.directory)
        self.store = self._make(self.directory)
        await old.stop()
        await self.store.start()

    async def ask(self, text: str = "hello", session: str = "s1", **more: Any) -> Turn:
        """A turn that runs."""
        self.clock.jump(1)
        turn, _ = await self.store.accept(request(text, session, **more))
        await self.store.begin(turn.id)
        return turn

    async def talk(self, text: str = "hello", answer: str = "hi", session: str = "s1", **more: Any) -> Turn:
        """A whole turn without tools."""
        turn = await self.ask(text, session, **more)
        self.clock.jump(1)
        return await self.store.finish(turn.id, TurnState.COMPLETED, text=answer, reply=says(answer))

    def _make(self, directory: Path) -> SessionStore:
        return SessionStore(directory, clock=self.clock, threads=self.threads, problems=self.problems, agent_id="a")
