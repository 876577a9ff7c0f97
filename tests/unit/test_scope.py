"""Who is acting: carried by the context, never by a global."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qworkspace.base.scope import Scope, acting_as, current_scope
from qworkspace.base.tasks import Threads


def _scope(agent: str) -> Scope:
    return Scope(agent_id=agent, workspace_dir=Path("/somewhere") / agent)


def _agent() -> str | None:
    scope = current_scope()
    return scope.agent_id if scope is not None else None


def test_nobody_acts_outside_of_a_turn() -> None:
    assert current_scope() is None


def test_the_previous_scope_comes_back_even_after_an_error() -> None:
    with acting_as(_scope("outer")):
        with pytest.raises(ValueError, match="boom"), acting_as(_scope("inner")):
            assert _agent() == "inner"
            raise ValueError("boom")
        assert _agent() == "outer"
    assert current_scope() is None


async def test_parallel_turns_never_see_each_other() -> None:
    async def turn(name: str) -> list[str | None]:
        seen = []
        with acting_as(_scope(name)):
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(_agent())
        return seen

    results = await asyncio.gather(*(turn(f"agent{n}") for n in range(20)))
    assert results == [[f"agent{n}"] * 5 for n in range(20)]


async def test_work_in_a_thread_acts_for_whoever_asked() -> None:
    threads = Threads(2)
    try:
        with acting_as(_scope("a")):
            assert await threads.run(_agent) == "a"
        assert await threads.run(_agent) is None
    finally:
        threads.close()
