"""The one database of an agent's memory, `.state/memory.db`; each component brings its own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.mending import MendingDatabase
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads

MemoryDb = MendingDatabase
NAME = "memory.db"


def memory_db(
    state: Path,
    components: Mapping[str, Sequence[str]],
    *,
    threads: Threads,
    clock: Clock,
    problems: Problems,
    agent_id: str,
) -> MemoryDb:
    """The database in the directory `state`, not yet open. `components`: {"vault": history.MIGRATIONS, …}."""
    return MendingDatabase(
        state / NAME, migrations=components, threads=threads, clock=clock, problems=problems, agent_id=agent_id
    )
