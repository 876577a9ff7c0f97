"""Running what the model asked for: check, approve, journal, run, shorten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ValidationError

from qworkspace.approvals import Approval, ApprovalStore
from qworkspace.base.clock import Clock
from qworkspace.base.waiting import ends_within
from qworkspace.chat.live import LiveTurn
from qworkspace.chat.tools.always import with_rule
from qworkspace.chat.tools.guard import Verdict, decide, enabled, rule_for
from qworkspace.chat.tools.output import shorten
from qworkspace.chat.wire import ToolSpec
from qworkspace.config.models import PolicyRule
from qworkspace.errors import QworkspaceError
from qworkspace.plugins.extensions import FileAccess, Mode, Tool, ToolContext, ToolOutput, TurnContext
from qworkspace.sessions.models import CallState, ToolCallPart, ToolResultPart
from qworkspace.sessions.store import SessionStore

logger = logging.getLogger(__name__)
# a tool that keeps to the limit itself ends better than one that is cancelled
OWN_ENDING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ToolServices:
    """What tools need of their workspace. `remember` keeps a rule for a tool's calls in agent.json."""

    sessions: SessionStore
    approvals: ApprovalStore
    files: FileAccess
    spill: Callable[[str], Awaitable[str]]
    remember: Callable[[str, PolicyRule], Awaitable[None]]
    clock: Clock


