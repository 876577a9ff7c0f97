"""The tools through which an agent uses its memory: memory_search, memory_get, memory_write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qworkspace.base.scope import Scope
from qworkspace.memory.contract import Found, Hit, MemoryTool, Query
from qworkspace.memory.notes import Author
from qworkspace.memory.prompts import words_of
from qworkspace.memory.vault import AgentMdManager

File = Literal["today", "MEMORY.md", "PROFILE.md", "AGENTS.md"]
TODAY: Literal["today"] = "today"

Ready = Callable[[], Awaitable[None]]
Search = Callable[[Query], Awaitable[Found]]


class SearchArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=4_000, description="The whole question, in its own words")
    max_results: int = Field(default=5, ge=1, le=50, description="Passages at most")
    min_score: float = Field(default=0.0, ge=0, le=1, description="Leave it at 0: raising it loses answers")
    path_prefix: str = Field(default="", max_length=1_000, description='Only notes below it, for example "memory/"')
    since: date | None = Field(default=None, description="Only from this day on, YYYY-MM-DD")
    until: date | None = Field(default=None, description="Only up to this day, YYYY-MM-DD")


class GetArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=1_000, description='A note, for example "memory/2026-01-31.md"')
    start_line: int = Field(default=1, ge=1, description="First line")
    end_line: int | None = Field(default=None, ge=1, description="Last line; default: the end")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end_line is not None and self.end_line < self.start_line:
            raise ValueError(f"end_line {self.end_line} comes before start_line {self.start_line}")
        return self


class WriteArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=100_000, description="What to keep, in markdown")
    file: File = Field(default=TODAY, description="Where: today's note, or one of the lasting files")
    section: str = Field(
        default="", max_length=200, description="With a lasting file: the heading whose text is replaced, without #"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.file == TODAY and not self.text.strip():
            raise ValueError("text is empty: there is nothing to keep")
        if self.file != TODAY and not self.section.strip("# \t\n"):
            raise ValueError(f"section is needed for {self.file}: name the heading whose text is replaced")
        return self


def memory_tools(vault: AgentMdManager, ready: Ready, search: Search, language: str) -> list[MemoryTool]:
    """The three tools. After `ready` the vault may be changed."""
    words = words_of(language)

    async def find(scope: Scope, args: SearchArgs) -> str:
        query = Query(args.query, args.max_results, args.min_score, args.path_prefix, args.since, args.until)
        return as_text(await search(query))

    async def get(scope: Scope, args: GetArgs) -> str:
        note = await vault.read(args.path)
        return excerpt(note.text, args.start_line, args.end_line, note.name)

    async def write(scope: Scope, args: WriteArgs) -> str:
        author = Author("tool", scope.session_id, scope.turn_id)
        await ready()
        if args.file == TODAY:
            change = await vault.append(vault.today(), as_lines(args.text), by=author)
            return f"kept in {change.path}"
        change = await vault.replace_section(args.file, args.section.strip("# \t\n"), args.text, by=author)
        return f"{change.path} has said so already" if change.repeated else f"kept in {change.path} ({change.id})"

    def written(args: WriteArgs) -> str:
        return vault.today() if args.file == TODAY else str(args.file)

    return [
        MemoryTool("memory_search", words.search, SearchArgs, find, "read", lambda args: str(args.query)),
        MemoryTool("memory_get", words.get, GetArgs, get, "read", lambda args: str(args.path)),
        MemoryTool("memory_write", words.write, WriteArgs, write, "write", written),
    ]


def as_lines(text: str) -> list[str]:
    """The lines to add to a daily note; a single plain sentence becomes a list item like the others."""
    lines = text.strip("\n").rstrip().splitlines()
    if len(lines) == 1 and lines[0][:1] not in "-*+#>|`<" and not lines[0][:1].isspace():
        return [f"- {lines[0]}"]
    return lines


def as_text(found: Found) -> str:
    """Passages as the model reads them, each with where it is and why it was found."""
    partial = [f"Not everything was searched: {found.partial}."] if found.partial else []
    if not found.hits:
        return "\n".join([*partial, "Nothing was found. Try other words, or a shorter question."])
    return "\n\n".join([*partial, *(_shown(number, hit) for number, hit in enumerate(found.hits, 1))])


def _shown(number: int, hit: Hit) -> str:
    why = [f"score {hit.score:.2f}"]
    why += [f"words #{hit.bm25_rank}"] if hit.bm25_rank is not None else []
    why += [f"meaning #{hit.vector_rank}"] if hit.vector_rank is not None else []
    heading = f" · {' > '.join(hit.heading)}" if hit.heading else ""
    return f"{number}. {hit.path}:{hit.start_line}-{hit.end_line}{heading} ({', '.join(why)})\n{hit.text}"


def excerpt(text: str, start: int, end: int | None, name: str) -> str:
    """The named lines under a line that says which they are."""
    lines = text.removesuffix("\n").split("\n")  # as chunks count them; other line ends are text
    if not text:
        return f"{name} is empty"
    last = min(end if end is not None else len(lines), len(lines))
    if start > len(lines):
        return f"{name} has {len(lines)} lines"
    return "\n".join([f"{name}, lines {start}-{last} of {len(lines)}:", *lines[start - 1 : last]])
