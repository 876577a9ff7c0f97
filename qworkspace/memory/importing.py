"""Notes of other assistants: read from a directory with the common layouts, added to a vault, never twice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qworkspace.base.tasks import Threads
from qworkspace.memory.vault import AgentMdManager


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one file: `target` is the note, `lines` the number of lines added to it."""

    source: str
    target: str
    outcome: Literal["added", "merged", "skipped"]
    lines: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or would do when `dry_run`; `group` undoes it."""

    files: tuple[Imported, ...]
    dry_run: bool
    group: str = ""


async def import_vault(source: Path, vault: AgentMdManager, *, threads: Threads, dry_run: bool = False) -> ImportReport:
    """Merge the notes below `source`, which stays as it is, into the vault. A second import adds nothing."""
    raise NotImplementedError
