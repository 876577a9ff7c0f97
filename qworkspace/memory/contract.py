"""What every memory backend promises, and the registry that an agent's `memory_manager_backend` is looked up in."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from qworkspace.base.registry import Registry
from qworkspace.base.scope import Scope
from qworkspace.sessions.models import Message

logger = logging.getLogger(__name__)

Origin = Literal["vault", "database"]
MemoryEffect = Literal["read", "write"]
SummarizeReason = Literal["interval", "compact", "new", "idle", "start", "asked"]


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for. `since` and `until` are days, both inclusive; `path_prefix` is `memory/` or the like."""

    text: str
    max_results: int = 5
    min_score: float = 0.0
    path_prefix: str = ""
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage of a note: lines count from 1, both inclusive; `score` is 0-1 within its search.

    `vector_rank` and `bm25_rank` count from 1, None where that signal did not find it; `parts` are what each signal
    has added to the score.
    """

    path: str
    start_line: int
    end_line: int
    text: str
    score: float
    vector_rank: int | None = None
    bm25_rank: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    heading: tuple[str, ...] = ()
    date: date | None = None
    origin: Origin = "vault"


@dataclass(frozen=True, slots=True)
class Found:
    """Hits, best first. `partial` says why not everything was searched; empty when everything was."""

    hits: tuple[Hit, ...] = ()
    partial: str = ""


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """How a backend is. `pending` counts files and tasks that wait; 0 when what is written can be found."""

    backend: str
    state: Literal["off", "ready", "indexing", "waiting", "failed"]
    files: int = 0
    chunks: int = 0
    pending: int = 0
    embedder: str = "none"
    problems: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryTurn:
    """A turn as a memory backend sees it. `reply` is there from `on_reply` on."""

    scope: Scope
    message: Message
    history: Sequence[Message]
    at: datetime
    reply: str = ""

    @property
    def source(self) -> str:
        """Who began the turn: a person (`chat`, `api`) or the daemon itself."""
        return self.scope.source


class MemoryMiddleware(Protocol):
    """How a backend takes part in turns. What it raises is reported and skipped; a turn never fails by it."""

    async def on_system_prompt(self, turn: MemoryTurn) -> str:
        """What the agent is told about its memory; empty for nothing."""

    async def on_model_call(self, turn: MemoryTurn) -> Found:
        """What is recalled for the user's message, within its limits of time and tokens. Called once per turn."""

    async def on_reply(self, turn: MemoryTurn) -> None:
        """The turn has its answer. Quick: work is queued."""

    async def on_compress_context(self, turn: MemoryTurn) -> None:
        """What was said before is about to become a summary. Quick: work is queued."""


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """A function that a model may call. `args` validates and is its JSON schema; `target(args)` is what it touches."""

    name: str
    description: str
    args: type[BaseModel]
    run: Callable[[Scope, Any], Awaitable[str]]
    effect: MemoryEffect
    target: Callable[[Any], str]


class Unmoved:
    """What a memory is told and may ignore."""

    def activate(self) -> None:
        """Begin to act: index, work off the queue."""

    def deactivate(self) -> None:
        """Stop acting at once; searches are still answered."""

    def prepare(self) -> None:
        """A search is likely to come soon. Quick: what it needs is opened in the background."""

    def files_changed(self, names: Collection[str] | None) -> None:
        """These files of the workspace are new, different or gone; None: any may be. Quick: work is begun."""

    def wake(self) -> None:
        """What work waits for may be there, for example a model. Quick: it is tried again."""

    async def replied(self, turn: MemoryTurn) -> None:
        """The turn has its answer, which is stored soon. Quick: work is queued."""

    async def leaving(self, session_id: str, reason: SummarizeReason) -> None:
        """What was said in the session is about to leave the context (`new`, `compact`). Quick: work is queued."""

    async def forget(self, session_id: str) -> None:
        """A person has deleted the session: what is kept of it word for word goes too; notes stay."""

    async def add_summarize_task(self, session_id: str, *, reason: SummarizeReason, upto_turn: str = "") -> None:
        """Queue what is new in a session (up to that turn, inclusive) for extraction. Durable when it returns."""


