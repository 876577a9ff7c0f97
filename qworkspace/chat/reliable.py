"""An answer in spite of providers that fail: retries, limits of silence, fallback models.

A failure is answered with another try as long as no visible text was passed on; after that it is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from qworkspace.base.clock import Clock
from qworkspace.chat.wire import ChatModel, Finished, ModelEvent, Prompt, TextDelta
from qworkspace.config.models import RetryConfig
from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.sessions.models import Usage

logger = logging.getLogger(__name__)

Notice = Callable[[str, str], object]
"""Told a code and a sentence about each retry and fallback."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently. Times are seconds."""

    attempts: int = 3
    base: float = 1.0
    cap: float = 30.0
    retry_after_cap: float = 120.0
    """A provider that wants a longer pause is given up on."""
    chance: Callable[[], float] = random.random

    @classmethod
    def of(cls, config: RetryConfig) -> RetryPolicy:
        """The policy that a configuration asks for."""
        return cls(attempts=config.attempts, base=config.base, cap=config.cap)

    def pause(self, tries: int, retry_after: float | None) -> float | None:
        """Seconds to wait after that many tries; None when the provider wants more than we wait."""
        backoff = min(self.cap, self.base * 2.0 ** (tries - 1)) * (0.5 + self.chance() / 2)
        if retry_after is None:
            return backoff
        return None if retry_after > self.retry_after_cap else max(backoff, retry_after)


@dataclass(slots=True)
class _Progress:
    """What the tries have come to so far."""

    spoken: bool = False
    emptied: bool = False
    spent: Usage = field(default_factory=Usage)
    failures: list[str] = field(default_factory=list)


async def stream_reliably(
    models: Sequence[ChatModel],
    prompt: Prompt,
    *,
    policy: RetryPolicy,
    clock: Clock,
    notice: Notice = lambda code, message: None,
) -> AsyncGenerator[ModelEvent, None]:
    """The answer of the first model that gives one, ending with `Finished`.

    Raises the last `ModelError` when all have failed, `ContextTooLong` at once, and any failure after visible text.
    The usage of answers that were thrown away is counted in the last event.
    """
    progress = _Progress()
    error: ModelError | None = None
    for index, model in enumerate(models):
        if error is not None:
            notice("fallback", f"{error.message}; going on with {model.ref}")
        try:
            async with aclosing(_with_retries(model, prompt, policy, clock, notice, progress)) as events:
                async for event in events:
                    yield event
            return
        except ModelError as failure:
            if progress.spoken or isinstance(failure, ContextTooLong) or failure.code == "empty_reply":
                raise
            error = failure
            progress.failures.append(failure.message)
            logger.warning("model %d of %d failed: %s", index + 1, len(models), failure.message)
    raise _all_failed(error, progress)


async def complete(
    models: Sequence[ChatModel], prompt: Prompt, *, policy: RetryPolicy, clock: Clock, notice: Notice | None = None
) -> Finished:
    """The whole answer, for work in the background."""
    stream = stream_reliably(models, prompt, policy=policy, clock=clock, notice=notice or (lambda code, message: None))
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event
    raise ModelError("the answer ended without its last event", retryable=True)


async def _with_retries(
    model: ChatModel, prompt: Prompt, policy: RetryPolicy, clock: Clock, notice: Notice, progress: _Progress
) -> AsyncGenerator[ModelEvent, None]:
    tries = 0
    while True:
        tries += 1
        try:
            async with aclosing(_one_try(model, prompt, clock, progress)) as events:
                async for event in events:
                    yield event
            return
        except _EmptyReply as empty:
            if progress.emptied:
                raise _reported(model, empty.finished) from None
            progress.emptied = True
            notice("empty_reply", f"{model.ref} answered without any text; asking again")
        except ModelError as error:
            if progress.spoken or not error.retryable or tries >= policy.attempts:
                raise
            pause = policy.pause(tries, error.retry_after)
            if pause is None:
                raise
            notice("retry", f"{error.message}; trying again in {pause:.1f} s ({tries + 1} of {policy.attempts})")
            await clock.sleep(pause)


class _EmptyReply(Exception):
    """The model said nothing and called nothing."""

    def __init__(self, finished: Finished) -> None:
        super().__init__("empty reply")
        self.finished = finished


def _reported(model: ChatModel, finished: Finished) -> ModelError:
    why = {
        "length": "it used up its limit before it said anything",
        "content_filter": "the provider's content filter held it back",
    }.get(finished.reason, "it said nothing, twice")
    return ModelError(f"{model.ref} gave no answer: {why}", code="empty_reply", retryable=True)


def _all_failed(error: ModelError | None, progress: _Progress) -> ModelError:
    if error is None:
        return ModelError("no model is configured", code="no_model")
    if len(progress.failures) == 1:
        return error
    return ModelError(
        "all models failed: " + "; ".join(progress.failures),
        code=error.code,
        retryable=error.retryable,
        status=error.status,
        retry_after=error.retry_after,
    )


async def _one_try(
    model: ChatModel, prompt: Prompt, clock: Clock, progress: _Progress
) -> AsyncGenerator[ModelEvent, None]:
    async with aclosing(_watched(model, prompt, clock)) as events:
        async for event in events:
            if isinstance(event, Finished):
                progress.spent = progress.spent.plus(event.usage)
                if not event.message.text.strip() and not event.message.calls and not progress.spoken:
                    raise _EmptyReply(event)
                yield Finished(event.message, progress.spent, event.reason)
                return
            if isinstance(event, TextDelta) and event.text.strip():
                progress.spoken = True
            if event.text:
                yield event
    raise ModelError(f"{model.ref}: the answer ended without its last event", retryable=True)


async def _watched(model: ChatModel, prompt: Prompt, clock: Clock) -> AsyncGenerator[ModelEvent, None]:
    """The model's events; a `ModelError` when it is silent for too long. The connection is closed at the end."""
    line = _Line(model, clock)
    pump = asyncio.create_task(line.pump(prompt), name=f"model/{model.ref}")
    guard = asyncio.create_task(line.guard(), name=f"model/{model.ref}/silence")
    try:
        while True:
            item = await line.events.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        for task in (guard, pump):
            task.cancel()
        await asyncio.wait((guard, pump))


class _Line:
    """Between one connection and its reader: a queue that ends with None, and the time of the last sign of life."""

    def __init__(self, model: ChatModel, clock: Clock) -> None:
        self.events: asyncio.Queue[ModelEvent | Exception | None] = asyncio.Queue()
        self._model = model
        self._clock = clock
        self._begun = False
        self._last = clock.monotonic()

    async def pump(self, prompt: Prompt) -> None:
        """Read the model to its end, whatever that is."""
        put = self.events.put_nowait
        try:
            async with aclosing(self._model.stream(prompt)) as stream:
                async for event in stream:
                    self._last = self._clock.monotonic()
                    self._begun = True
                    put(event)
            put(None)
        except Exception as error:
            put(error)

    async def guard(self) -> None:
        """Put an error into the line when nothing has come for too long."""
        limits = self._model.timeouts
        while True:
            limit = limits.idle if self._begun else limits.first_token
            left = self._last + limit - self._clock.monotonic()
            if left <= 0:
                break
            await self._clock.sleep(min(left, limits.idle or left))
        what = "went silent in the middle of its answer" if self._begun else "has not begun to answer"
        message = f"{self._model.ref} {what} for {limit:g} s"
        self.events.put_nowait(ModelError(message, code="model_timeout", retryable=True))
