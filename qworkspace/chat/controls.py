"""What slash commands and hooks may do to the conversation they run in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from qworkspace.base.scope import current_scope
from qworkspace.chat.compactor import Compactor
from qworkspace.chat.live import LiveTurn
from qworkspace.chat.models import ModelSource
from qworkspace.chat.modes import modes_of
from qworkspace.chat.runner import TurnRunner
from qworkspace.config.models import AgentConfig, ModelRef
from qworkspace.errors import InvalidInput, NotFound
from qworkspace.memory.contract import SummarizeReason
from qworkspace.plugins.extensions import Extensions
from qworkspace.sessions.store import SessionStore

Leaving = Callable[[str, SummarizeReason], Awaitable[None]]
"""Told before what was said in a session leaves the context, and why. Raises nothing."""


async def nobody(session_id: str, reason: SummarizeReason) -> None:
    """Nobody wants to know."""


class Controls:
    """`TurnControls` over one agent's runner, sessions and models."""

    def __init__(
        self,
        runner: TurnRunner,
        sessions: SessionStore,
        models: ModelSource,
        compactor: Compactor,
        config: Callable[[], AgentConfig],
        extensions: Extensions,
        *,
        leaving: Leaving = nobody,
    ) -> None:
        self._runner = runner
        self._sessions = sessions
        self._models = models
        self._compactor = compactor
        self._config = config
        self._extensions = extensions
        self._leaving = leaving

    async def stop(self, session_id: str) -> bool:
        asking = self._asking()
        ended = await self._runner.cancel(session_id, by=asking)
        return ended or (asking is not None and asking.stopped_another)

    async def start_afresh(self, session_id: str) -> None:
        await self._leaving(session_id, "new")
        await self._sessions.start_afresh(session_id)

    async def compact(self, session_id: str) -> str:
        asking = self._asking()
        before = asking.id if asking is not None else None
        history = await self._compactor.history(session_id, before_turn=before)
        model = await self._models.get((await self._chain(session_id))[0])
        await self._leaving(session_id, "compact")
        shorter = await self._compactor.compact(session_id, history, model, before_turn=before)
        if shorter is None:
            return "There is nothing to shorten yet."
        return f"Summarised: {len(history)} messages became {len(shorter)}."

    async def resume(self, session_id: str, turn_id: str | None = None) -> str:
        if turn_id is None:
            turn = await self._sessions.find_interrupted(session_id)
            if turn is None:
                raise NotFound("interrupted turn", session_id, "nothing waits to be resumed in this session")
            turn_id = turn.id
        elif (await self._sessions.get_turn(turn_id)).session_id != session_id:
            raise NotFound("turn", turn_id, "this session has no such turn")
        return (await self._runner.resume(turn_id)).id

    async def choose_model(self, session_id: str, name: str | None) -> str:
        if name is not None and name not in self._models.names():
            known = ", ".join(self._models.names()) or "none is configured"
            raise InvalidInput(f"no model {name!r}; known: {known}")
        await self._sessions.set_setting(session_id, "model", name)
        return str((await self._chain(session_id))[0])

    async def choose_mode(self, session_id: str, name: str | None) -> str | None:
        known = modes_of(self._config(), self._extensions)
        if name is not None and name not in known:
            raise InvalidInput(f"no mode {name!r}; known: {', '.join(known) or 'none is configured'}")
        await self._sessions.set_setting(session_id, "mode", name)
        return name

    def model_names(self) -> list[str]:
        return self._models.names()

    async def status(self, session_id: str) -> dict[str, Any]:
        chain = await self._chain(session_id)
        session = await self._sessions.get_session(session_id)
        return {
            "agent": self._config().id,
            "model": str(chain[0]),
            "fallbacks": [str(ref) for ref in chain[1:]],
            "mode": await self._sessions.setting(session_id, "mode"),
            "session": session_id,
            "title": session.title,
            "messages": session.message_count,
            "running_turns": self._runner.active,
            "waiting_turns": self._runner.queued,
        }

    async def _chain(self, session_id: str) -> list[ModelRef]:
        chosen = await self._sessions.setting(session_id, "model")
        return self._models.chain(self._config(), override=ModelRef.parse(chosen) if chosen else None)

    def _asking(self) -> LiveTurn | None:
        scope = current_scope()
        return self._runner.find(scope.turn_id) if scope is not None else None
