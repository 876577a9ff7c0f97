"""Whatever happens to agents, in whatever order: never do two instances of one of them act at once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.errors import QworkspaceError
from qworkspace.workspace.workspace import CHATS
from tests.support.agents import Agency, Chats, passing, read_once
from tests.support.services import Recorder

NAMES = ("anna", "bert")
ACTIONS = ("get", "use", "turn", "unload", "disable", "enable", "swap", "cancel", "wait", "break", "mend")
Step = tuple[str, str, float]


class Play:
    """Runs a script of actions at once with each other, on simulated time, and watches."""

    def __init__(self, home: Path) -> None:
        self.agency = Agency(home, NAMES, lifecycle={"idle_unload": 3, "drain_limit": 20})
        self.agency.seconds = self.agency.stop_seconds = {"anna": 1.0, "bert": 2.0}
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self, script: list[Step]) -> None:
        try:
            await self._act(script)
            await self._mended()
        finally:
            await self._end()
        assert self.agency.clashes == []
        begun, ended = (sorted(e[1:] for e in self.agency.journal if e[0] == sign) for sign in "+-")
        assert begun == ended

    async def _act(self, script: list[Step]) -> None:
        for action, name, seconds in script:
            if action == "cancel":
                if self.tasks:
                    self.tasks[int(seconds * 7) % len(self.tasks)].cancel()
            elif action == "break":
                self.agency.wrong[name] = ["start"] if seconds > 2 else ["activate"]
            elif action == "mend":
                self.agency.wrong.pop(name, None)
            elif action != "wait":
                self.tasks.append(asyncio.create_task(quietly(getattr(self, f"_{action}")(name, seconds))))
            await self.agency.clock.advance(seconds if action == "wait" else 0)
            assert self.agency.clashes == []

    async def _get(self, name: str, _: float) -> None:
        await self.agency.manager.get(name)

    async def _use(self, name: str, seconds: float) -> None:
        async with self.agency.manager.use(name) as workspace:
            main: Recorder = workspace.services.get("main")
            for _ in range(3):
                assert main.started, "a lent workspace was stopped"
                await self.agency.clock.sleep(seconds / 3)

    async def _turn(self, name: str, seconds: float) -> None:
        chats: Chats = (await self.agency.manager.get(name)).services.get(CHATS)
        assert chats.started
        if not chats.closed:
            await asyncio.wait([chats.turn(seconds)])

    async def _unload(self, _name: str, _: float) -> None:
        await self.agency.manager.unload_idle()

    async def _disable(self, name: str, _: float) -> None:
        await self.agency.manager.disable_agent(name)

    async def _enable(self, name: str, _: float) -> None:
        await self.agency.manager.enable_agent(name)

    async def _swap(self, name: str, _: float) -> None:
        old = self.agency.manager.find(name)
        if old is None:
            return
        new = self.agency.instance(old.generation + 1, old.current)
        moving = old.services.running([CHATS])
        await new.start(moving)
        try:
            self.agency.manager.swap(old, new, moved=list(moving))
        except (QworkspaceError, ValueError):
            await new.stop()
            return
        await old.until_idle(60)
        await old.stop(keep=list(moving))

    async def _mended(self) -> None:
        """Once nothing is wrong any more, every agent answers."""
        self.agency.wrong.clear()
        await passing(self.agency, 40)
        for name in NAMES:
            await self.agency.manager.enable_agent(name)
            asking = asyncio.create_task(self.agency.manager.get(name))
            await passing(self.agency, 40)
            assert (await asking).services.get("main").acting
            assert self.agency.clashes == []

    async def _end(self) -> None:
        self.tasks.append(asyncio.create_task(self.agency.manager.stop(0)))
        while not all(task.done() for task in self.tasks):
            await passing(self.agency, 5)
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None


async def quietly(work: Coroutine[Any, Any, None]) -> None:
    """Refusals and failed starts are answers too."""
    try:
        await work
    except (QworkspaceError, ValueError):
        return


def play(script: list[Step]) -> None:
    home = Path(mkdtemp())
    read_once(home)
    try:
        asyncio.run(Play(home).run(script))
    finally:
        shutil.rmtree(home)


steps = st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES), st.sampled_from([0.5, 1.0, 2.5, 5.0]))


@pytest.mark.may_block  # the garbage collector, over the many objects of a property test
@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=40))
def test_one_instance_at_most_acts_and_none_is_lost(script: list[Step]) -> None:
    play(script)
