"""One turn, from its request through the eight phases to its last event."""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.base.scope import Scope, acting_as
from qworkspace.base.waiting import ends_within
from qworkspace.chat.closing import Closer, Ending, error_facts
from qworkspace.chat.compactor import Compactor
from qworkspace.chat.live import LiveTurn, StopReason
from qworkspace.chat.loop import LoopParts, ModelLoop
from qworkspace.chat.models import ModelSource
from qworkspace.chat.modes import modes_of
from qworkspace.chat.prompt import PromptMaker
from qworkspace.chat.reliable import RetryPolicy
from qworkspace.chat.toolbox import Toolbox, ToolServices
from qworkspace.config.models import AgentConfig, ModelRef
from qworkspace.errors import InvalidInput, QworkspaceError
from qworkspace.plugins.extensions import (
    ContextNote,
    Extensions,
    HookPoint,
    LoopHook,
    Mode,
    Phase,
    SlashCommand,
    TurnContext,
    TurnControls,
)
from qworkspace.sessions.journal import INTERRUPTED
from qworkspace.sessions.models import FilePart, Message, TextPart, TurnRequest, TurnState
from qworkspace.sessions.store import SessionStore

logger = logging.getLogger(__name__)

PICTURE_BYTES = 10_000_000
LAST_HOOKS_SECONDS = 1.0
MEMORY_NOTE = "memory"
_COMMAND = re.compile(r"/([a-z][a-z0-9_-]*)(?:\s+(.*))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TurnParts:
    """What the turns of one agent work with."""

    agent_id: str
    workspace_dir: Path
    config: Callable[[], AgentConfig]
    extensions: Extensions
    sessions: SessionStore
    models: ModelSource
    prompts: PromptMaker
    compactor: Compactor
    tools: ToolServices
    bus: EventBus
    problems: Problems
    clock: Clock
    policy: RetryPolicy


class TurnMachine:
    """Executes turns. A turn that began has exactly one ending, whatever happens in it."""

    def __init__(self, parts: TurnParts, closer: Closer) -> None:
        self._parts = parts
        self._closer = closer
        self.controls: TurnControls | None = None

    async def execute(self, live: LiveTurn) -> None:
        """Run the turn to its end; raises nothing but what cannot be caught."""
        context = self._context(live)
        with acting_as(context.scope):
            try:
                ending = await self._turn(live, context)
            except asyncio.CancelledError as error:
                ending = _cancelled(live, context) if _take_back_cancellation() else _failed(live, context, error)
            except Exception as error:
                ending = _failed(live, context, error)
            await self._close(live, context, ending)

    async def _close(self, live: LiveTurn, context: TurnContext, ending: Ending) -> None:
        """Run the last hooks and store the ending; a stop that comes now is too late and changes nothing."""
        closing = asyncio.ensure_future(self._finally(live, context, ending))
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                if closing.cancelled():
                    raise
                _take_back_cancellation()

    async def _finally(self, live: LiveTurn, context: TurnContext, ending: Ending) -> None:
        try:
            await self._last_hooks(context)
            if (live.asked or live.resumed) and ending.state is not TurnState.INTERRUPTED:
                await self._parts.tools.approvals.withdraw(live.id)
        except QworkspaceError as error:
            logger.error("turn %s: its questions stay open: %s", live.id, error.message)
        finally:
            await self._closer.close(live, ending)

    async def _last_hooks(self, context: TurnContext) -> None:
        """ON_ERROR and FINALLY, within a time that whoever waits for the end can bear."""
        phases = [Phase.ON_ERROR, Phase.FINALLY] if context.error is not None else [Phase.FINALLY]
        for phase in filter(context.extensions.hooks_at, phases):
            hooks = asyncio.ensure_future(self._run_hooks(context, phase))
            if not await ends_within(hooks, LAST_HOOKS_SECONDS, self._parts.clock):
                logger.error("hooks at %s took more than %g s and were ended", phase, LAST_HOOKS_SECONDS)
                hooks.cancel()
                await asyncio.wait({hooks})
            elif not hooks.cancelled() and hooks.exception() is not None:
                logger.error("an essential hook failed at %s: %s", phase, hooks.exception())

    async def _turn(self, live: LiveTurn, context: TurnContext) -> Ending:
        parts = self._parts
        live.begun_at = parts.clock.monotonic()
        await parts.sessions.begin(live.id)
        chain = parts.models.chain(context.config, override=await self._session_model(live))
        live.model = str(chain[0])
        live.emit("turn.started", _started(live, context))
        facts = {"session_id": live.session_id, "turn_id": live.id, "source": live.request.source}
        parts.bus.publish("turn.started", agent_id=parts.agent_id, **facts)
        await self._dispatch(context)
        if context.answer is None:
            reply = await self._answer(live, context, chain)
            context.reply, in_context = reply.text, True
            await self._run_hooks(context, LoopHook.ON_REPLY)
        else:
            live.say(context.answer)
            reply, in_context = _text_reply(context.answer), not _is_command(context)
        context.reply = reply.text
        await self._run_hooks(context, Phase.POST_RESPONSE)
        return Ending(TurnState.COMPLETED, text=live.text, usage=context.usage, reply=reply, in_context=in_context)

    async def _dispatch(self, context: TurnContext) -> None:
        await self._run_hooks(context, Phase.PRE_DISPATCH)
        if context.answer is None:
            found = find_command(context.message.text, context.extensions)
            if isinstance(found, str):
                context.answer = found
            elif found is not None:
                command, rest = found
                context.answer = await command.run(context, rest) or f"/{command.name}: done"
        await self._run_hooks(context, Phase.POST_DISPATCH)

    async def _answer(self, live: LiveTurn, context: TurnContext, chain: list[ModelRef]) -> Message:
        parts = self._parts
        context.notes += [*client_notes(live.request), *remembered_notes(live)]
        context.recalled = any(note.kind == MEMORY_NOTE for note in context.notes)
        await self._run_hooks(context, Phase.PRE_AGENT_BUILD)
        mode = await self._mode(live, context)
        context.history = await parts.compactor.history(live.session_id, before_turn=live.id)
        context.system = await parts.prompts.system(context, mode)
        await self._run_hooks(context, LoopHook.ON_SYSTEM_PROMPT)
        toolbox = Toolbox(parts.tools, context, live, mode)
        models = [await parts.models.get(ref) for ref in chain]
        await self._run_hooks(context, Phase.POST_AGENT_BUILD)
        await self._run_hooks(context, Phase.PRE_EXECUTE)
        if context.notes:
            await self._save_notes(live, context)
        if context.answer is not None:
            live.say(context.answer)
            return _text_reply(context.answer)
        loop = ModelLoop(
            LoopParts(
                models=models,
                toolbox=toolbox,
                sessions=parts.sessions,
                compactor=parts.compactor,
                policy=parts.policy,
                clock=parts.clock,
                run_hooks=lambda point: self._run_hooks(context, point),
                save_notes=lambda: self._save_notes(live, context),
                read_file=self._picture,
            ),
            context,
            live,
        )
        return await loop.run(await self._own_messages(live, context))

    async def _save_notes(self, live: LiveTurn, context: TurnContext) -> None:
        await self._parts.sessions.save_context(live.id, [_note_facts(note) for note in context.notes])

    async def _picture(self, part: FilePart) -> bytes | None:
        """The bytes of an attached file; None for one that is gone, closed to tools or too large for a model."""
        try:
            content = await self._parts.tools.files.read(part.path, limit=PICTURE_BYTES)
        except QworkspaceError as error:
            logger.info("the attached file %r is not shown to the model: %s", part.path, error.message)
            return None
        return content.data if content.size <= PICTURE_BYTES else None

    async def _own_messages(self, live: LiveTurn, context: TurnContext) -> list[Message]:
        """The turn's messages so far: the user's, and after a resume the steps that were complete."""
        if not live.resumed:
            return [context.message]
        stored = [item.message for item in await self._parts.sessions.turn_messages(live.id)]
        said = "\n\n".join(message.text for message in stored if message.role == "assistant" and message.text)
        if said:
            live.say(said)
            live.end_step()
        return [context.message, *stored[1:]]

    async def _session_model(self, live: LiveTurn) -> ModelRef | None:
        chosen = await self._parts.sessions.setting(live.session_id, "model")
        return ModelRef.parse(chosen) if chosen else None

    async def _mode(self, live: LiveTurn, context: TurnContext) -> Mode | None:
        """The mode of the session; a turn does not run with all tools because the mode that limits them is gone."""
        chosen = await self._parts.sessions.setting(live.session_id, "mode")
        if not chosen:
            return None
        known = modes_of(context.config, context.extensions)
        if chosen not in known:
            raise InvalidInput(f"there is no mode {chosen!r} any more; /mode chooses another, /mode default none")
        return known[chosen]

    async def _run_hooks(self, context: TurnContext, point: HookPoint) -> None:
        """Each hook of that point; one that fails is reported with its owner and skipped unless essential."""
        for name, owner, hook in context.extensions.hooks_at(point):
            key = f"hook/{self._parts.agent_id}/{name}"
            try:
                await hook.run(context)
                self._parts.problems.clear(key)
            except Exception as error:
                logger.exception("hook %s of %s failed at %s", name, owner, point)
                message = f"hook {name!r} of {owner!r} failed at {point}: {error}"
                self._parts.problems.report(
                    f"hook/{self._parts.agent_id}/{name}", message, agent_id=context.scope.agent_id
                )
                context.emit("notice", {"code": "hook_failed", "message": message})
                if hook.essential:
                    raise QworkspaceError(message, code="hook_failed") from error

    def _context(self, live: LiveTurn) -> TurnContext:
        parts, request = self._parts, live.request
        if self.controls is None:
            raise RuntimeError("the turn machine was not given its controls")
        return TurnContext(
            scope=_scope(parts, request, live.id),
            request=request,
            config=parts.config(),
            extensions=parts.extensions,
            controls=self.controls,
            clock=parts.clock,
            message=request.message,
            emit=live.emit,
        )


def find_command(text: str, extensions: Extensions) -> tuple[SlashCommand, str] | str | None:
    """The command that `text` calls and the rest of it; a hint when it nearly calls one; None for plain text."""
    match = _COMMAND.match(text.strip())
    if match is None:
        return None
    name, rest = match[1], (match[2] or "").strip()
    command = extensions.commands.find(name)
    if command is not None:
        return command, rest
    near = difflib.get_close_matches(name, list(extensions.commands), n=1)
    if near:
        return f"There is no command /{name}. Did you mean /{near[0]}? /help lists all commands."
    return f"There is no command /{name}. /help lists all commands." if not rest else None


def _scope(parts: TurnParts, request: TurnRequest, turn_id: str) -> Scope:
    return Scope(
        agent_id=parts.agent_id,
        workspace_dir=parts.workspace_dir,
        session_id=request.session_id,
        turn_id=turn_id,
        user_id=request.user_id,
        team_id=request.team_id,
        source=request.source,
    )


def _started(live: LiveTurn, context: TurnContext) -> dict[str, Any]:
    return {
        "session_id": live.session_id,
        "agent_id": context.scope.agent_id,
        "model": live.model,
        "resumed": live.resumed,
    }


def _cancelled(live: LiveTurn, context: TurnContext) -> Ending:
    said = live.step_text
    partial = _text_reply(said) if said.strip() else None
    if live.stop_reason is StopReason.USER or live.stop_reason is StopReason.NEWER_MESSAGE:
        return Ending(TurnState.CANCELLED, text=live.text, usage=context.usage, partial=partial)
    return Ending(TurnState.INTERRUPTED, text=live.text, usage=context.usage, partial=partial, error=INTERRUPTED)


def _failed(live: LiveTurn, context: TurnContext, error: BaseException) -> Ending:
    if not isinstance(error, QworkspaceError):
        logger.error("turn %s failed", live.id, exc_info=error)
    context.error = error
    said = live.step_text
    partial = _text_reply(said) if said.strip() else None
    return Ending(TurnState.FAILED, text=live.text, usage=context.usage, partial=partial, error=error_facts(error))


def client_notes(request: TurnRequest) -> list[ContextNote]:
    """What a client of the OpenAI interface sent as system messages, as notes with that origin."""
    texts = request.metadata.get("client_instructions") or []
    origin = {"source": request.source}
    return [ContextNote("instructions", "instructions of the client", text, origin) for text in texts]


def remembered_notes(live: LiveTurn) -> list[ContextNote]:
    """What was recalled before the turn was interrupted: it goes on with the same."""
    stored = live.turn.context if live.resumed else []
    found = [note for note in stored if note.get("kind") == MEMORY_NOTE]
    return [ContextNote(note["kind"], note["title"], note["text"], note["origin"]) for note in found]


def _note_facts(note: ContextNote) -> dict[str, Any]:
    return {"kind": note.kind, "title": note.title, "text": note.text, "origin": note.origin}


def _text_reply(text: str) -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),))


def _is_command(context: TurnContext) -> bool:
    return find_command(context.message.text, context.extensions) is not None


def _take_back_cancellation() -> bool:
    """What was cancelled has been caught: later waits of this task are not to be cancelled for it.

    False when nobody cancelled this task: something that it waited for was, and that is a failure.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return False
    task.uncancel()
    return True