class BaseMemoryManager(Unmoved, ABC):
    """The memory of one agent, a service of its workspace: `start`, `activate`, `deactivate`, `stop`.

    `stop` is `close` under the name of the life cycle. What a backend cannot do, it leaves as it is here.
    """

    backend: str = ""

    @abstractmethod
    async def start(self) -> None:
        """Make ready; no effect outside. May raise: memory is optional, and its absence is shown."""

    @abstractmethod
    async def close(self) -> None:
        """Free everything; idempotent. What is queued stays queued, durably."""

    async def stop(self) -> None:
        await self.close()

    @abstractmethod
    def get_memory_prompt(self) -> str:
        """What the system prompt says about how to use memory, in the agent's language."""

    @abstractmethod
    def list_memory_tools(self) -> list[MemoryTool]:
        """The tools that the agent gets."""

    @abstractmethod
    def get_auto_memory_interval(self) -> int:
        """User turns between two extractions; 0 is never."""

    @abstractmethod
    def build_middlewares(self) -> list[MemoryMiddleware]:
        """How it takes part in turns."""

    @abstractmethod
    def status(self) -> MemoryStatus:
        """How it is now: quick, from what is known."""

    @property
    def busy(self) -> bool:
        """Whether work is under way that an unload should wait for; not what waits for something else."""
        return False

    async def search(self, query: Query) -> Found:
        """The best passages for the query. Waits at most 2 s for a locked index."""
        return Found(partial="this agent has no memory")

    async def summarize(self, session_id: str) -> int:
        """Extract what is new in the session now; the number of facts that were kept."""
        return 0

    async def auto_memory(self, session_id: str) -> int:
        """What the queue runs for one task; the number of facts that were kept."""
        return 0

    async def auto_memory_search(self, turn: MemoryTurn) -> Found:
        """Recall before an answer."""
        return Found()

    async def auto_resource(self) -> int:
        """Read new documents of the resource directory into digest notes; their number."""
        return 0

    async def dream(self) -> Mapping[str, Any]:
        """Consolidate; JSON facts about what changed, `{"changed": false, "reason": …}` when nothing did."""
        return {"changed": False, "reason": "this backend does not dream"}


class NoMemory(BaseMemoryManager):
    """An agent that remembers nothing beyond its conversations."""

    backend = "none"

    async def start(self) -> None:
        """Nothing is to be made ready."""

    async def close(self) -> None:
        """Nothing is held."""

    def get_memory_prompt(self) -> str:
        return ""

    def list_memory_tools(self) -> list[MemoryTool]:
        return []

    def get_auto_memory_interval(self) -> int:
        return 0

    def build_middlewares(self) -> list[MemoryMiddleware]:
        return []

    def status(self) -> MemoryStatus:
        return MemoryStatus(self.backend, "off")


Make = Callable[[Any], BaseMemoryManager]
"""A backend's constructor; its argument is the `MemoryParts` of the workspace."""


class MemoryBackends:
    """The backends of a daemon by name, with aliases. The first registered one stands in for unknown names."""

    def __init__(self) -> None:
        self._backends: Registry[Make] = Registry("memory backend")
        self._aliases: dict[str, str] = {}
        self._first = ""

    def add(self, name: str, make: Make, *, owner: str, aliases: Sequence[str] = ()) -> Callable[[], None]:
        """Register a backend; the answer takes it out again. A taken name or alias is refused."""
        undo = self._backends.add(name, make, owner=owner)
        self._aliases |= dict.fromkeys(aliases, name)
        self._first = self._first or name

        def remove() -> None:
            undo()
            for alias in aliases:
                self._aliases.pop(alias, None)

        return remove

    def choose(self, name: str) -> tuple[str, Make, str]:
        """(name, constructor, warning): an unknown name falls back to the first backend, with a warning."""
        known = self._aliases.get(name, name)
        make = self._backends.find(known)
        if make is not None:
            return known, make, ""
        names = ", ".join(repr(other) for other in [*self._backends, *self._aliases])
        warning = f"there is no memory backend {name!r}; {self._first!r} is used instead (known: {names})"
        first = self._backends.find(self._first)
        assert first is not None, "a daemon has at least one memory backend"
        return self._first, first, warning
