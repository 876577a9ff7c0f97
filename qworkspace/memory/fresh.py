"""What is done about fresh changes: swallowed lines are put back, late writes to a displaced file are brought in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from qworkspace.base.clock import Clock
from qworkspace.base.ids import new_id
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.memory.appending import block_of, expected_of, missing_of
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.locking import VaultLock
from qworkspace.memory.merging import merge
from qworkspace.memory.names import Names
from qworkspace.memory.notefile import Displaced, append_block, read_all, read_note
from qworkspace.memory.recovery import aside_of, bring
from qworkspace.memory.watching import WINDOW, Followed, Signature, Watching, signature, stamp_of

logger = logging.getLogger(__name__)


class FreshLines:
    """Looks after what was changed in the last two seconds.

    An editor that has read a note before a line was appended, and saves after it, swallows the line: it is put back.
    What a person removes later stays removed.
    """

    def __init__(
        self,
        names: Names,
        history: VaultHistory,
        lock: VaultLock,
        *,
        clock: Clock,
        threads: Threads,
        problems: Problems,
        agent_id: str,
        changed: Callable[[str], None],
    ) -> None:
        self._names = names
        self._history = history
        self._lock = lock
        self._clock = clock
        self._threads = threads
        self._problems = problems
        self._agent_id = agent_id
        self._changed = changed
        self._known: dict[str, Signature | None] = {}
        self._watching = Watching(agent_id, clock, self.mend, self._report)

    async def resume(self) -> None:
        """Look after what another process, perhaps a killed one, appended a moment ago."""
        now = self._clock.now()
        for row in await self._history.recent(now - timedelta(seconds=WINDOW)):
            age = max(0.0, (now - row.change.at).total_seconds())
            self._watching.add(row.path, row.seq, expected_of(row.after or b"", row.seen), age=age)

    async def close(self) -> None:
        """Look a last time and free everything. Idempotent."""
        await self._watching.close()
        self._known.clear()

    async def look(self) -> None:
        """Look at all notes that are fresh now."""
        for name in self._watching.names:
            await self.mend(name)

    def appended(self, name: str, seq: int, expected: dict[bytes, int], path: Path) -> None:
        """Lines were appended just now."""
        self._known[name] = signature(path)
        self._watching.add(name, seq, expected)

    def follow(self, name: str, old: Displaced) -> None:
        """A change has displaced that file."""
        self._watching.follow(name, old)

    def accept(self, name: str, data: bytes | None) -> None:
        """The note was made `data` on purpose."""
        self._watching.accept(name, data)

    async def mend(self, name: str) -> None:
        """Put right what others have done to the note, unless it is as it was; let go of what is no longer fresh."""
        if await self._threads.run(self._is_as_it_was, name) and not self._watching.is_over(name):
            return
        async with self._lock.held():  # who holds it may be reading the files that are let go of
            await self.mend_locked(name)
            if self._watching.expire(name):
                self._problems.clear(self._overwritten_key(name))
        if name not in self._watching.names:
            self._known.pop(name, None)

    async def before_change(self, name: str) -> None:
        """Put right what others have done to a note that is about to be changed, by somebody who holds the lock."""
        if name in self._watching.names and not await self._threads.run(self._is_as_it_was, name):
            await self.mend_locked(name)

    async def mend_locked(self, name: str) -> None:
        """The same, by somebody who holds the lock, whatever the note looks like."""
        followed = self._watching.followed(name)
        fresh = self._watching.fresh(name)
        if not followed and not fresh:
            return
        path = await self._threads.run(self._names.resolve, name)
        late = bool(followed) and await self._threads.run(self._bring_late, path, tuple(followed))
        if late:
            self._changed(name)
        lacking = await self._threads.run(self._lacking, name, path)
        if lacking:
            await self._respect_later(name)
            lacking = await self._threads.run(self._lacking, name, path)
        if lacking:
            await self._put_back(name, path, lacking)

    async def unglue(self, name: str, path: Path, start: int, block: bytes) -> None:
        """Somebody began a line without ending it, and the block went on there: give it a line of its own."""
        for old in await self._threads.run(_unglued, path, start, block, self._aside(path)):
            self.follow(name, old)

    def _report(self, name: str, reason: str) -> None:
        key = f"memory-note-fresh/{self._agent_id}/{name}"
        if reason:
            message = f"whether lines just added to {name!r} are still there cannot be seen: {reason}"
            self._problems.report(key, message, agent_id=self._agent_id)
        else:
            self._problems.clear(key)

    def _overwritten_key(self, name: str) -> str:
        return f"memory-note-overwritten/{self._agent_id}/{name}"

    def _is_as_it_was(self, name: str) -> bool:
        path = self._names.resolve(name)
        late = any(one.has_changed() for one in list(self._watching.followed(name)))
        return not late and name in self._known and self._known[name] == signature(path)

    def _lacking(self, name: str, path: Path) -> list[bytes]:
        """Of a note that is gone no line is lacking: somebody removed it, or will put another in its place."""
        self._known[name] = signature(path)
        data = read_note(path)
        return [] if data is None else missing_of(data, self._watching.fresh(name))

    async def _respect_later(self, name: str) -> None:
        """What another process has changed on purpose since is not missed."""
        for one in list(self._watching.fresh(name)):
            for data in await self._history.later(name, one.seq):
                one.accept(data)

    async def _put_back(self, name: str, path: Path, lines: Sequence[bytes]) -> None:
        await self._threads.run(_add, path, lines)
        self._known[name] = await self._threads.run(signature, path)
        logger.info("%d lines that a save had swallowed are back in %r", len(lines), name)
        if self._watching.renew(name):
            self._problems.report(
                self._overwritten_key(name),
                f"another program keeps saving an old version of {name!r} over new lines; they were put back and are "
                "in its history; close the note there and open it again",
                severity="warning",
                agent_id=self._agent_id,
            )
        self._changed(name)

    def _bring_late(self, path: Path, followed: Sequence[Followed]) -> bool:
        """Merge what was written to displaced files since they were displaced; whether there was any."""
        brought = False
        for one in followed:
            if one.old.descriptor is None or not one.has_changed():
                continue
            one.stamp, before = stamp_of(one.old.descriptor), one.last
            now = one.last = read_all(one.old.descriptor, path)
            settled = now.startswith(one.data) or (now == before and now.strip())
            if now == one.data or not settled or not now.endswith(b"\n"):
                continue
            self._bring(path, one.data, now)
            one.data = now
            brought = True
        return brought

    def _bring(self, path: Path, before: bytes, now: bytes) -> None:
        present = read_note(path)
        if present is not None and now.startswith(before):
            append_block(path, block_of(now[len(before) :].split(b"\n")[:-1], present).data)
            return
        merged = now if present is None else merge(before, present, now, union=True)
        for old in bring(path, present, merged, self._aside(path)):
            old.close()

    def _aside(self, path: Path) -> Path:
        return aside_of(path, new_id("late", self._clock.now()))


def _add(path: Path, lines: Sequence[bytes]) -> None:
    append_block(path, block_of(lines, read_note(path)).data)


def _unglued(path: Path, start: int, block: bytes, aside: Path) -> list[Displaced]:
    data = read_note(path)
    if data is None or not data[start:].startswith(block) or data[:start].endswith(b"\n"):
        return []
    return bring(path, data, data[:start] + b"\n" + data[start:], aside)
