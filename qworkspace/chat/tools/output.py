"""What a tool says, made fit for a model: plain text; of what is long head and tail, and a file with the whole."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from functools import wraps
from typing import TypeVar

from qworkspace.base.clock import Clock
from qworkspace.base.ids import first_id, new_id
from qworkspace.base.text import clean_text
from qworkspace.errors import Denied, QworkspaceError, StorageError
from qworkspace.plugins.extensions import FileAccess, ToolContext, ToolOutput

logger = logging.getLogger(__name__)

LIMIT = 16_000
KEPT_FILES = 200
DIRECTORY = "files/.outputs"

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # strings for the terminal: titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]"  # the shorter ones
)
_CONTROLS = {code: None for code in (*range(32), 127, *range(0x80, 0xA0)) if chr(code) not in "\t\n"}

A = TypeVar("A")
Run = Callable[[ToolContext, A], Awaitable[ToolOutput]]
Spill = Callable[[str], Awaitable[str]]


def answers(run: Run[A]) -> Run[A]:
    """What the tool may not do, or cannot do, becomes an answer that tells the model so."""

    @wraps(run)
    async def answered(context: ToolContext, args: A) -> ToolOutput:
        try:
            return await run(context, args)
        except Denied as error:
            return ToolOutput(f"not allowed: {error.message}", "denied")
        except QworkspaceError as error:
            return ToolOutput(error.message, "error")

    return answered


def plain(text: str) -> str:
    """`text` as it would stand on a page: no colours, no control characters, of a redrawn line its last state."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n")) if "\x1b" in text or "\r" in text else text
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return clean_text(text.translate(_CONTROLS))


def _last_state(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def head_and_tail(text: str, limit: int, note: str) -> str:
    """At most about `limit` characters of `text`: its beginning, `note` in a line of its own, its end.

    Cut between lines where there is one near; `{left_out}` in the note becomes the number of characters left out.
    """
    if len(text) <= limit:
        return text
    half = max(1, (limit - len(note)) // 2)
    head, tail = text[:half], text[-half:]
    line_end, line_start = head.rfind("\n"), tail.find("\n")
    if line_end > half * 3 // 4:
        head = head[:line_end]
    if 0 <= line_start < half // 4:
        tail = tail[line_start + 1 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {note.replace('{left_out}', f'{left_out:,}')} ...]\n{tail}"


async def shorten(text: str, spill: Spill, limit: int = LIMIT) -> tuple[str, str | None]:
    """`text` within `limit` characters, and the relative path of the file that holds the whole of a longer one."""
    if len(text) <= limit:
        return clean_text(text), None
    try:
        file = await spill(text)
    except StorageError as error:
        logger.warning("a tool's whole output was not kept: %s", error)
        return clean_text(head_and_tail(text, limit, "{left_out} characters left out; they could not be kept")), None
    note = f"{{left_out}} characters left out; the whole output is in {file}, read it with read_file"
    return clean_text(head_and_tail(text, limit, note)), file


class OutputFiles:
    """Keeps whole outputs in `files/.outputs/`, the newest `KEPT_FILES` of them. It is the `spill` of a workspace."""

    def __init__(self, files: FileAccess, clock: Clock) -> None:
        self._files = files
        self._clock = clock

    async def __call__(self, text: str) -> str:
        """The relative path of the new file that holds `text`."""
        name = f"{DIRECTORY}/{new_id('out', self._clock.now())}.txt"
        await self._files.write(name, clean_text(text).encode())
        await self._remove(superfluous(await self._files.names(DIRECTORY)))
        return name

    async def prune(self, age: timedelta) -> None:
        """Remove the outputs that are older than `age`."""
        oldest = self._clock.now() - age
        await self._remove(superfluous(await self._files.names(DIRECTORY), oldest=oldest))

    async def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            await self._files.remove(f"{DIRECTORY}/{name}")


def superfluous(names: Iterable[str], *, oldest: datetime | None = None) -> list[str]:
    """Of the files in the outputs' directory those that are too many or from before `oldest`, oldest first.

    Others' files are left alone.
    """
    ours = sorted(name for name in names if name.startswith("out_") and name.endswith(".txt"))
    too_many = max(0, len(ours) - KEPT_FILES)
    too_old = sum(name < first_id("out", oldest) for name in ours) if oldest is not None else 0
    return ours[: max(too_many, too_old)]
