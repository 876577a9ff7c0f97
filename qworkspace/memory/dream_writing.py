"""Writes an accepted dream into the vault, so that doing it again after a crash changes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from shutil import rmtree

from qworkspace.base.files import make_directory, write_atomic
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.errors import QworkspaceError
from qworkspace.memory.dream_store import Changed, Plan
from qworkspace.memory.interests import INTERESTS, dump_interests, merged_topics, read_interests
from qworkspace.memory.notes import Author
from qworkspace.memory.shown import merge_texts, shown
from qworkspace.memory.topics import topic_note, with_topic
from qworkspace.memory.vault import AgentMdManager

MEMORY = "MEMORY.md"
BACKUPS = "backups"
KEPT_BACKUPS = 30


class EditedMeanwhile(Exception):
    """A person has changed the same lines of MEMORY.md while the model was thinking."""


class Writer:
    """Writes plans: a backup first, then MEMORY.md, topic notes and interests.yaml, all in the plan's group."""

    def __init__(
        self,
        vault: AgentMdManager,
        *,
        workspace: Path,
        state_dir: Path,
        digest_dir: str,
        threads: Threads,
        problems: Problems,
        agent_id: str,
    ) -> None:
        self._vault = vault
        self._workspace = workspace
        self._backups = state_dir / BACKUPS
        self._digest_dir = digest_dir
        self._threads = threads
        self._problems = problems
        self._agent_id = agent_id

    async def write(self, plan: Plan) -> list[Changed]:
        """What has changed. `EditedMeanwhile`, and nothing is written, when MEMORY.md cannot be merged."""
        topics = {topic_note(self._digest_dir, found.topic.title): found for found in plan.findings if found.text}
        notes = [*([MEMORY] if plan.memory is not None else []), *topics]
        await self._threads.run(self._back_up, plan.group, [*notes, INTERESTS])
        changes: list[Changed] = []
        if plan.memory is not None:
            new = plan.memory
            changes += await self._edit(plan, MEMORY, lambda text: _merged(plan.base, text, new))
        for note, found in topics.items():
            topic, added = found.topic, found.text
            sources = [path for path in topic.paths if path != note]
            edit = _adding(note, topic.title, added, sources, plan.language)
            changes += await self._edit(plan, note, edit)
        if plan.findings:
            await self._write_interests(plan)
        return changes

    async def _edit(self, plan: Plan, note: str, edit: Callable[[str], str]) -> list[Changed]:
        """Change the note once; (note, before, after) unless nothing changed."""
        seen: list[Changed] = []

        def look(text: str) -> str:
            result = edit(text)
            seen[:] = [(note, shown(text), shown(result))]
            return result

        author = Author("dream", group=plan.group)
        change = await self._vault.edit(note, look, by=author, key=f"{plan.key}/{note}")
        if change.repeated and not seen:  # written before a crash: what it was then is in the backup
            seen = [(note, *await self._threads.run(self._before_and_after, plan.group, note))]
        return [found for found in seen if found[1] != found[2]]

    def _before_and_after(self, group: str, note: str) -> tuple[str, str]:
        return _text(self._backups / group / note), _text(self._workspace / note)

    def _back_up(self, group: str, names: Sequence[str]) -> None:
        """Copy what is there, once per group; the newest `KEPT_BACKUPS` groups stay."""
        place = self._backups / group
        make_directory(place)
        for name in names:
            source, target = self._workspace / name, place / name
            if source.is_file() and not target.exists() and not (name == INTERESTS and source.is_symlink()):
                make_directory(target.parent)
                write_atomic(target, source.read_bytes(), mode=0o600)
        for old in self._groups()[:-KEPT_BACKUPS]:
            rmtree(old, ignore_errors=True)

    def _groups(self) -> list[Path]:
        return sorted(path for path in self._backups.iterdir() if path.name.startswith("dream_"))

    async def _write_interests(self, plan: Plan) -> None:
        """Bring the topics up to date. A file that a person has broken is left for the person to mend."""
        broken = ""
        topics, day = [found.topic for found in plan.findings], date.fromisoformat(plan.day)

        def edit(text: str) -> str:
            nonlocal broken
            old = read_interests(text.encode("utf-8", "surrogateescape"))
            broken = old.problem
            new = merged_topics(old, topics, day)
            return text if broken or new.topics == old.topics else dump_interests(new)

        author = Author("dream", group=plan.group)
        await self._vault.edit(INTERESTS, edit, by=author, key=f"{plan.key}/{INTERESTS}")
        key = f"memory-interests/{self._agent_id}"
        if broken:
            message = f"{broken}; dream leaves it alone until it is mended or deleted"
            self._problems.report(key, message, severity="warning", agent_id=self._agent_id)
        else:
            self._problems.clear(key)


def _merged(base: str, current: str, new: str) -> str:
    """`new` with what a person has changed in `base` meanwhile."""
    result = merge_texts(base, new, current)
    if result is None:
        raise EditedMeanwhile
    return result


def _adding(note: str, title: str, added: str, sources: Sequence[str], language: str) -> Callable[[str], str]:
    return lambda text: with_topic(text, note, title, added, sources, language)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, QworkspaceError):
        return ""
