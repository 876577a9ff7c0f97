"""The model loop of a turn: ask, stream, journal, run tools, ask again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from qworkspace.base.clock import Clock
from qworkspace.chat.compactor import Compactor
from qworkspace.chat.context import estimate_message, shorten_results
from qworkspace.chat.live import LiveTurn
from qworkspace.chat.models import settings_of
from qworkspace.chat.prompt import with_notes
from qworkspace.chat.reliable import RetryPolicy, stream_reliably
from qworkspace.chat.toolbox import Toolbox
from qworkspace.chat.wire import ChatModel, Finished, Prompt, ReadFile, ReasoningDelta, TextDelta
from qworkspace.errors import Conflict, ContextTooLong, ModelError, StorageError
from qworkspace.plugins.extensions import HookPoint, LoopHook, TurnContext
from qworkspace.sessions.models import CallState, Message, ToolCallPart
from qworkspace.sessions.store import SessionStore

logger = logging.getLogger(__name__)
DRAFT_SECONDS = 2.0

RunHooks = Callable[[HookPoint], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop works with in one turn."""

    models: Sequence[ChatModel]
    toolbox: Toolbox
    sessions: SessionStore
    compactor: Compactor
    policy: RetryPolicy
    clock: Clock
    run_hooks: RunHooks
    save_notes: Callable[[], Awaitable[None]]
    read_file: ReadFile


class ModelLoop:
    """Carries one turn from its messages to the final reply. `context.history` grows as it goes."""

    def __init__(self, parts: LoopParts, context: TurnContext, live: LiveTurn) -> None:
        self._parts = parts
        self._context = context
        self._live = live
        self._drafted_at = parts.clock.monotonic()

    async def run(self, own: list[Message]) -> Message:
        """The final reply, not yet stored. `own` are the messages of this turn, the user's first."""
        self._own = own
        await self._finish_open_calls()
        for _ in range(self._context.config.running.max_iters):
            await self._look_up()
            reply = await self._ask()
            if not reply.calls:
                return reply
            await self._parts.sessions.save_response(self._live.id, reply, self._context.usage)
            self._live.end_step()
            self._own.append(reply)
            await self._run_calls(reply.calls, {})
        limit = self._context.config.running.max_iters
        raise Conflict(f"stopped after {limit} model calls; send a message to go on", code="iteration_limit")

    async def _look_up(self) -> None:
        """Let hooks add to the context; what they added is stored before a model sees it."""
        known = len(self._context.notes)
        await self._parts.run_hooks(LoopHook.ON_MODEL_CALL)
        if len(self._context.notes) != known:
            await self._parts.save_notes()

    async def _finish_open_calls(self) -> None:
        """After a restart: run what never started, and answer for what did."""
        last = next((at for at in reversed(range(len(self._own))) if self._own[at].calls), None)
        if last is None:
            return
        answered = {part.id for message in self._own[last:] for part in message.parts if part.type == "tool_result"}
        still_open = [call for call in self._own[last].calls if call.id not in answered]
        if still_open:
            await self._run_calls(still_open, await self._parts.sessions.pending_calls(self._live.id))

    async def _run_calls(self, calls: list[ToolCallPart], states: dict[str, CallState]) -> None:
        for call in calls:
            self._live.emit("tool.call", {"call_id": call.id, "name": call.name, "args": call.args})
        results = await self._parts.toolbox.run(calls, states)
        self._own.append(Message(role="tool", parts=tuple(results)))

    async def _ask(self) -> Message:
        """One answer of the model; a prompt that turns out too long is compacted once and tried again."""
        if self._parts.compactor.wanted(self._prompt(), self._parts.models[0].context_window):
            await self._shorten(overflow=False)
        try:
            return await self._stream(self._prompt())
        except ContextTooLong:
            if not await self._shorten(overflow=True):
                raise
            return await self._stream(self._prompt())

    async def _shorten(self, *, overflow: bool) -> bool:
        """Summarise what was said before, or cut old tool results of this turn. False when nothing could be shorter.

        A summary that fails is told and not fatal here: the provider may take the long prompt after all.
        """
        await self._parts.run_hooks(LoopHook.ON_COMPRESS_CONTEXT)
        model = self._parts.models[0]
        try:
            shorter = await self._parts.compactor.compact(
                self._live.session_id, self._context.history, model, before_turn=self._live.id, overflow=overflow
            )
        except ModelError as error:
            self._notice("compaction_failed", f"earlier messages could not be summarised: {error.message}")
            shorter = None
        if shorter is not None:
            self._context.history = shorter
            self._notice("compacted", "earlier messages were summarised")
            return True
        size = sum(map(estimate_message, self._own))
        own = shorten_results(self._own, size // 2 if overflow else model.context_window // 2)
        changed = own != self._own
        if changed:
            self._own = own
            self._notice("compacted", "older tool results of this turn were shortened")
        return changed

    def _prompt(self) -> Prompt:
        own = [with_notes(self._own[0], self._context.notes), *self._own[1:]]
        return Prompt(
            system="\n\n".join(self._context.system),
            messages=[*self._context.history, *own],
            tools=self._parts.toolbox.specs(),
            settings=settings_of(self._context.config.running),
            read_file=self._parts.read_file,
        )

    async def _stream(self, prompt: Prompt) -> Message:
        stream = stream_reliably(
            self._parts.models,
            prompt,
            policy=self._parts.policy,
            clock=self._parts.clock,
            notice=self._notice,
        )
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    self._live.say(event.text)
                    await self._keep_draft()
                elif isinstance(event, ReasoningDelta):
                    self._live.emit("reasoning.delta", {"text": event.text})
                else:
                    return self._finished(event)
        raise ModelError("the provider's answer ended without its last event", retryable=True)

    def _finished(self, event: Finished) -> Message:
        self._context.usage = self._context.usage.plus(event.usage)
        self._live.emit("usage", self._context.usage.model_dump())
        if event.reason in ("length", "content_filter") and not event.message.calls:
            why = "at its length limit" if event.reason == "length" else "by the provider's content filter"
            self._notice(f"finish_{event.reason}", f"the answer was cut {why}")
        return event.message

    def _notice(self, code: str, message: str) -> None:
        self._live.emit("notice", {"code": code, "message": message})

    async def _keep_draft(self) -> None:
        """What was said survives a crash, all but the last two seconds of it, unless the disk refuses meanwhile."""
        now = self._parts.clock.monotonic()
        if now - self._drafted_at >= DRAFT_SECONDS:
            self._drafted_at = now
            try:
                await self._parts.sessions.save_draft(self._live.id, self._live.step_text)
            except StorageError as error:
                logger.debug("no draft is kept: %s", error.message)  # shown as a problem; there may be room at the end
