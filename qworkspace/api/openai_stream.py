"""A turn's events as OpenAI's stream of chunks."""

from __future__ import annotations

from typing import Any

from qworkspace.api.errors import error_body
from qworkspace.api.openai_schemas import OpenAIUsage
from qworkspace.api.sse import to_json
from qworkspace.base.events import Event
from qworkspace.chat.live import LiveTurn
from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.sessions.models import Usage

DONE = b"data: [DONE]\n\n"


def completion_id(live: LiveTurn) -> str:
    """The turn's id as OpenAI's clients know it."""
    return f"chatcmpl-{live.id}"


def openai_usage(usage: Usage) -> OpenAIUsage:
    """Tokens under OpenAI's names."""
    return OpenAIUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def failure(event: Event) -> ModelError:
    """A turn's `turn.failed` as an error. The turn is stored: a client that tries again says everything twice."""
    data = event.data
    kind = ContextTooLong if data.get("code") == ContextTooLong.code else ModelError
    message = str(data.get("message") or "the turn failed")
    status = 429 if data.get("code") == "model_rate_limited" else None
    return kind(
        message, code=str(data.get("code")), retryable=bool(data.get("retryable")), status=status, accepted=True
    )


class Chunks:
    """Events of a turn as `chat.completion.chunk`s: text and reasoning as deltas, the end with a finish reason."""

    def __init__(self, live: LiveTurn, model: str, created: int, *, usage: bool) -> None:
        self._live = live
        self._usage = usage
        self._base = {
            "id": completion_id(live),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._said = ""
        self._begun = False

    def __call__(self, event: Event) -> bytes:
        if event.type == "text.delta":
            self._said += event.data["text"]
            return self._delta({"content": event.data["text"]})
        if event.type == "reasoning.delta":
            return self._delta({"reasoning_content": event.data["text"]})
        if event.type == "turn.failed":
            return self._error(event)
        if event.type in ("turn.completed", "turn.cancelled"):
            return self._end(event)
        return b""

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._begun:
            self._begun, delta = True, {"role": "assistant", "content": "", **delta}
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": finish}])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return f"data: {to_json({**self._base, 'choices': choices, **more})}\n\n".encode("utf-8", "replace")

    def _end(self, event: Event) -> bytes:
        text = str(event.data.get("text") or "")
        missing = text[len(self._said) :] if text.startswith(self._said) else ""
        frames = [self._delta({"content": missing})] if missing else []
        frames.append(self._delta({}, "stop"))
        if self._usage:
            frames.append(self._chunk([], usage=openai_usage(self._live.turn.usage).model_dump()))
        return b"".join([*frames, DONE])

    def _error(self, event: Event) -> bytes:
        return f"data: {to_json(error_body(failure(event), openai=True))}\n\n".encode("utf-8", "replace")
