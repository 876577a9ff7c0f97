"""Conversations: list, read, rename, delete; their turns: stop, resume, what went into one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.types import ASGIApp

from qworkspace.api.operations import Call, Operation, no_content
from qworkspace.api.schemas import (
    LongPage,
    MessageFacts,
    MessageList,
    Page,
    Resumed,
    SessionFacts,
    SessionList,
    SessionPatch,
    SessionsQuery,
    Stopped,
    TurnContextFacts,
    TurnFacts,
    TurnList,
)
from qworkspace.api.services import RunningAgent
from qworkspace.errors import NotFound
from qworkspace.sessions.models import Session, StoredMessage, Turn

BASE = "/api/agents/{agent_id}/sessions"
ONE = BASE + "/{session_id}"


async def list_sessions(call: Call) -> SessionList:
    """The agent's conversations, the newest first."""
    agent, query = await call.agent(), call.query
    found, cursor = await agent.sessions.sessions(
        limit=query.limit, cursor=query.cursor, query=query.query, user_id=query.user_id
    )
    return SessionList(sessions=[session_facts(agent, session) for session in found], next_cursor=cursor)


async def read_session(call: Call) -> SessionFacts:
    """One conversation."""
    agent = await call.agent()
    return session_facts(agent, await agent.sessions.get_session(call.session_id))


async def change_session(call: Call) -> SessionFacts:
    """Rename or pin; what the body leaves out stays."""
    agent, patch = await call.agent(), call.body
    await agent.sessions.get_session(call.session_id)
    if patch.title is not None:
        await agent.sessions.rename(call.session_id, patch.title)
    if patch.pinned is not None:
        await agent.sessions.pin(call.session_id, patch.pinned)
    return session_facts(agent, await agent.sessions.get_session(call.session_id))


async def delete_session(call: Call) -> ASGIApp:
    """Stop what runs in it, then remove it with all its messages."""
    agent = await call.agent()
    await agent.sessions.get_session(call.session_id)
    await agent.runner.cancel(call.session_id)
    await agent.memory.forget(call.session_id)
    await agent.sessions.delete(call.session_id)
    return no_content()


async def list_messages(call: Call) -> MessageList:
    """What was said, the oldest first."""
    agent = await call.agent()
    await agent.sessions.get_session(call.session_id)
    found, cursor = await agent.sessions.messages(call.session_id, limit=call.query.limit, cursor=call.query.cursor)
    return MessageList(messages=[message_facts(message) for message in found], next_cursor=cursor)


async def stop(call: Call) -> Stopped:
    """Cancel the running turn and drop those that wait; answered when they have ended."""
    agent = await call.agent()
    return Stopped(stopped=await agent.runner.cancel(call.session_id))


async def list_turns(call: Call) -> TurnList:
    """The session's turns, the newest first."""
    agent = await call.agent()
    await agent.sessions.get_session(call.session_id)
    found, cursor = await agent.sessions.turns(call.session_id, limit=call.query.limit, cursor=call.query.cursor)
    return TurnList(turns=[turn_facts(turn) for turn in found], next_cursor=cursor)


async def read_turn(call: Call) -> TurnFacts:
    """One turn."""
    return turn_facts(await _turn(call, await call.agent()))


async def resume(call: Call) -> Resumed:
    """Carry on an interrupted turn from its last complete step; follow it on the session's stream."""
    agent = await call.agent()
    turn = await _turn(call, agent)
    live = await agent.runner.resume(turn.id)
    return Resumed(turn_id=live.id, session_id=live.session_id)


async def read_context(call: Call) -> TurnContextFacts:
    """Why the agent said that: what was put into the turn's context, and where it came from."""
    turn = await _turn(call, await call.agent())
    return TurnContextFacts(turn_id=turn.id, notes=turn.context)


async def _turn(call: Call, agent: RunningAgent) -> Turn:
    """The turn that the path names, if it belongs to the session that the path names."""
    turn_id = call.param("turn_id")
    turn = await agent.sessions.get_turn(turn_id)
    if "session_id" in call.request.path_params and turn.session_id != call.session_id:
        raise NotFound("turn", turn_id)
    return turn


def session_facts(agent: RunningAgent, session: Session) -> SessionFacts:
    """A session as the interface shows it."""
    live = agent.runner.live(session.id)
    return SessionFacts.model_validate({**asdict(session), "live_turn_id": live.id if live is not None else None})


def message_facts(stored: StoredMessage) -> MessageFacts:
    """A message as the interface shows it."""
    return MessageFacts(
        id=stored.id,
        turn_id=stored.turn_id,
        role=stored.message.role,
        text=stored.message.text,
        parts=list(stored.message.parts),
        status=stored.status,
        created_at=stored.created_at,
    )


def turn_facts(turn: Turn) -> TurnFacts:
    """A turn as the interface shows it; its context has an address of its own."""
    facts: dict[str, Any] = {name: getattr(turn, name) for name in TurnFacts.model_fields if name != "notes"}
    return TurnFacts.model_validate({**facts, "notes": len(turn.context)})


def _turn_operations(turn: str) -> tuple[Operation, ...]:
    return (
        Operation("GET", turn, read_turn, "One turn", "turns", answer=TurnFacts),
        Operation("POST", turn + "/resume", resume, "Carry on an interrupted turn", "turns", answer=Resumed),
        Operation("GET", turn + "/context", read_context, "What went into a turn", "turns", answer=TurnContextFacts),
    )


OPERATIONS = (
    Operation(
        "GET",
        BASE,
        list_sessions,
        "Conversations, the newest first",
        "sessions",
        query=SessionsQuery,
        answer=SessionList,
    ),
    Operation("GET", ONE, read_session, "One conversation", "sessions", answer=SessionFacts),
    Operation(
        "PATCH",
        ONE,
        change_session,
        "Rename or pin a conversation",
        "sessions",
        body=SessionPatch,
        answer=SessionFacts,
        accepts=("application/json", "application/merge-patch+json"),
    ),
    Operation("DELETE", ONE, delete_session, "Stop and remove a conversation", "sessions", status=204),
    Operation(
        "GET",
        ONE + "/messages",
        list_messages,
        "What was said, the oldest first",
        "sessions",
        query=LongPage,
        answer=MessageList,
    ),
    Operation("POST", ONE + "/stop", stop, "Cancel the session's turns", "sessions", answer=Stopped),
    Operation("GET", ONE + "/turns", list_turns, "The session's turns", "turns", query=Page, answer=TurnList),
    *_turn_operations("/api/agents/{agent_id}/turns/{turn_id}"),
    *_turn_operations(ONE + "/turns/{turn_id}"),
)
