"""What can be added to a workspace: hooks, slash commands, tools, prompt parts, modes; and what they are given.

Each workspace has its own `Extensions`; nothing in it is shared with another agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from qworkspace.base.clock import Clock
from qworkspace.base.registry import Registry
from qworkspace.base.scope import Scope
from qworkspace.config.models import AgentConfig
from qworkspace.sessions.models import Message, ToolOutcome, TurnRequest, Usage


class Phase(StrEnum):
    """The eight phases of a turn, in their order; ON_ERROR only when something failed."""

    PRE_DISPATCH = "pre_dispatch"
    POST_DISPATCH = "post_dispatch"
    PRE_AGENT_BUILD = "pre_agent_build"
    POST_AGENT_BUILD = "post_agent_build"
    PRE_EXECUTE = "pre_execute"
    POST_RESPONSE = "post_response"
    ON_ERROR = "on_error"
    FINALLY = "finally"


class LoopHook(StrEnum):
    """The four places inside the model loop where a memory backend takes part."""

    ON_SYSTEM_PROMPT = "on_system_prompt"
    ON_MODEL_CALL = "on_model_call"
    ON_REPLY = "on_reply"
    ON_COMPRESS_CONTEXT = "on_compress_context"


HookPoint = Phase | LoopHook


@dataclass(frozen=True, slots=True)
class ContextNote:
    """Something put into a turn's context and where it came from (shown as "why did you say that?")."""

    kind: str
    title: str
    text: str
    origin: dict[str, Any] = field(default_factory=dict)


class TurnControls(Protocol):
    """What commands and hooks may do to the conversation they run in."""

    async def stop(self, session_id: str) -> bool:
        """Cancel the running turn and drop the queued ones; False when nothing ran."""

    async def start_afresh(self, session_id: str) -> None:
        """Later turns no longer see what was said before; the messages stay stored."""

    async def compact(self, session_id: str) -> str:
        """Summarise the older part of the history now; a sentence for the user."""

    async def resume(self, session_id: str, turn_id: str | None = None) -> str:
        """Carry on the named (default: the last) interrupted turn; its id."""

    async def choose_model(self, session_id: str, name: str | None) -> str:
        """Use `provider/name` in this session (None: the agent's own); the one in use from now on."""

    async def choose_mode(self, session_id: str, name: str | None) -> str | None:
        """Work in the mode of that name in this session (None: in none); the one in force from now on."""

    def model_names(self) -> list[str]:
        """Every configured `provider/name`."""

    async def status(self, session_id: str) -> dict[str, Any]:
        """Plain facts about the agent and the session: JSON values."""


@dataclass(slots=True)
class TurnContext:
    """One turn as hooks see it. Hooks change it in place:

    `notes` is appended to the model's context (as data, with its origin), `message` may be replaced,
    `answer` set to a text answers directly without a model, `system` (from PRE_EXECUTE on) is the prompt,
    `recalled` says that memory was searched for this turn already.
    """

    scope: Scope
    request: TurnRequest
    config: AgentConfig
    extensions: Extensions
    controls: TurnControls
    clock: Clock
    message: Message
    emit: Callable[[str, dict[str, Any]], object]
    notes: list[ContextNote] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    answer: str | None = None
    reply: str = ""
    usage: Usage = field(default_factory=Usage)
    error: BaseException | None = None
    history: list[Message] = field(default_factory=list)
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class Hook:
    """Runs at `point`. When it fails it is reported and skipped; an `essential` one fails the turn."""

    point: HookPoint
    run: Callable[[TurnContext], Awaitable[None]]
    essential: bool = False


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """`/name rest` answered without a model. `run` gets the context and the rest, stripped."""

    name: str
    summary: str
    run: Callable[[TurnContext, str], Awaitable[str]]
    usage: str = ""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A contribution to the system prompt; an empty text contributes nothing."""

    render: Callable[[TurnContext], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Mode:
    """A way of working that a session can be in: an extra prompt, and the tools that stay available."""

    name: str
    summary: str
    prompt: str = ""
    tools: frozenset[str] | None = None


Effect = Literal["read", "write", "execute", "network"]
Decision = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may happen to a call, and why. A `hard` one is opened by no setting and no person."""

    decision: Decision
    reason: str
    hard: bool = False


