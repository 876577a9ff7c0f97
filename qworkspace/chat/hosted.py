"""A model of a provider, spoken to through pydantic_ai."""

# Heavy: imported by `qworkspace.chat.providers` only.

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from qworkspace.chat.context import cost, estimate_message, estimate_prompt
from qworkspace.chat.convert import Dialect, ToolNames, finish_reason, from_library, parameters, to_library
from qworkspace.chat.failures import as_model_error
from qworkspace.chat.text import Mender
from qworkspace.chat.wire import Finished, ModelEvent, Prompt, ReasoningDelta, TextDelta
from qworkspace.config.models import ModelRef, Price, TimeoutsConfig
from qworkspace.errors import ModelError
from qworkspace.sessions.models import FilePart, Message, Usage

logger = logging.getLogger(__name__)
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_WORKING = TextDelta("")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model beside its name."""

    ref: ModelRef
    context_window: int
    price: Price | None
    vision: bool
    timeouts: TimeoutsConfig


class HostedModel:
    """`ChatModel` over a pydantic_ai model. `lease` keeps the provider's client open while an answer comes."""

    def __init__(
        self,
        facts: ModelFacts,
        model: Model[Any],
        dialect: Dialect,
        *,
        lease: Callable[[], AbstractAsyncContextManager[None]],
        settings: Callable[[dict[str, Any]], dict[str, Any]],
        secret: str = "",
    ) -> None:
        self._facts = facts
        self._model = model
        self._dialect = dialect
        self._lease = lease
        self._settings = settings
        self._secret = secret

    @property
    def ref(self) -> ModelRef:
        return self._facts.ref

    @property
    def context_window(self) -> int:
        return self._facts.context_window

    @property
    def price(self) -> Price | None:
        return self._facts.price

    @property
    def vision(self) -> bool:
        return self._facts.vision

    @property
    def timeouts(self) -> TimeoutsConfig:
        return self._facts.timeouts

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        """The answer as it comes. Closing the generator closes the connection."""
        names = ToolNames(tool.name for tool in prompt.tools)
        said, thought = Mender(), Mender()
        async with self._lease():
            try:
                request = parameters(prompt, names)
                messages = to_library(prompt.messages, names, self._dialect, await self._pictures(prompt))
                messages = self._model.prepare_messages(messages, request)
                settings = cast(ModelSettings, self._settings(prompt.settings))
                async with self._model.request_stream(messages, settings, request) as answer:
                    async for event in answer:
                        shown = _shown(event, said, thought)
                        if shown is not None:
                            yield shown
                    response = answer.get()
                yield self._finished(prompt, response, names)
            except ModelError:
                raise
            except Exception as error:
                failure = as_model_error(error, self.ref, secret=self._secret)
                if failure.code == ModelError.code and not failure.retryable:
                    logger.info("%s failed", self.ref, exc_info=error)
                raise failure from error

    async def _pictures(self, prompt: Prompt) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        if not self.vision or prompt.read_file is None:
            return found
        for message in prompt.messages:
            for part in message.parts:
                if isinstance(part, FilePart) and part.media_type in PICTURES and part.path not in found:
                    data = await prompt.read_file(part)
                    if data:
                        found[part.path] = data
        return found

    def _finished(self, prompt: Prompt, response: ModelResponse, names: ToolNames) -> Finished:
        taken = {part.id for message in prompt.messages for part in message.parts if part.type == "tool_call"}
        message = from_library(response, names, taken)
        reason = finish_reason(response.finish_reason)
        return Finished(message, self._usage(prompt, response, message), "tool_calls" if message.calls else reason)

    def _usage(self, prompt: Prompt, response: ModelResponse, message: Message) -> Usage:
        sent, received = response.usage.input_tokens, response.usage.output_tokens
        estimated = not sent and not received
        if estimated:
            sent, received = estimate_prompt(prompt), estimate_message(message)
        return Usage(
            input_tokens=sent,
            output_tokens=received,
            requests=1,
            cost=cost(self.price, sent, received),
            estimated=estimated,
        )


def _shown(event: ModelResponseStreamEvent, said: Mender, thought: Mender) -> ModelEvent | None:
    """What of an event is passed on. Pieces of a tool call show only that the model is at work."""
    if isinstance(event, PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, TextPartDelta):
            return TextDelta(said.feed(delta.content_delta))
        if isinstance(delta, ThinkingPartDelta):
            return ReasoningDelta(thought.feed(delta.content_delta or ""))
        return _WORKING
    if isinstance(event, PartStartEvent):
        if isinstance(event.part, TextPart):
            return TextDelta(said.feed(event.part.content))
        if isinstance(event.part, ThinkingPart):
            return ReasoningDelta(thought.feed(event.part.content))
        return _WORKING
    return None
