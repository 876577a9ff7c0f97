"""Turns of one agent over real stores: only the models, the tools and the time are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from pydantic import BaseModel

from qworkspace.approvals import MIGRATIONS as APPROVAL_TABLES
from qworkspace.approvals import ApprovalStore
from qworkspace.base.clock import SimulatedClock
from qworkspace.base.database import Database
from qworkspace.base.events import Event, EventBus
from qworkspace.base.files import Root
from qworkspace.base.ids import AgentId, SessionId
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat import commands
from qworkspace.chat.closing import Closer
from qworkspace.chat.compactor import Compactor
from qworkspace.chat.controls import Controls
from qworkspace.chat.live import LiveTurn
from qworkspace.chat.models import ModelSource
from qworkspace.chat.prompt import PromptMaker
from qworkspace.chat.reliable import RetryPolicy
from qworkspace.chat.runner import TurnRunner
from qworkspace.chat.toolbox import ToolServices
from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.turn import TurnMachine, TurnParts
from qworkspace.chat.wire import Finished, FinishReason, ModelEvent, Prompt, ReasoningDelta, TextDelta
from qworkspace.config.models import AgentConfig, ModelRef, PolicyRule, Price, TimeoutsConfig
from qworkspace.plugins.extensions import (
    Decision,
    Effect,
    Extensions,
    Hook,
    HookPoint,
    Tool,
    ToolContext,
    ToolOutput,
    TurnContext,
)
from qworkspace.sessions.models import Message, TextPart, ToolCallPart, Turn, TurnRequest, Usage, user_message
from qworkspace.sessions.store import SessionStore

T = TypeVar("T")
AGENT = AgentId("anna")
Step = str | float | Exception | asyncio.Event | ReasoningDelta | ToolCallPart
Execute = Callable[[LiveTurn], Awaitable[None]]


class InlineThreads(Threads):
    """Runs blocking work at once, so that simulated time stays in step with it."""

    def __init__(self) -> None: ...

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(function())
        except Exception as error:
            done.set_exception(error)
        return done

    def close(self) -> None: ...


@dataclass(frozen=True)
class Answer:
    """What a scripted model does when it is asked: text, thoughts, pauses (seconds), gates, failures, tool calls."""

    steps: tuple[Step, ...]
    reason: FinishReason | None = None


def says(*steps: Step, reason: FinishReason | None = None) -> Answer:
    return Answer(steps, reason)


def call(name: str, id: str = "c1", **args: Any) -> ToolCallPart:
    return ToolCallPart(id=id, name=name, args=args)


class ScriptedModel:
    """Goes through one answer per request; without any left `script` says which. Keeps all prompts."""

    vision = False
    price: Price | None = None

    def __init__(self, clock: SimulatedClock, name: str = "one") -> None:
        self.ref = ModelRef(provider="test", name=name)
        self.clock = clock
        self.answers: list[Answer] = []
        self.script: Callable[[Prompt], Answer] = lambda prompt: says(f"echo: {_last_text(prompt)}")
        self.prompts: list[Prompt] = []
        self.open = 0
        self.context_window = 100_000
        self.timeouts = TimeoutsConfig()

    def will(self, *answers: Answer | str) -> None:
        """Answer like this, one after another."""
        self.answers += [says(answer) if isinstance(answer, str) else answer for answer in answers]

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        self.prompts.append(replace(prompt, messages=list(prompt.messages)))
        answer = self.answers.pop(0) if self.answers else self.script(prompt)
        text, asked = "", list[ToolCallPart]()
        self.open += 1
        try:
            for step in answer.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, float):
                    await self.clock.sleep(step)
                elif isinstance(step, ToolCallPart):
                    asked.append(step)
                else:
                    text += step if isinstance(step, str) else ""
                    yield TextDelta(step) if isinstance(step, str) else step
            yield _finished(text, asked, answer.reason)
        finally:
            self.open -= 1


def _last_text(prompt: Prompt) -> str:
    last = prompt.messages[-1]
    return last.text or " ".join(part.text for part in last.parts if part.type == "tool_result")


def _finished(text: str, asked: Sequence[ToolCallPart], reason: FinishReason | None) -> Finished:
    said = (TextPart(text=text),) if text else ()
    usage = Usage(input_tokens=10, output_tokens=5, requests=1)
    return Finished(
        Message(role="assistant", parts=(*said, *asked)), usage, reason or ("tool_calls" if asked else "stop")
    )


class ScriptedModels:
    """Stands in for `ModelSource`: the agent's model, and others by name."""

    def __init__(self, *models: ScriptedModel) -> None:
        self._models = {str(model.ref): model for model in models}

    def chain(self, config: AgentConfig, override: ModelRef | None = None, role: str | None = None) -> list[ModelRef]:
        first = override or next(iter(self._models.values())).ref
        return [first, *(ref for ref in config.fallback_models if ref != first)]

    def names(self) -> list[str]:
        return list(self._models)

    async def get(self, ref: ModelRef) -> ScriptedModel:
        return self._models[str(ref)]