@dataclass(frozen=True, slots=True)
class FileContent:
    """Bytes of a file from `offset` on, and the size of the whole."""

    data: bytes
    size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One name in a directory; `size` in bytes, `modified` in seconds since 1970, of a link its own."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    modified: float


class FileReader(Protocol):
    """Reads many files and directories in a row. All of it blocks: use it in a thread."""

    def open(self, name: str) -> int:
        """A descriptor of a regular file, for reading."""

    def entries(self, name: str) -> list[FileEntry]:
        """What is in a directory, by name, without what is closed; links are shown as such."""


class FileAccess(Protocol):
    """The files that tools may touch. Names are relative to the workspace and are checked at each use.

    `Denied` for what is closed, `InvalidPath` for what is no name here, `StorageError` when the disk refuses.
    `control=True` is for a tool whose `review` has had a person asked: only then control files are written.
    """

    root: Path

    def relative(self, name: str) -> str:
        """The one way to write `name`: relative, without `.` and `//`. An absolute path inside is accepted."""

    def resolved(self, name: str) -> str:
        """Where `name` leads when symlinks are followed, relative too."""

    def judge(self, name: str, effect: Literal["read", "write"]) -> Verdict:
        """Whether a tool may, by the rules of the workspace alone: quick, may be called on the event loop."""

    def judge_path(self, path: Path) -> Verdict:
        """What the rules say about an absolute path anywhere, as a command may name it: with shell patterns too."""

    async def read(self, name: str, *, limit: int, from_end: bool = False) -> FileContent:
        """At most `limit` bytes from the beginning or the end of a regular file."""

    async def write(self, name: str, data: bytes, *, control: bool = False) -> bool:
        """Replace or make the file, with its directories, in one step; True when it is new."""

    async def change(self, name: str, edit: Callable[[bytes | None], bytes], *, control: bool = False) -> bool:
        """Write what `edit` (run in a thread) makes of the content (None: no file); again if it changed meanwhile."""

    def reader(self) -> FileReader:
        """For looking through many files."""

    async def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none when it is not there."""

    async def remove(self, name: str, *, control: bool = False) -> None:
        """Take a file or a link away; one that is gone is no error."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool is given. `spill(text)` keeps long output whole and returns its relative path."""

    scope: Scope
    config: AgentConfig
    clock: Clock
    call_id: str
    files: FileAccess
    spill: Callable[[str], Awaitable[str]]
    emit: Callable[[str, dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool answers; `text` goes to the model, already within the output limit or shortened later."""

    text: str
    outcome: ToolOutcome = "ok"


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that a model may call. `args` validates what it sent and is its JSON schema.

    `target(args)` is the text that the guard's argument patterns are matched against (a path, a command, a URL).
    `targets(args, context)` is all that the call touches, when that is more: an allowing pattern must match each of
    them, an asking or denying one any; None says that it cannot be told, then only the very target or `*` allows.
    `review(args, context)` is the tool's own least decision for these arguments, before configuration; "deny" is hard.
    A tool is cancelled like any task and must end its children then.
    """

    name: str
    description: str
    args: type[BaseModel]
    run: Callable[[ToolContext, Any], Awaitable[ToolOutput]]
    effect: Effect
    target: Callable[[Any], str]
    default: Decision = "allow"
    review: Callable[[Any, ToolContext], Decision | Verdict] | None = None
    targets: Callable[[Any, ToolContext], list[str] | None] | None = None


class Extensions:
    """The five registries of one workspace."""

    def __init__(self) -> None:
        self.commands: Registry[SlashCommand] = Registry("slash command")
        self.hooks: Registry[Hook] = Registry("hook")
        self.tools: Registry[Tool] = Registry("tool")
        self.prompts: Registry[PromptPart] = Registry("prompt part")
        self.modes: Registry[Mode] = Registry("mode")

    def hooks_at(self, point: HookPoint) -> list[tuple[str, str, Hook]]:
        """(name, owner, hook) of that point, by priority."""
        return [(e.name, e.owner, e.value) for e in self.hooks.entries() if e.value.point == point]

    def remove_owner(self, owner: str) -> None:
        """Take away everything of one plugin."""
        for registry in (self.commands, self.hooks, self.tools, self.prompts, self.modes):
            registry.remove_owner(owner)


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """A plugin that could not be loaded, and the traceback that says why."""

    plugin: str
    folder: Path | None
    error: str
