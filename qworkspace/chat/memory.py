"""A memory backend in the turns of a workspace: its middlewares at the hooks of the model loop, and its tools.

What a backend raises, or does not do in time, is told and left out: no turn fails or waits because of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from qworkspace.base.clock import Clock
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Tasks
from qworkspace.base.waiting import ends_within
from qworkspace.chat.memory_commands import memory_commands
from qworkspace.chat.prompt import section
from qworkspace.chat.turn import MEMORY_NOTE
from qworkspace.errors import QworkspaceError
from qworkspace.memory.contract import BaseMemoryManager, Found, Hit, MemoryMiddleware, MemoryTool, MemoryTurn
from qworkspace.plugins.extensions import (
    ContextNote,
    Decision,
    Extensions,
    Hook,
    HookPoint,
    LoopHook,
    Phase,
    Tool,
    ToolContext,
    ToolOutput,
    TurnContext,
    Verdict,
)

logger = logging.getLogger(__name__)

OWNER = "memory"
PEOPLES_SOURCES = frozenset({"chat", "api", "channel"})
SLOW_IN_A_ROW = 3


class MemoryLink:
    """The middlewares of one memory as hooks of one workspace. `tasks` owns what is given up waiting for."""

    def __init__(
        self, memory: BaseMemoryManager, *, agent_id: str, clock: Clock, problems: Problems, tasks: Tasks
    ) -> None:
        self._memory = memory
        self._middlewares = tuple(memory.build_middlewares())
        self._agent_id = agent_id
        self._clock = clock
        self._problems = problems
        self._tasks = tasks
        self._key = f"memory-recall/{agent_id}"
        self._slow = 0
        problems.clear(self._key)  # what was wrong with the memory before, which may have taken no part in turns since

    @property
    def takes_part(self) -> bool:
        """Whether the memory has anything to do with turns."""
        return bool(self._middlewares)

    async def on_request(self, context: TurnContext) -> None:
        """What a search needs is opened while the turn gets ready for it."""
        if context.scope.source in PEOPLES_SOURCES:
            self._memory.prepare()

    async def on_system_prompt(self, context: TurnContext) -> None:
        """Guidance goes before the last part, which is the time and changes with every turn."""
        turn = _turn(context)
        for middleware in self._middlewares:
            text = await middleware.on_system_prompt(turn)
            if text.strip():
                context.system.insert(max(0, len(context.system) - 1), section("Memory", text))

    async def on_model_call(self, context: TurnContext) -> None:
        """Search once for what a person asked, within the limit of time."""
        settings = context.config.running.memory.auto_memory_search
        if context.recalled or not settings.enabled or context.scope.source not in PEOPLES_SOURCES:
            return
        context.recalled = True
        if not any(char.isalnum() for char in context.message.text):
            return
        found = await self._recall(context, settings.timeout)
        if found is None:
            return
        if found.hits:
            context.notes += [as_note(hit) for hit in found.hits]
            context.emit("memory.recalled", {"hits": [facts(hit) for hit in found.hits], "partial": found.partial})
        elif found.partial:
            told = f"nothing was recalled for this answer, and not everything was searched: {found.partial}"
            context.emit("notice", {"code": "memory_partial", "message": told})

    async def on_reply(self, context: TurnContext) -> None:
        await self._each(context, lambda middleware, turn: middleware.on_reply(turn))

    async def on_compress_context(self, context: TurnContext) -> None:
        await self._each(context, lambda middleware, turn: middleware.on_compress_context(turn))

    async def _each(
        self, context: TurnContext, call: Callable[[MemoryMiddleware, MemoryTurn], Awaitable[None]]
    ) -> None:
        turn = _turn(context)
        for middleware in self._middlewares:
            await call(middleware, turn)

    async def _recall(self, context: TurnContext, limit: float) -> Found | None:
        """What was found; None when that failed or takes too long, which is told."""
        task = self._tasks.start(self._search(_turn(context)), name=f"recall for {context.scope.turn_id}")
        try:
            in_time = await ends_within(task, limit, self._clock)
        finally:
            if not task.done():
                task.cancel()
        if not in_time:
            self._tell_slow(context, limit)
            return None
        if task.cancelled():  # by the end of the memory, not of this turn
            context.emit("notice", {"code": "memory_failed", "message": "memory has ended; it is left out"})
            return None
        found = task.result()
        if isinstance(found, Exception):
            self._tell_failure(context, found)
            return None
        self._slow = 0
        self._problems.clear(self._key)
        return found

    async def _search(self, turn: MemoryTurn) -> Found | Exception:
        try:
            found = [await middleware.on_model_call(turn) for middleware in self._middlewares]
        except Exception as error:
            if not isinstance(error, QworkspaceError):
                logger.exception("the memory of agent %s could not be searched", self._agent_id)
            return error
        hits = tuple(hit for each in found for hit in each.hits)
        return Found(hits, "; ".join(each.partial for each in found if each.partial))

    def _tell_slow(self, context: TurnContext, limit: float) -> None:
        """A single late answer is no problem: the first search after a start has to open the index."""
        told = f"memory did not answer within {limit * 1000:.0f} ms and is left out of this answer"
        context.emit("notice", {"code": "memory_slow", "message": told})
        self._slow += 1
        if self._slow >= SLOW_IN_A_ROW:
            often = f"the memory of agent {self._agent_id!r} was too slow {self._slow} times in a row"
            advice = "raise running.memory.auto_memory_search.timeout, or see the state of its index"
            self._problems.report(self._key, f"{often}: {advice}", severity="warning", agent_id=self._agent_id)

    def _tell_failure(self, context: TurnContext, error: Exception) -> None:
        told = f"memory could not be searched: {error.message if isinstance(error, QworkspaceError) else error}"
        context.emit("notice", {"code": "memory_failed", "message": told})
        message = f"agent {self._agent_id!r}: {told}"
        self._problems.report(self._key, message, severity="warning", agent_id=self._agent_id)


def install(
    extensions: Extensions,
    memory: BaseMemoryManager,
    *,
    agent_id: str,
    clock: Clock,
    problems: Problems,
    tasks: Tasks,
) -> None:
    """Put the memory's hooks, commands and tools into a workspace's registries. A name that is taken is refused."""
    link = MemoryLink(memory, agent_id=agent_id, clock=clock, problems=problems, tasks=tasks)
    if link.takes_part:
        points: list[tuple[HookPoint, Callable[[TurnContext], Awaitable[None]]]] = [
            (Phase.PRE_DISPATCH, link.on_request),
            (LoopHook.ON_SYSTEM_PROMPT, link.on_system_prompt),
            (LoopHook.ON_MODEL_CALL, link.on_model_call),
            (LoopHook.ON_REPLY, link.on_reply),
            (LoopHook.ON_COMPRESS_CONTEXT, link.on_compress_context),
        ]
        for point, run in points:
            extensions.hooks.add(f"{OWNER}.{point}", Hook(point, run), owner=OWNER)
        for command in memory_commands(memory):
            extensions.commands.add(command.name, command, owner=OWNER)
    for tool in memory.list_memory_tools():
        extensions.tools.add(tool.name, as_tool(tool), owner=OWNER)


def as_tool(tool: MemoryTool) -> Tool:
    """The tool as the toolbox runs it. What it writes is judged by the same fence as every other file."""

    async def run(context: ToolContext, args: Any) -> ToolOutput:
        return ToolOutput(await tool.run(context.scope, args))

    def review(args: Any, context: ToolContext) -> Decision | Verdict:
        if tool.effect == "read":
            return "allow"
        return context.files.judge_path(context.files.root / tool.target(args))

    return Tool(tool.name, tool.description, tool.args, run, tool.effect, tool.target, review=review)


def as_note(hit: Hit) -> ContextNote:
    """A passage as it goes into the context and is stored with the turn."""
    origin = {"path": hit.path, **_more(hit), **_place(hit)}
    return ContextNote(MEMORY_NOTE, f"{hit.path}:{hit.start_line}-{hit.end_line}", hit.text, origin)


def facts(hit: Hit) -> dict[str, Any]:
    """A passage as an event shows it: JSON values."""
    return {"path": hit.path, "text": hit.text, **_place(hit), **_more(hit)}


def _place(hit: Hit) -> dict[str, Any]:
    return {
        "start_line": hit.start_line,
        "end_line": hit.end_line,
        "score": round(hit.score, 4),
        "vector_rank": hit.vector_rank,
        "bm25_rank": hit.bm25_rank,
        "parts": {name: round(value, 4) for name, value in hit.parts.items()},
    }


def _more(hit: Hit) -> dict[str, Any]:
    heading = {"heading": " > ".join(hit.heading)} if hit.heading else {}
    dated = {"date": hit.date.isoformat()} if hit.date is not None else {}
    return {**dated, **heading, "origin": hit.origin}


def _turn(context: TurnContext) -> MemoryTurn:
    return MemoryTurn(context.scope, context.message, context.history, context.clock.now(), context.reply)