class Words(BaseModel):
    """Arguments of the bench's tools."""

    text: str = ""


@dataclass
class TurnBench:
    """One agent: its journal, its models, its runner. `async with` opens and ends it; `restart` is a new process."""

    directory: Path
    config: AgentConfig = field(default_factory=lambda: AgentConfig(id=AGENT))
    execute: Execute | None = None
    queue_limit: int = 20
    ran: list[str] = field(default_factory=list)
    spilled: list[str] = field(default_factory=list)
    remembered: list[tuple[str, PolicyRule]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SimulatedClock()
        self.model = ScriptedModel(self.clock)
        self.second = ScriptedModel(self.clock, "two")
        self.extensions = Extensions()
        commands.install(self.extensions)
        self.policy = RetryPolicy(attempts=1)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def restart(self) -> None:
        """End this process as `kill -9` does, as far as the stores can tell, and begin another one."""
        await self.kill()
        await self._open()

    async def kill(self) -> None:
        """Nothing more is stored from now on."""
        await self.store.stop()
        await self.database.close()
        await self.runner.stop()
        await self.approvals.stop()

    async def _open(self) -> None:
        threads = InlineThreads()
        self.bus = EventBus(self.clock)
        self.problems = Problems(self.clock, self.bus)
        self.database = Database(self.directory / "home.db", migrations={"approvals": APPROVAL_TABLES}, threads=threads)
        await self.database.open()
        self.approvals = ApprovalStore(self.database, clock=self.clock, bus=self.bus)
        await self.approvals.start()
        self.store = SessionStore(
            self.directory / ".state", clock=self.clock, threads=threads, problems=self.problems, agent_id=AGENT
        )
        await self.store.start()
        self.closer = Closer(self.store, self.bus, self.clock, agent_id=AGENT)
        self.machine = TurnMachine(self._parts(threads), self.closer)
        self.runner = TurnRunner(
            self.store,
            self.execute or self.machine.execute,
            self.closer,
            agent_id=AGENT,
            clock=self.clock,
            interrupts=lambda request: request.message.text.startswith(("/stop", "/new")),
            queue_limit=lambda: self.queue_limit,
        )
        models = cast(ModelSource, self.models)
        self.controls = Controls(self.runner, self.store, models, self.compactor, lambda: self.config, self.extensions)
        self.machine.controls = self.controls

    def _parts(self, threads: Threads) -> TurnParts:
        self.models = ScriptedModels(self.model, self.second)
        self.compactor = Compactor(self.store, config=lambda: self.config, policy=self.policy, clock=self.clock)
        root = Root(self.directory)
        return TurnParts(
            agent_id=AGENT,
            workspace_dir=self.directory,
            config=lambda: self.config,
            extensions=self.extensions,
            sessions=self.store,
            models=cast(ModelSource, self.models),
            prompts=PromptMaker(AGENT, root, timezone=lambda: "UTC", threads=threads, problems=self.problems),
            compactor=self.compactor,
            tools=self.tool_services(),
            bus=self.bus,
            problems=self.problems,
            clock=self.clock,
            policy=self.policy,
        )

    def tool_services(self) -> ToolServices:
        async def spill(text: str) -> str:
            self.spilled.append(text)
            return f"files/.outputs/out_{len(self.spilled)}.txt"

        return ToolServices(
            sessions=self.store,
            approvals=self.approvals,
            files=Fence(self.directory, self.directory.parent),
            spill=spill,
            remember=lambda tool, rule: self.remember(tool, rule),
            clock=self.clock,
        )

    async def remember(self, tool: str, rule: PolicyRule) -> None:
        self.remembered.append((tool, rule))

    async def _close(self) -> None:
        await self.runner.stop()
        await self.approvals.stop()
        await self.store.stop()
        await self.database.close()

    # what a test says and asks

    def request(self, text: str, session: str = "s1", **more: Any) -> TurnRequest:
        return TurnRequest(AGENT, SessionId(session), user_message(text), **more)

    async def send(self, text: str, session: str = "s1", **more: Any) -> LiveTurn:
        """Submit a message; its turn."""
        return await self.runner.submit(self.request(text, session, **more))

    async def ask(self, text: str, session: str = "s1", **more: Any) -> Turn:
        """Submit a message and wait until its turn has ended."""
        return await ended(await self.send(text, session, **more))

    async def said(self, session: str = "s1") -> list[tuple[str, str]]:
        """(role, text) of the stored messages; results of tools as their text."""
        stored, _ = await self.store.messages(session)
        return [(item.message.role, _shown(item.message)) for item in stored]

    async def states(self, session: str = "s1") -> list[str]:
        """The states of the session's turns, the oldest first."""
        turns, _ = await self.store.turns(session)
        return [str(turn.state) for turn in reversed(turns)]

    def tool(
        self,
        name: str = "note",
        run: Callable[[ToolContext, Words], Awaitable[ToolOutput]] | None = None,
        *,
        effect: Effect = "write",
        default: Decision = "allow",
    ) -> None:
        """Register a tool that writes into `ran` and answers `done: TEXT`, or does what `run` does."""

        async def noted(context: ToolContext, args: Words) -> ToolOutput:
            self.ran.append(args.text)
            return ToolOutput(f"done: {args.text}")

        tool = Tool(name, f"The tool {name}.", Words, run or noted, effect, lambda args: str(args.text), default)
        self.extensions.tools.add(name, tool, owner="test")

    def hook(
        self,
        point: HookPoint,
        run: Callable[[TurnContext], Awaitable[None]],
        *,
        name: str = "",
        essential: bool = False,
    ) -> None:
        """Register a hook."""
        self.extensions.hooks.add(name or f"on-{point}", Hook(point, run, essential), owner="test")

    def events(self, *types: str) -> list[dict[str, Any]]:
        """The data of the bus' events of these types."""
        return [event.data for event in self.bus.log.since(0) if event.type in types]


async def ended(live: LiveTurn) -> Turn:
    """The turn once it has ended."""
    async with asyncio.timeout(5):
        return await asyncio.shield(live.done)


async def reached(live: LiveTurn, type: str, count: int = 1) -> Event:
    """The event of that type once it has come (that often)."""
    async with asyncio.timeout(5):
        async for event in live.log.follow(0):
            count -= event.type == type
            if count == 0:
                return event
    raise AssertionError(f"the turn ended without {type}")


def kinds(live: LiveTurn) -> list[str]:
    """The types of the turn's events so far, pieces of text once."""
    found = [event.type for event in live.log.since(0)]
    return [kind for at, kind in enumerate(found) if at == 0 or kind != "text.delta" or found[at - 1] != kind]


def notices(live: LiveTurn) -> list[str]:
    """The codes of the turn's notices."""
    return [event.data["code"] for event in live.log.since(0) if event.type == "notice"]


def streamed(live: LiveTurn) -> str:
    """All pieces of text together."""
    return "".join(event.data["text"] for event in live.log.since(0) if event.type == "text.delta")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, five seconds at most."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def _shown(message: Message) -> str:
    results = [part.text for part in message.parts if part.type == "tool_result"]
    return message.text or " ".join(results)
