"""One turn: journaled first, then streamed or answered whole; and streams that are joined again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from starlette.types import ASGIApp

from qworkspace.api.operations import Call, Operation, json_answer, no_content
from qworkspace.api.schemas import ChatAnswer, ChatBody, ContentPart, TurnError
from qworkspace.api.services import RunningAgent
from qworkspace.api.sse import EventStream, Frame, split_id, turn_frame
from qworkspace.base.events import Event, EventLog
from qworkspace.base.files import Root
from qworkspace.base.ids import AgentId, SessionId, agent_id
from qworkspace.base.ids import session_id as valid_session_id
from qworkspace.chat.live import LiveTurn, last_event
from qworkspace.errors import InvalidInput, InvalidPath, NotFound
from qworkspace.sessions.models import FilePart, Message, TextPart, TurnRequest

UPLOADS = "files"
KEY_LENGTH = 200
# the number of the event that closes a stream which only the journal knows; nothing comes after it
AFTER_ALL = 999_999_999
STATUS_BY_EVENT: dict[str, Literal["completed", "failed", "cancelled"]] = {
    "turn.completed": "completed",
    "turn.failed": "failed",
    "turn.cancelled": "cancelled",
}


async def chat(call: Call) -> ASGIApp:
    """Take a message; what is answered with 200 is stored."""
    body: ChatBody = call.body
    name = chosen_agent(call)
    agent = await call.services.manager.get(name)
    message = Message(role="user", parts=await content(call, agent, body.message))
    request = turn_request(call, name, agent, body, message)
    live = await agent.runner.submit(request)
    if body.stream:
        return stream(call, live)
    return json_answer(await whole(live), headers=turn_headers(live))


def chosen_agent(call: Call) -> AgentId:
    """The agent that the path, else `X-Agent-Id` names, else the active one; never another."""
    if "agent_id" in call.request.path_params:
        return call.agent_id
    named = call.request.headers.get("x-agent-id")
    return agent_id(named) if named else agent_id(call.services.config.load_home().agents.active_agent)


def turn_request(call: Call, name: AgentId, agent: RunningAgent, body: ChatBody, message: Message) -> TurnRequest:
    """What is asked of the agent; a conversation without an id gets one."""
    key = idempotency_key(call)
    named = body.session_id or call.request.headers.get("x-session-id")
    return TurnRequest(
        agent_id=name,
        session_id=valid_session_id(named) if named else call.api.new_sessions.get(name, key),
        message=message,
        user_id=body.user_id,
        team_id=body.team_id,
        source="chat",
        if_busy=body.if_busy or agent.config.running.if_busy,
        idempotency_key=key,
        metadata=body.metadata,
    )


def idempotency_key(call: Call) -> str | None:
    """The `Idempotency-Key` header: the same key in a session is the same turn."""
    key = call.request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= KEY_LENGTH:
        raise InvalidInput(f"Idempotency-Key has 1 to {KEY_LENGTH} characters", field="Idempotency-Key")
    return key


async def content(call: Call, agent: RunningAgent, parts: Sequence[ContentPart]) -> tuple[TextPart | FilePart, ...]:
    """The message's parts; files must be there, inside of the agent's `files/`."""
    found: list[TextPart | FilePart] = []
    for index, part in enumerate(parts):
        if part.type == "text":
            found.append(TextPart(text=part.text or ""))
        else:
            found.append(await call.api.threads.run(_file_part, agent.directory, part, f"message[{index}].path"))
    if not any(isinstance(part, FilePart) or part.text.strip() for part in found):
        raise InvalidInput("message: it is empty; say something", field="message")
    return tuple(found)


def _file_part(directory: Path, part: ContentPart, field: str) -> FilePart:
    path = (part.path or "").removeprefix(f"{UPLOADS}/")
    root = Root(directory)
    try:
        file = root.resolve(f"{UPLOADS}/{path}" if path else path)
    except InvalidPath as error:
        raise InvalidPath(f"{field}: {error.message}", field=field) from None
    place = root.relative(file)
    if not place.startswith(f"{UPLOADS}/"):
        raise InvalidPath(f"{field}: {part.path!r} is not in {UPLOADS}/", field=field)
    if not file.is_file():
        raise InvalidInput(f"{field}: there is no file {part.path!r}; upload it first", field=field)
    name, media_type = part.name or file.name, part.media_type or "application/octet-stream"
    return FilePart(path=place, media_type=media_type, name=name)


def turn_headers(live: LiveTurn) -> dict[str, str]:
    """Which conversation and turn an answer belongs to."""
    return {"x-session-id": live.session_id, "x-turn-id": live.id}


def stream(call: Call, live: LiveTurn, *, after: int = 0) -> EventStream:
    """The turn's events later than `after`."""
    return stream_log(call, live.log, turn_frame(live.id), after=after, headers=turn_headers(live))


