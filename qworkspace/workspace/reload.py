"""An agent's next instance: planned, built beside the acting one, swapped in; the old one drains and ends.

Whatever fails before the swap leaves the acting instance as it was; a swap that fails gives it its place back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from qworkspace.base.ids import AgentId
from qworkspace.base.tasks import Tasks
from qworkspace.config.models import AgentConfig, LifecycleConfig
from qworkspace.config.plan import Plan, plan
from qworkspace.errors import InvalidConfig, NotFound, QworkspaceError
from qworkspace.workspace.history import Outcome, Reload, ReloadHistory, Timings
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.registry import WorkspaceRegistry
from qworkspace.workspace.running import describe
from qworkspace.workspace.seat import AgentState
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.unknown import show_unknown_channels, show_unknown_keys
from qworkspace.workspace.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Wish:
    """A reload that is wanted: those that come while one is being built become one more."""

    done: asyncio.Future[Reload | None]
    triggers: list[str] = field(default_factory=list)
    rebuild: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Retired:
    """A replaced instance that still has turns."""

    workspace: Workspace
    since: float


class Reloader:
    """Reloads agents, each one at a time, and ends what they replace."""

    def __init__(
        self, manager: MultiAgentManager, registry: WorkspaceRegistry, shared: SharedServices, history: ReloadHistory
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._shared = shared
        self.history = history
        self._wishes: dict[str, Wish] = {}
        self._working: set[str] = set()
        self._retired: defaultdict[str, list[Retired]] = defaultdict(list)
        self._room = asyncio.Event()
        self._waiting: set[str] = set()
        self._tasks = Tasks("reloads")

    def request(self, agent_id: str, trigger: str, rebuild: Iterable[str] = ()) -> asyncio.Future[Reload | None]:
        """Reload the agent from its files; what it came to, None when nothing had to change."""
        wish = self._wishes.get(agent_id)
        if wish is None:
            wish = self._wishes[agent_id] = Wish(asyncio.get_running_loop().create_future())
        wish.triggers.append(trigger)
        wish.rebuild.update(rebuild)
        if agent_id not in self._working:
            self._working.add(agent_id)
            self._tasks.start(self._work(agent_id), name=agent_id)
        return wish.done

    async def reload(self, agent_id: str, trigger: str, rebuild: Iterable[str] = ()) -> Reload | None:
        """`request`, and wait for it."""
        return await asyncio.shield(self.request(agent_id, trigger, rebuild))

    async def plan(self, agent_id: str, config: AgentConfig) -> Plan:
        """What `config` would change, compared with what the agent uses now; nothing is applied."""
        old = self._manager.find(agent_id)
        if old is not None:
            return self._plan(old, self._registry.create(old.agent_id, old.directory, config, current=old.current))
        present = await self._shared.threads.run(self._usual, agent_id)
        directory = self._shared.config.agent_dir(agent_id)
        sample = self._registry.create(AgentId(agent_id), directory, config)
        services = sample.services.descriptors
        return plan(present.sections(), config.sections(), services, services)

    def retired(self, agent_id: str) -> list[dict[str, Any]]:
        """The replaced instances that still have turns, for status."""
        now = self._shared.clock.monotonic()
        notice = self._lifecycle().drain_notice
        return [
            {
                "generation": item.workspace.generation,
                "turns": item.workspace.running_turns,
                "since_seconds": round(now - item.since, 1),
                "state": "draining" if now - item.since >= notice else "retired",
            }
            for item in self._retired.get(agent_id, ())
        ]

    def waits(self, agent_id: str) -> bool:
        """Whether edits wait because too many replaced instances still have turns."""
        return agent_id in self._waiting

    async def stop(self) -> None:
        """No more reloads; what is retired ends now. After the agents have been stopped. Idempotent."""
        await self._tasks.close("the daemon stops")
        for wish in self._wishes.values():
            wish.done.cancel()
        self._wishes.clear()

    async def _work(self, agent_id: str) -> None:
        try:
            while (wish := await self._next(agent_id)) is not None:
                try:
                    result = await self._apply(agent_id, wish)
                except asyncio.CancelledError:
                    wish.done.cancel()
                    raise
                except Exception as error:
                    logger.exception("the reload of agent %s failed", agent_id)
                    wish.done.set_exception(error)
                    wish.done.exception()  # seen: nobody may be waiting
                else:
                    wish.done.set_result(result)
        finally:
            self._working.discard(agent_id)

    async def _next(self, agent_id: str) -> Wish | None:
        """The newest wish, once there is room for one more retired instance."""
        while agent_id in self._wishes and len(self._retired[agent_id]) >= self._lifecycle().max_retired:
            self._waiting.add(agent_id)
            self._room.clear()
            await self._room.wait()
        self._waiting.discard(agent_id)
        return self._wishes.pop(agent_id, None)

    async def _apply(self, agent_id: str, wish: Wish) -> Reload | None:
        trigger = ", ".join(dict.fromkeys(wish.triggers))
        old = self._manager.find(agent_id)
        if old is None and self._manager.state_of(agent_id) is AgentState.FAILED:
            await self._start_again(agent_id)
            return None
        try:
            config = await self._shared.threads.run(self._shared.config.load_agent, agent_id)
            await show_unknown_keys(self._shared, agent_id)
            await show_unknown_channels(self._shared, agent_id, config)
        except NotFound:
            return None  # taken out or disabled: what still runs of it ends as it is
        except QworkspaceError as error:
            return await self._refused(agent_id, old, trigger, error)
        self._shared.problems.clear(f"config:{agent_id}")
        if old is None or (old.config is config and not wish.rebuild):
            self._shared.problems.clear(f"reload:{agent_id}")
            return None
        with old.hold():
            return await self._replace(old, config, trigger, wish.rebuild)

    async def _start_again(self, agent_id: str) -> None:
        """What kept the agent from starting may be mended."""
        try:
            await self._manager.get(agent_id)
        except QworkspaceError as error:
            logger.debug("agent %s still cannot start: %s", agent_id, error.message)  # its problem says so

    async def _refused(
        self, agent_id: str, old: Workspace | None, trigger: str, error: QworkspaceError
    ) -> Reload | None:
        """The files cannot be used: what runs goes on, and everybody can see why."""
        if isinstance(error, InvalidConfig):
            told = f"{error.message}; the last valid configuration stays in use" if old is not None else error.message
            self._shared.problems.report(f"config:{agent_id}", told, agent_id=agent_id)
        if old is None:
            return None
        failed = self._record(old, trigger, Outcome.FAILED, error=_facts(error))
        return await self._tell_failure(failed)

    async def _replace(self, old: Workspace, config: AgentConfig, trigger: str, rebuild: set[str]) -> Reload | None:
        new = self._registry.create(
            old.agent_id, old.directory, config, generation=old.generation + 1, current=old.current
        )
        change = self._plan(old, new, rebuild)
        if change.kind == "nothing":
            self._shared.problems.clear(f"reload:{old.agent_id}")
            return None
        self._publish("planned", old, changed=change.changed, moved=change.moved, rebuilt=change.rebuilt)
        if change.kind == "live":
            old.adopt(config)
            self._shared.problems.clear(f"reload:{old.agent_id}")
            done = await self._store(self._record(old, trigger, Outcome.LIVE, change))
            self._publish("swapped", old, generation=old.generation)
            return done
        return await self._build_and_swap(old, new, change, trigger)

    async def _build_and_swap(self, old: Workspace, new: Workspace, change: Plan, trigger: str) -> Reload:
        clock = self._shared.clock
        self._publish("started", old, generation=new.generation)
        began = clock.monotonic()
        try:
            await new.start(old.services.running(change.moved))
        except Exception as error:
            return await self._unbuilt(old, trigger, Outcome.FAILED, change, error)
        built = clock.monotonic()
        try:
            self._manager.swap(old, new, change.moved)
        except Exception as error:
            await new.stop()
            return await self._unbuilt(old, trigger, Outcome.ROLLED_BACK, change, error)
        swapped = clock.monotonic()
        timings = Timings(build_ms=_ms(built - began), swap_ms=_ms(swapped - built))
        self._publish("swapped", new, generation=new.generation, swap_ms=timings.swap_ms)
        done = self._record(new, trigger, Outcome.APPLIED, change, timings=timings)
        self._shared.problems.clear(f"reload:{new.agent_id}")
        storing = self._tasks.start(self._store(done), name=f"store {new.agent_id}.{new.generation}")
        retired = Retired(old, swapped)
        self._retired[old.agent_id].append(retired)
        self._tasks.start(self._retire(retired, storing), name=f"retire {old.agent_id}.{old.generation}")
        return await storing

    async def _unbuilt(self, old: Workspace, trigger: str, outcome: Outcome, change: Plan, error: Exception) -> Reload:
        """The next instance did not come to act: shown until a reload succeeds, unless the agent itself ends."""
        if self._manager.state_of(old.agent_id) is AgentState.RUNNING:
            how = outcome.value.replace("_", " ")
            told = f"agent {old.agent_id!r} goes on as before the edit: its new instance {how}: {describe(error)}"
            self._shared.problems.report(f"reload:{old.agent_id}", told, agent_id=old.agent_id)
        return await self._tell_failure(self._record(old, trigger, outcome, change, _facts(error)))

    async def _retire(self, retired: Retired, storing: asyncio.Task[Reload]) -> None:
        """Let the replaced instance finish its turns, for a day at most, and end it."""
        old, clock = retired.workspace, self._shared.clock
        key = f"draining:{old.agent_id}.{old.generation}"
        limits = self._lifecycle()
        try:
            if not await old.until_idle(limits.drain_notice):
                told = f"agent {old.agent_id!r}: turns still run on the replaced instance {old.generation}"
                self._shared.problems.report(key, told, severity="warning", agent_id=old.agent_id)
                if not await old.until_idle(max(0.0, limits.drain_limit - limits.drain_notice)):
                    await old.end_turns()
        finally:
            await old.stop()
            self._shared.problems.clear(key)
            self._retired[old.agent_id].remove(retired)
            self._room.set()
        drained = _ms(clock.monotonic() - retired.since)
        self._publish("drained", old, generation=old.generation, drain_ms=drained)
        try:
            await self.history.drained(await storing, drained)
        except QworkspaceError as error:
            logger.warning("the end of a reload is not stored: %s", error.message)

    def _usual(self, agent_id: str) -> AgentConfig:
        """What the agent would start with now; nothing but defaults when its file is broken and was never good."""
        config = self._shared.config
        try:
            return config.load_agent(agent_id, disabled=True)
        except InvalidConfig:
            return config.last_good_agent(agent_id) or AgentConfig(id=agent_id)

    def _plan(self, old: Workspace, new: Workspace, rebuild: Iterable[str] = ()) -> Plan:
        return plan(
            old.config.sections(),
            new.config.sections(),
            old.services.descriptors,
            new.services.descriptors,
            rebuild=set(rebuild),
        )

    async def _tell_failure(self, reload: Reload) -> Reload:
        stored = await self._store(reload)
        self._shared.bus.publish(
            "reload.failed", agent_id=reload.agent_id, outcome=reload.outcome.value, error=reload.error
        )
        return stored

    async def _store(self, reload: Reload) -> Reload:
        """Into the history; a disk that refuses is no reason to undo what has happened."""
        try:
            return await self.history.add(reload)
        except QworkspaceError as error:
            logger.warning("a reload is not in the history: %s", error.message)
            return reload

    def _record(
        self,
        acting: Workspace,
        trigger: str,
        outcome: Outcome,
        change: Plan | None = None,
        error: dict[str, Any] | None = None,
        timings: Timings | None = None,
    ) -> Reload:
        change = change or Plan()
        return Reload(
            agent_id=acting.agent_id,
            generation=acting.generation,
            at=self._shared.clock.now(),
            trigger=trigger,
            outcome=outcome,
            changed=change.changed,
            moved=change.moved,
            rebuilt=(*change.rebuilt, *change.added),
            error=error,
            timings=timings or Timings(),
        )

    def _publish(self, what: str, workspace: Workspace, **facts: Any) -> None:
        self._shared.bus.publish(f"reload.{what}", agent_id=workspace.agent_id, **facts)

    def _lifecycle(self) -> LifecycleConfig:
        home = self._shared.config.last_good_home()
        return home.lifecycle if home is not None else LifecycleConfig()


def _facts(error: Exception) -> dict[str, Any]:
    """`code`, `message` and where, for people; an unexpected error is in the log with its traceback."""
    if isinstance(error, QworkspaceError):
        return {"code": error.code, "message": error.message, **error.details}
    logger.error("a new instance could not be built", exc_info=error)
    return {"code": "internal_error", "message": describe(error)}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
