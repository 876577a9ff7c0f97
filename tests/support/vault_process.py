"""A process with a vault: `append ROOT NOTE WORD SECONDS`, or `kills ROOT COUNT SEED`, which forks and kills writers.

`append` prints each line once it is acknowledged. `kills` ends with an error at the first note that is neither before
nor after the change that was under way.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from qworkspace.base.clock import SystemClock
from qworkspace.errors import NotFound
from qworkspace.memory.marks import strike
from qworkspace.memory.vault import AgentMdManager
from tests.support.vaults import TOOL, opened

NOTE = "memory/log.md"


async def append(root: Path, note: str, word: str, seconds: float) -> None:
    async with opened(root, clock=SystemClock()) as here:
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            line = f"- {word} {number}"
            await here.vault.append(note, line, by=TOOL, key=f"{word}-{number}")
            print(line, flush=True)
        await asyncio.sleep(2.5)  # until nothing is fresh


def strike_last(text: str) -> str:
    lines = text.split("\n")
    at = next((i for i in range(len(lines) - 1, -1, -1) if lines[i] and not lines[i].startswith("- ~~")), None)
    if at is not None:
        lines[at] = strike(lines[at])
    return "\n".join(lines)


class Model:
    """What the note has to hold: the texts after each change that still holds, the last one now."""

    def __init__(self) -> None:
        self.texts: list[str] = [""]

    def after(self, number: int) -> list[str]:
        """The texts once change `number` has been made."""
        kind, now = number % 6, self.texts[-1]
        if number % 40 == 39:
            return [*self.texts, f"# from {number} on\n"]
        if kind == 5:
            return self.texts[:-1] if len(self.texts) > 1 else self.texts
        if kind == 4:
            struck = strike_last(now)
            return self.texts if struck == now else [*self.texts, struck]
        return [*self.texts, now + line_of(number) + "\n"]


def line_of(number: int) -> str:
    return f"- line {number} " + "x" * (number * 7919 % 90_000 if number % 6 == 3 else 20)


async def change(vault: AgentMdManager, number: int) -> None:
    kind = number % 6
    if number % 40 == 39:
        await vault.write(NOTE, f"# from {number} on\n", by=TOOL, key=f"k{number}")
    elif kind == 5:
        try:
            await vault.undo()
        except NotFound:
            return
    elif kind == 4:
        await vault.edit(NOTE, strike_last, by=TOOL, key=f"k{number}")
    else:
        await vault.append(NOTE, line_of(number), by=TOOL, key=f"k{number}")


async def churn(root: Path, first: int, tell: Callable[[bytes], object]) -> None:
    async with opened(root, clock=SystemClock()) as here:
        number = first
        while True:
            tell(b"begun %d\n" % number)
            await change(here.vault, number)
            tell(b"done %d\n" % number)
            number += 1


async def check(root: Path, model: Model, number: int, begun: bool) -> int:
    """Open the vault again: the note is before or after that change; made once more it is after. The next number."""
    async with opened(root, clock=SystemClock()) as here:
        text = (here.bytes(NOTE) or b"").decode()
        after = model.after(number)
        assert text in (model.texts[-1], after[-1]), f"change {number}: neither before nor after: {text[-300:]!r}"
        assert begun or text == model.texts[-1], f"change {number} was made without being begun"
        done = text == after[-1]
        if number % 6 != 5:
            await change(here.vault, number)
            text = (here.bytes(NOTE) or b"").decode()
            assert text == after[-1], f"change {number} made again: {text[-300:]!r}"
            done = True
        model.texts = after if done else model.texts
        assert await here.vault.history.pending() == []
        left = sorted(path.name for path in (root / "memory").glob(".*"))
        assert left == [], left
    return number + 1 if done or number % 6 != 5 else number


def kill_once(root: Path, model: Model, number: int, after: float) -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            asyncio.run(churn(root, number, lambda line: os.write(writing, line)))
        finally:
            os._exit(3)
    os.close(writing)
    first = os.read(reading, 9)  # it has started
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself: {status}"
    with os.fdopen(reading, "rb") as told:
        lines = (first + told.read()).decode().splitlines()
    for line in lines:
        if line.startswith("done"):
            assert line == f"done {number}"
            model.texts = model.after(number)
            number += 1
    return asyncio.run(check(root, model, number, lines[-1].startswith("begun")))


def kills(root: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    model, number = Model(), 0
    for _ in range(count):
        number = kill_once(root, model, number, rng.uniform(0, 0.12))
    print(f"{count} kills, {number} changes", flush=True)


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    if what == "append":
        asyncio.run(append(Path(place), rest[0], rest[1], float(rest[2])))
    else:
        kills(Path(place), int(rest[0]), int(rest[1]))
