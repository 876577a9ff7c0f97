"""OpenAI's shapes, as far as an agent can be a model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from qworkspace.api.basic_schemas import Model
from qworkspace.api.schemas import Body, Label


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value or []


class OpenAIPart(Body):
    """A piece of a message; pictures as `data:` addresses only."""

    type: str
    text: str = ""
    image_url: Annotated[dict[str, Any] | None, BeforeValidator(lambda v: {"url": v} if isinstance(v, str) else v)] = (
        None
    )


class OpenAIMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        list[OpenAIPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[OpenAIPart] | None)
    ] = Field(default_factory=list)

    @property
    def text(self) -> str:
        """The visible text, parts joined without a separator."""
        return "".join(part.text for part in self.content if part.type in ("text", "input_text", "output_text"))


class StreamOptions(Body):
    include_usage: bool = False


class CompletionBody(Body):
    """`model` is an agent's id. Sampling settings and tools are accepted and left to the agent."""

    model: Label
    messages: list[OpenAIMessage] = Field(min_length=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    user: Label | None = None
    metadata: dict[str, Any] | None = None


class OpenAIUsage(Model):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(Model):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(Model):
    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class Completion(Model):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: OpenAIUsage


class ModelFacts(Model):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "qworkspace"


class ModelList(Model):
    object: Literal["list"] = "list"
    data: list[ModelFacts]
