"""What the daemon does for itself from time to time, on the one timer that all of it shares."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from qworkspace.base.clock import Clock
from qworkspace.base.problems import Problems

if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

logger = logging.getLogger(__name__)
SKEW_SECONDS = 120.0


class Timer:
    """APScheduler, once per daemon. Imported when it starts: it takes 130 ms."""

    def __init__(self) -> None:
        self._scheduler: AsyncIOScheduler | None = None

    def start(self) -> None:
        """Begin to run what `every` adds."""
        from apscheduler.schedulers.asyncio import AsyncIOScheduler  # heavy: the port is bound by now

        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._scheduler.start()

    def every(self, seconds: float, name: str, run: Callable[[], Awaitable[Any]]) -> None:
        """Run it every `seconds`, one run at a time; a run that fails is logged and the next one comes."""
        assert self._scheduler is not None, "started first"
        self._scheduler.add_job(
            _logged(name, run), "interval", seconds=seconds, id=name, max_instances=1, coalesce=True,
            misfire_grace_time=None,
        )  # fmt: skip

    def stop(self) -> None:
        """Nothing begins any more. Idempotent."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None


def _logged(name: str, run: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
    async def logged() -> None:
        try:
            await run()
        except Exception:
            logger.exception("housekeeping: %s failed", name)

    return logged


class ClockWatch:
    """Notices when the wall clock and the monotonic one drift apart: sleep, a time server, a person."""

    def __init__(self, clock: Clock, problems: Problems) -> None:
        self._clock = clock
        self._problems = problems
        self._wall = clock.now()
        self._steady = clock.monotonic()

    async def look(self) -> float:
        """Seconds that the wall clock has jumped since the last look; shown until a look finds none."""
        wall, steady = self._clock.now(), self._clock.monotonic()
        jump = (wall - self._wall).total_seconds() - (steady - self._steady)
        self._wall, self._steady = wall, steady
        if abs(jump) >= SKEW_SECONDS:
            way = "forwards" if jump > 0 else "back"
            message = f"the clock went {way} by {abs(jump):.0f} s; times before {wall:%H:%M} UTC are off by that much"
            self._problems.report("clock", message, severity="warning")
        else:
            self._problems.clear("clock")
        return jump
