"""OpenAI-compatible clients: an agent is a model, a conversation is found again by what was said in it."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any

from starlette.types import ASGIApp

from qworkspace.api.chat import closing_event, idempotency_key, stream_log, turn_headers
from qworkspace.api.openai_schemas import (
    AnswerMessage,
    Choice,
    Completion,
    CompletionBody,
    ModelFacts,
    ModelList,
    OpenAIMessage,
    OpenAIPart,
)
from qworkspace.api.openai_stream import Chunks, completion_id, failure, openai_usage
from qworkspace.api.operations import Call, Operation, json_answer
from qworkspace.api.services import RunningAgent
from qworkspace.api.uploads import Uploads
from qworkspace.base.ids import AgentId, SessionId, agent_id
from qworkspace.base.ids import session_id as valid_session_id
from qworkspace.chat.live import LiveTurn
from qworkspace.errors import InvalidInput, NotFound, QworkspaceError
from qworkspace.sessions.models import FilePart, Message, TextPart, TurnRequest

INSTRUCTIONS = "client_instructions"
"""The key of a request's metadata that holds a client's system messages: a note in the turn's context."""


async def complete(call: Call) -> ASGIApp:
    """One turn, in OpenAI's words."""
    body: CompletionBody = call.body
    if body.n not in (None, 1):
        raise InvalidInput("n: an agent gives one answer; send n: 1 or leave it out", field="n")
    name, agent = await model_agent(call, body.model)
    live = await agent.runner.submit(await turn_request(call, name, agent, body))
    created = int(live.turn.created_at.timestamp())
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return stream_log(call, live.log, Chunks(live, body.model, created, usage=usage), headers=turn_headers(live))
    return json_answer(await _whole(live, body.model, created), headers=turn_headers(live))


async def model_agent(call: Call, model: str) -> tuple[AgentId, RunningAgent]:
    """The agent that is this model; 404 in OpenAI's words when there is none."""
    try:
        name = agent_id(model)
        return name, await call.services.manager.get(name)
    except (InvalidInput, NotFound) as error:
        if isinstance(error, NotFound) and error.code != "agent_not_found":
            raise
        raise no_model(model) from None


def no_model(model: str) -> InvalidInput:
    """404 in OpenAI's words."""
    told = f"the model {model!r} does not exist; a model is an agent's id (GET /v1/models)"
    return InvalidInput(told, code="model_not_found", field="model")


async def turn_request(call: Call, name: AgentId, agent: RunningAgent, body: CompletionBody) -> TurnRequest:
    """The last message as a turn of the conversation that the ones before it belong to."""
    last = body.messages[-1]
    if last.role != "user":
        raise InvalidInput("messages: the last one must be the user's", field="messages")
    system = [m.text for m in body.messages if m.role in ("system", "developer") and m.text.strip()]
    key = idempotency_key(call)
    session = await find_session(call, agent, body) or call.api.new_sessions.get(name, key)
    metadata: dict[str, Any] = {**(body.metadata or {}), **({INSTRUCTIONS: system} if system else {})}
    return TurnRequest(
        agent_id=name,
        session_id=session,
        message=Message(role="user", parts=await _content(call, agent, last)),
        user_id=body.user or "",
        source="api",
        if_busy=agent.config.running.if_busy,
        idempotency_key=key,
        metadata=metadata,
    )


async def find_session(call: Call, agent: RunningAgent, body: CompletionBody) -> SessionId | None:
    """The session that `X-Session-Id` names, else the one whose history is what was sent."""
    named = call.request.headers.get("x-session-id")
    if named:
        return valid_session_id(named)
    prefix = [(m.role, m.text) for m in body.messages[:-1] if m.role in ("user", "assistant") and m.text]
    return await agent.sessions.find_by_prefix(body.user or "", prefix) if prefix else None


async def _content(call: Call, agent: RunningAgent, message: OpenAIMessage) -> tuple[TextPart | FilePart, ...]:
    parts: list[TextPart | FilePart] = []
    for index, part in enumerate(message.content):
        if part.type == "image_url":
            parts.append(await _picture(call, agent, part, f"messages[-1].content[{index}]"))
        elif part.type in ("text", "input_text"):
            parts.append(TextPart(text=part.text))
        else:
            raise InvalidInput(f"messages[-1].content[{index}]: {part.type!r} is not supported here", field="messages")
    if not any(isinstance(part, FilePart) or part.text.strip() for part in parts):
        raise InvalidInput("messages: the last one is empty; say something", field="messages")
    return tuple(parts)


async def _picture(call: Call, agent: RunningAgent, part: OpenAIPart, field: str) -> FilePart:
    """A picture that came inside of the message, kept like an upload; nothing is fetched from elsewhere."""
    head, comma, data = str((part.image_url or {}).get("url", "")).partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64") or not comma:
        raise InvalidInput(f"{field}: send the picture as data:image/…;base64,…; nothing is fetched", field=field)
    media_type = head.removeprefix("data:").removesuffix(";base64")
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"{field}: the picture is not base64: {error}", field=field) from None
    uploads = Uploads(agent.directory, call.api.threads)
    try:
        await uploads.begin(f"picture.{media_type.removeprefix('image/').partition('+')[0]}", media_type)
        await uploads.write(content)
        (kept,) = await uploads.keep()
    finally:
        await uploads.discard()
    return FilePart(path=kept.path, media_type=kept.media_type, name=kept.name)


async def _whole(live: LiveTurn, model: str, created: int) -> Completion:
    await asyncio.shield(live.done)
    last = closing_event(live)
    if last.type == "turn.failed":
        raise failure(last)
    message = AnswerMessage(content=str(last.data.get("text") or live.text))
    return Completion(
        id=completion_id(live),
        created=created,
        model=model,
        choices=[Choice(message=message, finish_reason="stop")],
        usage=openai_usage(live.turn.usage),
    )


async def list_models(call: Call) -> ModelList:
    """Every enabled agent."""
    created = int(call.api.info.started_at.timestamp())
    return ModelList(data=[ModelFacts(id=name, created=created) for name in call.services.config.agent_ids()])


async def read_model(call: Call) -> ModelFacts:
    """One agent as a model."""
    name = call.param("model")
    if name not in call.services.config.agent_ids():
        raise no_model(name)
    return ModelFacts(id=name, created=int(call.api.info.started_at.timestamp()))


async def embed(call: Call) -> ASGIApp:
    """There is nothing here yet that could make vectors."""
    raise QworkspaceError("this daemon has no embedder; use the provider's own endpoint", code="not_available")


OPERATIONS = (
    Operation(
        "POST",
        "/v1/chat/completions",
        complete,
        "One turn with the agent that `model` names",
        "openai",
        body=CompletionBody,
        answer=Completion,
        media_types=("application/json", "text/event-stream"),
        headers=("X-Session-Id", "Idempotency-Key"),
    ),
    Operation("GET", "/v1/models", list_models, "The agents as models", "openai", answer=ModelList),
    Operation("GET", "/v1/models/{model}", read_model, "One agent as a model", "openai", answer=ModelFacts),
    Operation("POST", "/v1/embeddings", embed, "Not available", "openai"),
)
