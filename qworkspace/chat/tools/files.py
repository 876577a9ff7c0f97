"""`read_file`, `write_file`, `edit_file`, `list_files`, `search_files`: the workspace's files, inside of the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qworkspace.base.text import clean_text
from qworkspace.chat.tools.output import answers
from qworkspace.chat.tools.search import Budget, Found, Walk, compiled, search, within
from qworkspace.chat.tools.text import Text, binary_type, decoded, lines_of, replaced
from qworkspace.errors import InvalidInput, NotFound
from qworkspace.plugins.extensions import FileContent, FileEntry, Tool, ToolContext, ToolOutput, Verdict

READ_BYTES = 10_000_000
LISTED = 500
REMARK_CHARS = 300

Place = Annotated[str, Field(min_length=1, max_length=1024, description="Relative to the workspace, e.g. files/a.md")]


class _Args(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)


class ReadFile(_Args):
    path: Place
    start_line: Annotated[int, Field(description="First line, from 1; -20 begins 20 lines before the end")] = 1
    lines: Annotated[int, Field(ge=1, le=100_000, description="How many; as many as fit are shown")] = 2_000


class WriteFile(_Args):
    path: Place
    content: Annotated[Text, Field(max_length=READ_BYTES, description="The whole text, or what is added to it")]
    append: Annotated[bool, Field(description="Add to the end instead of replacing the file")] = False


class EditFile(_Args):
    path: Place
    old: Annotated[Text, Field(min_length=1, max_length=READ_BYTES, description="Text that is there exactly once")]
    new: Annotated[Text, Field(max_length=READ_BYTES, description="What takes its place")]
    all: Annotated[bool, Field(description="Replace it everywhere")] = False


class ListFiles(_Args):
    path: Annotated[str, Field(max_length=1024, description="A directory, relative to the workspace")] = "."
    depth: Annotated[int, Field(ge=1, le=20, description="Levels of directories shown")] = 1
    glob: Annotated[str | None, Field(description='Only files like "*.md"')] = None


class SearchFiles(_Args):
    pattern: Annotated[Text, Field(min_length=1, max_length=500, description="Regular expression (RE2), line by line")]
    path: Annotated[str, Field(max_length=1024, description="Directory or file, relative to the workspace")] = "."
    glob: Annotated[str | None, Field(description='Only files like "*.md" or "memory/*"')] = None
    literal: Annotated[bool, Field(description="The pattern is the text itself")] = False
    ignore_case: bool = False
    max_results: Annotated[int, Field(ge=1, le=500)] = 50


@answers
async def read_file(context: ToolContext, args: ReadFile) -> ToolOutput:
    """The asked lines of a text file, as many as fit."""
    content = await context.files.read(args.path, limit=READ_BYTES, from_end=args.start_line < 0)
    limit = context.config.running.tool_output_chars - REMARK_CHARS
    return ToolOutput(await asyncio.to_thread(_shown, content, args, limit))


def _shown(content: FileContent, args: ReadFile, limit: int) -> str:
    kind = binary_type(content.data, args.path) if content.offset == 0 else None
    if kind is not None:
        raise InvalidInput(f"{args.path!r} is no text: {kind}, {content.size:,} bytes")
    data, remarks = content.data, []
    if len(data) < content.size:
        where = "last" if content.offset else "first"
        remarks.append(
            f"of {content.size:,} bytes only the {where} {READ_BYTES:,} are looked at; lines count from there"
        )
        data = data[data.find(b"\n") + 1 :] if content.offset else data[: data.rfind(b"\n") + 1] or data
    file = decoded(data)
    if file.damaged:
        remarks.append("not UTF-8: bytes that are no characters are shown as \ufffd")
    part = lines_of(file.shown, args.start_line, args.lines, max(limit, 100))
    if not data:
        remarks.append("the file is empty")
    elif part.last < part.first:
        remarks.append(f"no lines there; the file has {part.total}")
    elif (part.first, part.last) != (1, part.total):
        more = f"; go on with start_line={part.last + 1}" if part.last < part.total else ""
        remarks.append(f"lines {part.first}-{part.last} of {part.total}{more}")
    return "\n".join(filter(None, [part.text, *(f"[{remark}]" for remark in remarks)]))


@answers
async def write_file(context: ToolContext, args: WriteFile) -> ToolOutput:
    """Make or replace a file, or add to its end, in one step."""
    data = clean_text(args.content).encode()
    if args.append:
        new = await context.files.change(args.path, lambda before: _joined(before, data), control=True)
    else:
        new = await context.files.write(args.path, data, control=True)
    did = "made" if new else "added to" if args.append else "replaced"
    return ToolOutput(f"{did} {context.files.relative(args.path)}: {len(data):,} bytes written")


def _joined(before: bytes | None, data: bytes) -> bytes:
    """`data` as further lines of `before`."""
    return b"".join([before, b"" if before.endswith(b"\n") else b"\n", data]) if before else data


@answers
async def edit_file(context: ToolContext, args: EditFile) -> ToolOutput:
    """Replace a text that is there exactly once (or everywhere); line ends and everything else stay as they are."""
    lines: list[int] = []

    def edit(before: bytes | None) -> bytes:
        if before is None:
            raise NotFound("file", args.path, "write_file makes one")
        kind = binary_type(before, args.path)
        if kind is not None:
            raise InvalidInput(f"{args.path!r} is no text: {kind}, {len(before):,} bytes")
        after, lines[:] = replaced(before, args.old, args.new, everywhere=args.all)
        return after

    await context.files.change(args.path, edit, control=True)
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    return ToolOutput(f"edited {context.files.relative(args.path)}, {where}")


@answers
async def list_files(context: ToolContext, args: ListFiles) -> ToolOutput:
    """Names, sizes and times of what is in a directory."""
    budget = Budget(context.clock)
    walk = Walk(context.files.reader(), budget, depth=args.depth)
    return ToolOutput(await within(budget, lambda: _listed(walk, context.files.relative(args.path), args.glob)))


def _listed(walk: Walk, place: str, glob: str | None) -> str:
    shown: list[str] = []
    for path, entry in walk.below(place):
        if glob is None or (entry.kind == "file" and fnmatchcase(path if "/" in glob else entry.name, glob)):
            if len(shown) == LISTED:
                shown.append(f"[only the first {LISTED} are shown; name a directory or a glob]")
                break
            shown.append(_line(path, entry))
    if walk.stopped:
        shown.append("[not everything was looked at; name a smaller directory]")
    return clean_text("\n".join(shown)) or "[nothing there]"


def _line(path: str, entry: FileEntry) -> str:
    if entry.kind != "file":
        return f"{path}/" if entry.kind == "directory" else f"{path} ({entry.kind})"
    changed = datetime.fromtimestamp(entry.modified, UTC)
    return f"{path}  {entry.size:,} bytes  {changed:%Y-%m-%d %H:%M}Z"


@answers
async def search_files(context: ToolContext, args: SearchFiles) -> ToolOutput:
    """Lines that match, each with its file and number."""
    budget = Budget(context.clock)
    walk = Walk(context.files.reader(), budget)

    def work() -> Found:
        pattern = compiled(args.pattern, literal=args.literal, ignore_case=args.ignore_case)
        return search(walk, context.files.relative(args.path), pattern, glob=args.glob, limit=args.max_results)

    found = await within(budget, work)
    return ToolOutput(clean_text("\n".join([*found.matches, _summary(found, walk.stopped)])))


def _summary(found: Found, stopped: bool) -> str:
    parts = [f"{len(found.matches)} matching lines in {found.files} files"]
    if found.more:
        parts.append("there are more: narrow the search or raise max_results")
    if stopped:
        parts.append("not everything was searched: name a smaller directory or a glob")
    if found.binary or found.large:
        parts.append(f"not searched: {found.binary} binary, {found.large} too large")
    return f"[{'; '.join(parts)}]"


def _path(args: Any) -> str:
    """The path in the one way in which it is matched with rules, as far as it can be told without the disk."""
    absolute = "/" if args.path.startswith("/") else ""
    return absolute + "/".join(part for part in args.path.split("/") if part not in ("", ".")) or "."


def _paths(args: Any, context: ToolContext) -> list[str]:
    """The path as it stands, and where it leads over links."""
    return list(dict.fromkeys([context.files.relative(args.path), context.files.resolved(args.path)]))


def _reviewed(effect: Literal["read", "write"]) -> Callable[[Any, ToolContext], Verdict]:
    return lambda args, context: context.files.judge(args.path, effect)


def _tool(name: str, description: str, args: type[_Args], run: Any, effect: Literal["read", "write"]) -> Tool:
    return Tool(name, description, args, run, effect, _path, review=_reviewed(effect), targets=_paths)


_PLACES = "Write to files/ (your working files), memory/, digest/ or AGENTS, SOUL, PROFILE, MEMORY, HEARTBEAT .md."

READ_FILE = _tool("read_file", "Read a text file of the workspace.", ReadFile, read_file, "read")
WRITE_FILE = _tool("write_file", f"Make, replace or extend a text file. {_PLACES}", WriteFile, write_file, "write")
EDIT_FILE = _tool(
    "edit_file",
    f"Replace one exact piece of text in a file. {_PLACES}",
    EditFile,
    edit_file,
    "write",
)
LIST_FILES = _tool("list_files", "List a directory of the workspace.", ListFiles, list_files, "read")
SEARCH_FILES = _tool(
    "search_files", "Find lines in the workspace's text files by a pattern.", SearchFiles, search_files, "read"
)
