"""Services that write down what happens to them, and can fail, hang or be slow at each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from qworkspace.base.clock import Clock, SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.problems import Problems
from qworkspace.workspace.services import ServiceDescriptor, ServiceLimits, ServiceManager


class Recorder:
    """Writes `+name`, `>name`, `<name`, `-name` into a journal when a step of the four has succeeded."""

    def __init__(
        self,
        name: str,
        journal: list[str],
        *,
        wrong: Sequence[str] = (),
        clock: Clock | None = None,
        start_seconds: float = 0.0,
        stop_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.wrong = set(wrong)
        self.started = False
        self.acting = False
        self.tasks: list[asyncio.Task[object] | None] = []
        self._journal = journal
        self._clock = clock
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds

    async def start(self) -> None:
        self.tasks.append(asyncio.current_task())
        await self._take(self._start_seconds)
        self._fail("start")
        if "hang start" in self.wrong:
            await asyncio.Event().wait()
        if "never end" in self.wrong:
            await _deaf()
        self.started = True
        self._journal.append(f"+{self.name}")

    def activate(self) -> None:
        self.acting = True
        self._fail("activate")
        self._journal.append(f">{self.name}")

    def deactivate(self) -> None:
        self._fail("deactivate")
        self.acting = False
        self._journal.append(f"<{self.name}")

    async def stop(self) -> None:
        self.tasks.append(asyncio.current_task())
        if not self.started:
            return
        await self._take(self._stop_seconds)
        self._fail("stop")
        if "hang stop" in self.wrong:
            await asyncio.Event().wait()
        self.started = False
        self._journal.append(f"-{self.name}")

    async def _take(self, seconds: float) -> None:
        if self._clock is not None and seconds:
            await self._clock.sleep(seconds)

    def _fail(self, step: str) -> None:
        if step in self.wrong:
            raise ValueError(f"{self.name} cannot {step}")


async def _deaf() -> None:
    """Ignore the first five cancellations."""
    for _ in range(6):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


class Bench:
    """A clock, problems and a journal; makes recorders, descriptors and managers over them."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.bus = EventBus(self.clock)
        self.problems = Problems(self.clock, self.bus)
        self.journal: list[str] = []
        self.made: dict[str, Recorder] = {}

    def descriptor(
        self,
        name: str,
        priority: int = 10,
        *,
        depends_on: tuple[str, ...] = (),
        sections: tuple[str, ...] = (),
        optional: bool = False,
        concurrent: bool = False,
        wrong: Sequence[str] = (),
        start_seconds: float = 0.0,
        stop_seconds: float = 0.0,
        needs: Callable[[ServiceManager], object] | None = None,
    ) -> ServiceDescriptor:
        def make(services: ServiceManager) -> Recorder:
            if needs is not None:
                needs(services)
            if "make" in wrong:
                raise ValueError(f"{name} cannot be made")
            recorder = Recorder(
                name,
                self.journal,
                wrong=wrong,
                clock=self.clock,
                start_seconds=start_seconds,
                stop_seconds=stop_seconds,
            )
            self.made[name] = recorder
            return recorder

        return ServiceDescriptor(
            name, make, priority, sections=sections, depends_on=depends_on, optional=optional, concurrent=concurrent
        )

    def services(
        self, *descriptors: ServiceDescriptor, generation: int = 1, limits: ServiceLimits | None = None
    ) -> ServiceManager:
        return ServiceManager(
            descriptors, clock=self.clock, problems=self.problems, owner="anna", generation=generation, limits=limits
        )

    def shown(self) -> list[str]:
        """The messages of the open problems."""
        return [problem.message for problem in self.problems.of()]