def stream_log(
    call: Call, log: EventLog, frame: Frame, *, after: int = 0, headers: dict[str, str] | None = None
) -> EventStream:
    """A log as the answer, within the daemon's limits."""
    return EventStream(
        log,
        frame,
        clock=call.api.clock,
        limits=call.api.stream_limits,
        after=after,
        headers=headers,
        counted=call.services.metrics.sse_client(),
        welcome=lambda: call.services.auth.knows(call.caller),
    )


async def whole(live: LiveTurn) -> ChatAnswer:
    """The turn when it has ended. A caller that leaves does not end it."""
    await asyncio.shield(live.done)
    last = closing_event(live)
    error = TurnError.model_validate(last.data) if last.type == "turn.failed" else None
    return ChatAnswer(
        turn_id=live.id,
        session_id=live.session_id,
        status=STATUS_BY_EVENT[last.type],
        text=last.data.get("text") or live.text,
        usage=live.turn.usage,
        error=error,
    )


def closing_event(live: LiveTurn) -> Event:
    """The last event of a turn that has ended."""
    return live.log.since(live.log.last - 1)[-1]


async def join(call: Call) -> ASGIApp:
    """The stream of a session, from the event after `Last-Event-ID` on; 204 when there is nothing to follow."""
    agent, session = await call.agent(), call.session_id
    last_seen = call.request.headers.get("last-event-id", "").strip()
    if last_seen:
        found = await _rest(call, agent, session, *split_id(last_seen))
        if found is not None:
            return found
    live = agent.runner.live(session)
    return stream(call, live) if live is not None else no_content()


async def _rest(call: Call, agent: RunningAgent, session: SessionId, turn_id: str, seen: int) -> ASGIApp | None:
    """What is left of that turn's stream, or None when the client has seen its end."""
    live = agent.runner.find(turn_id)
    if live is not None and live.session_id == session:
        if live.log.closed and seen == live.log.last:
            return None
        return stream(call, live, after=seen if seen <= live.log.last else 0)  # a resumed turn counts from 1 again
    if seen >= AFTER_ALL:
        return None
    try:
        turn = await agent.sessions.get_turn(turn_id)
    except NotFound:
        return None
    if turn.session_id != session or not turn.state.ended:
        return None
    log = EventLog(call.api.clock, first=AFTER_ALL)
    log.append(*last_event(turn))
    log.close()
    headers = {"x-session-id": session, "x-turn-id": turn_id}
    return stream_log(call, log, turn_frame(turn_id), after=AFTER_ALL - 1, headers=headers)


OPERATIONS = (
    Operation(
        "POST",
        "/console/chat",
        chat,
        "One turn of the agent that X-Agent-Id names, else of the active one",
        "chat",
        body=ChatBody,
        answer=ChatAnswer,
        media_types=("text/event-stream", "application/json"),
        headers=("X-Agent-Id", "X-Session-Id", "Idempotency-Key"),
    ),
    Operation(
        "POST",
        "/api/agents/{agent_id}/chat",
        chat,
        "One turn",
        "chat",
        body=ChatBody,
        answer=ChatAnswer,
        media_types=("text/event-stream", "application/json"),
        headers=("X-Session-Id", "Idempotency-Key"),
    ),
    Operation(
        "GET",
        "/api/agents/{agent_id}/sessions/{session_id}/stream",
        join,
        "Follow the session's turn, from the event after Last-Event-ID on; 204 when there is none",
        "sessions",
        media_types=("text/event-stream",),
        headers=("Last-Event-ID",),
    ),
)