class Toolbox:
    """The tools of one turn."""

    def __init__(self, services: ToolServices, context: TurnContext, live: LiveTurn, mode: Mode | None = None) -> None:
        self._services = services
        self._context = context
        self._live = live
        self._tools = {tool.name: tool for tool in _offered(context, mode)}

    def specs(self) -> list[ToolSpec]:
        """What the model is told about the tools."""
        return [ToolSpec(tool.name, tool.description, schema_of(tool.args)) for tool in self._tools.values()]

    async def run(self, calls: list[ToolCallPart], states: Mapping[str, CallState]) -> list[ToolResultPart]:
        """The results in the order of the calls. Those that only read run side by side.

        A call that had started before a crash is not run again: nobody knows what it did.
        """
        results: list[ToolResultPart] = []
        for together, group in groupby(calls, key=self._only_reads):
            batch = list(group)
            if together and len(batch) > 1:
                results += await self._side_by_side(batch, states)
            else:
                results += [await self._one(call, states) for call in batch]
        return results

    async def _side_by_side(self, calls: list[ToolCallPart], states: Mapping[str, CallState]) -> list[ToolResultPart]:
        try:
            async with asyncio.TaskGroup() as running:
                tasks = [running.create_task(self._one(call, states)) for call in calls]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [task.result() for task in tasks]

    def _only_reads(self, call: ToolCallPart) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.effect in ("read", "network")

    async def _one(self, call: ToolCallPart, states: Mapping[str, CallState]) -> ToolResultPart:
        begun = self._services.clock.monotonic()
        if states.get(call.id) is CallState.STARTED:
            lost = "interrupted: this call had begun before a restart; whether it took effect is unknown, check first"
            output, file = ToolOutput(lost, "interrupted"), None
        else:
            output, file = await self._checked(call)
        result = ToolResultPart(
            id=call.id,
            name=call.name,
            text=output.text or "(no output)",
            outcome=output.outcome,
            file=file,
            duration_ms=round((self._services.clock.monotonic() - begun) * 1000),
        )
        await self._services.sessions.save_result(self._live.id, result)
        shown = result.model_dump(exclude={"type", "id"}, exclude_none=True)
        self._live.emit("tool.result", {"call_id": call.id, **shown})
        return result

    async def _checked(self, call: ToolCallPart) -> tuple[ToolOutput, str | None]:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolOutput(f"there is no tool {call.name!r}; there are: {known}", "error"), None
        try:
            args = _arguments(tool, call)
        except ValueError as error:
            return ToolOutput(f"wrong arguments for {tool.name}: {error}", "error"), None
        context = self._tool_context(call)
        verdict = decide(tool, args, self._context.config, context)
        if verdict.decision == "ask":
            verdict = await self._ask(call, verdict, lambda: self._always(tool, args, context))
        if verdict.decision == "deny":
            return ToolOutput(f"not allowed: {verdict.reason}", "denied"), None
        await self._services.sessions.call_started(self._live.id, call.id)
        return await self._execute(tool, args, context)

    async def _execute(self, tool: Tool, args: BaseModel, context: ToolContext) -> tuple[ToolOutput, str | None]:
        try:
            output = await self._in_time(tool, tool.run(context, args))
            short, file = await shorten(output.text, context.spill, self._context.config.running.tool_output_chars)
        except QworkspaceError as error:
            return ToolOutput(error.message, "error"), None
        except Exception as error:
            logger.exception("tool %s failed", tool.name)
            return ToolOutput(f"{tool.name} failed: {type(error).__name__}: {error}", "error"), None
        return ToolOutput(short, output.outcome), file

    async def _in_time(self, tool: Tool, work: Awaitable[ToolOutput]) -> ToolOutput:
        """What the tool answers; it is ended when that takes too long, or when the turn is."""
        limit = self._context.config.running.tool_timeout
        task = asyncio.ensure_future(work)
        try:
            ended = await ends_within(task, limit + OWN_ENDING_SECONDS, self._services.clock)
        finally:
            task.cancel()
            await asyncio.wait({task})
        if not ended:
            return ToolOutput(f"{tool.name} was ended after {limit:g} s, the limit running.tool_timeout", "error")
        if task.cancelled():
            return ToolOutput(f"{tool.name} was cancelled from inside", "error")
        return task.result()

    async def _ask(self, call: ToolCallPart, verdict: Verdict, always: Callable[[], Awaitable[None]]) -> Verdict:
        """Wait for a person. No answer within the time is a no; the question outlives a restart."""
        approval = await self._services.approvals.of_call(self._live.id, call.id)
        if approval is None:
            approval = await self._create_approval(call, verdict)
        self._live.asked = True
        self._live.emit("tool.approval", _approval_facts(approval))
        answered = await self._services.approvals.wait(approval.id)
        if answered.allowed:
            if answered.remember:
                await always()
            return Verdict("allow", "a person allowed it", hard=False)
        return Verdict("deny", answered.why, hard=False)

    async def _always(self, tool: Tool, args: BaseModel, context: ToolContext) -> None:
        """Allow such calls from now on, in this turn too. The call runs even if that cannot be kept."""
        try:
            rule = rule_for(tool, args, context)
            if rule is None:
                self._note("always_asked", f"calls of {tool.name} like this one are asked about each time")
                return
            self._context.config = with_rule(self._context.config, tool.name, rule)
            await self._services.remember(tool.name, rule)
        except QworkspaceError as error:
            logger.warning("the answer `always` for %s is not kept: %s", tool.name, error.message)
            self._note("not_remembered", f"it is allowed in this turn, but not kept: {error.message}")
        else:
            self._note("remembered", f"agent.json allows {tool.name} for {rule.pattern!r} from now on")

    def _note(self, code: str, message: str) -> None:
        self._live.emit("notice", {"code": code, "message": message})

    async def _create_approval(self, call: ToolCallPart, verdict: Verdict) -> Approval:
        wait = timedelta(seconds=self._context.config.running.approval_timeout)
        return await self._services.approvals.create(
            agent_id=self._context.scope.agent_id,
            session_id=self._live.session_id,
            turn_id=self._live.id,
            call_id=call.id,
            tool=call.name,
            args=call.args,
            reason=verdict.reason,
            expires_at=self._services.clock.now() + wait,
            source=self._context.request.source,
            user_id=self._context.request.user_id,
        )

    def _tool_context(self, call: ToolCallPart) -> ToolContext:
        return ToolContext(
            scope=self._context.scope,
            config=self._context.config,
            clock=self._services.clock,
            call_id=call.id,
            files=self._services.files,
            spill=self._services.spill,
            emit=self._context.emit,
        )


@lru_cache(maxsize=1000)
def schema_of(args: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, without titles that only cost tokens; for reading only.

    Kept, as it is the same for all agents: to make those of the built-in tools takes longer than the rest of a turn.
    """
    schema = args.model_json_schema()
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return schema


def _offered(context: TurnContext, mode: Mode | None) -> Iterator[Tool]:
    for tool in context.extensions.tools.values():
        if enabled(tool, context.config) and (mode is None or mode.tools is None or tool.name in mode.tools):
            yield tool


def _arguments(tool: Tool, call: ToolCallPart) -> BaseModel:
    if call.raw is not None:
        raise ValueError("they must be one JSON object")
    try:
        return tool.args.model_validate(call.args)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()]
        raise ValueError("; ".join(problems)) from None


def _approval_facts(approval: Approval) -> dict[str, Any]:
    return {
        "approval_id": approval.id,
        "call_id": approval.call_id,
        "name": approval.tool,
        "args": approval.args,
        "reason": approval.reason,
        "source": approval.source,
        "expires_at": approval.expires_at.isoformat(),
    }
