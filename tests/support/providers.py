"""Models of providers in tests: made from configuration, asked over the wire."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from qworkspace.base.tasks import Threads
from qworkspace.chat.models import ModelSource
from qworkspace.chat.wire import ChatModel, Finished, ModelEvent, Prompt, ReasoningDelta, TextDelta, ToolSpec
from qworkspace.config.models import HomeConfig, ModelRef
from qworkspace.sessions.models import Message, Part, ToolResultPart

LOOK = ToolSpec("look", "looks", {"type": "object", "properties": {"where": {"type": "string"}}})
KEY = "secret-key"


class Providers:
    """`await providers.model("openai", url)` while the context lasts: a model of a provider there, named `p`."""

    def __init__(self) -> None:
        self._configured: dict[str, Any] = {}
        self._threads = Threads(1)
        self._source = ModelSource(self._home, threads=self._threads)

    async def model(self, kind: str, address: str, name: str = "model", **more: Any) -> ChatModel:
        """The model of that name at `address`; a later call replaces the provider."""
        self._configured["p"] = {"type": kind, "base_url": address, "api_key": KEY, **more}
        return await self._source.get(ModelRef(provider="p", name=name))

    def _home(self) -> HomeConfig:
        return HomeConfig.model_validate({"providers": self._configured})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._source.close()
        await asyncio.to_thread(self._threads.close)


async def listen(model: ChatModel, *messages: Message, **more: Any) -> list[ModelEvent]:
    """All events of an answer; keywords as in `Prompt`."""
    prompt = Prompt(more.pop("system", "Be kind."), list(messages), more.pop("tools", [LOOK]), **more)
    return [event async for event in model.stream(prompt)]


async def ask(model: ChatModel, *messages: Message, **more: Any) -> Finished:
    """The last event of an answer."""
    return finished(await listen(model, *messages, **more))


def finished(events: list[ModelEvent]) -> Finished:
    """The last event, which ends every answer."""
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def shown(events: list[ModelEvent]) -> str:
    """The text that a person saw."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def thought(events: list[ModelEvent]) -> str:
    """The reasoning that a person saw."""
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def assistant(*parts: Part) -> Message:
    """A message of the assistant."""
    return Message(role="assistant", parts=parts)


def results(*parts: ToolResultPart) -> Message:
    """A message of tool results."""
    return Message(role="tool", parts=parts)
