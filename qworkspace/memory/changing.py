"""How notes change: one at a time, recorded before and after, with what others do in between kept."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from qworkspace.base.clock import Clock
from qworkspace.base.ids import new_id
from qworkspace.base.tasks import Threads
from qworkspace.errors import Conflict, InvalidPath, QworkspaceError, StorageError
from qworkspace.memory.appending import Block, block_of, expected_of
from qworkspace.memory.fresh import FreshLines
from qworkspace.memory.history import Row, VaultHistory
from qworkspace.memory.locking import VaultLock
from qworkspace.memory.merging import counted, merge
from qworkspace.memory.names import Names
from qworkspace.memory.notefile import append_block, expect_size, put, read_note
from qworkspace.memory.notes import Author, Change, Operation
from qworkspace.memory.recovery import aside_of, settle
from qworkspace.memory.undoing import taken_back

logger = logging.getLogger(__name__)
T = TypeVar("T")
Make = Callable[[bytes | None], bytes | None]
ROUNDS = 20  # of a note that somebody else changes at the very moment of each exchange
PRUNE_EVERY = 200  # changes


@dataclass(frozen=True, slots=True)
class Wish:
    """A change that somebody wants."""

    name: str
    by: Author
    operation: Operation
    key: str = ""
    undoes: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What a note is to become, and how to say that again when it has changed at the last moment (None: merge)."""

    row: Row
    path: Path
    again: Make | None = None


class Changes:
    """The one writer of a vault's notes in this process; it takes turns with those of other processes."""

    def __init__(
        self,
        names: Names,
        history: VaultHistory,
        lock: VaultLock,
        fresh: FreshLines,
        *,
        clock: Clock,
        threads: Threads,
        changed: Callable[[str], None],
    ) -> None:
        self._names = names
        self._history = history
        self._lock = lock
        self._fresh = fresh
        self._clock = clock
        self._threads = threads
        self._changed = changed
        self._running: set[asyncio.Task[Any]] = set()
        self._count = 0

    async def start(self) -> None:
        """Settle what was left half done, look after what was fresh, forget what is old.

        On a disk that refuses notes can still be read: the rest is done by the next change.
        """
        try:
            async with self._lock.held():
                await self._settle()
            await self._fresh.resume()
            await self._history.prune(self._clock.now())
        except StorageError as error:
            logger.warning("the vault's history is not in order yet: %s", error.message)

    async def close(self) -> None:
        """Wait for what is under way. Idempotent."""
        while self._running:
            await asyncio.wait(set(self._running))
        await self._fresh.close()

    async def append(self, wish: Wish, lines: Sequence[bytes]) -> Change:
        """Add lines at the end; carried out even if the caller is cancelled."""
        return await self._owned(self._append(wish, lines), "append")

    async def rewrite(self, wish: Wish, make: Make, *, again: Make | None = None) -> Change:
        """Make the note `make(bytes)`; `again` for bytes that came at the last moment, else those are merged."""
        return await self._owned(self._rewrite(wish, make, again), "rewrite")

    async def undo(self, change_or_group: str | None, by: Author) -> list[Change]:
        """Take back all of it, or nothing of it."""
        return await self._owned(self._undo(change_or_group, by), "undo")

    async def _owned(self, work: Coroutine[Any, Any, T], name: str) -> T:
        task = asyncio.get_running_loop().create_task(work, name=f"vault/{name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the caller may have gone

    async def _append(self, wish: Wish, lines: Sequence[bytes]) -> Change:
        async with self._lock.held():
            known = await self._prepared(wish)
            if known is not None:
                return known
            await self._fresh.before_change(wish.name)
            path, block, new = await self._threads.run(self._block, wish.name, lines)
            change = self._change(wish, len(lines), 0)
            row = Row(change, None if new else b"", block.data, block.place, block.crc, block.seen)
            row = await self._begun(row)
            try:
                landed = await self._threads.run(append_block, path, block.data)
            except BaseException:
                await self._failed([(row, path)])
                raise
            await self._finished([(row, path)])
            if not landed.begins_line:
                await self._fresh.unglue(wish.name, path, landed.start, block.data)
            self._fresh.appended(wish.name, row.seq, expected_of(block.data, block.seen), path)
            if not landed.in_place:
                await self._fresh.mend_locked(wish.name)
        return await self._told(change)

    def _block(self, name: str, lines: Sequence[bytes]) -> tuple[Path, Block, bool]:
        path = self._names.resolve(name)
        present = read_note(path)
        block = block_of(lines, present)
        expect_size(block.place + len(block.data), name)
        return path, block, present is None

    async def _rewrite(self, wish: Wish, make: Make, again: Make | None) -> Change:
        async with self._lock.held():
            known = await self._prepared(wish)
            if known is not None:
                return known
            await self._fresh.before_change(wish.name)
            path, before, after = await self._threads.run(self._made, wish.name, make)
            change = self._change(wish, *await self._threads.run(counted, before, after))
            if before == after:
                return replace(change, state="done", repeated=True)
            row = await self._begun(Row(change, before, after))
            changes = await self._carried_out([Target(row, path, again)])
        return await self._told(changes[0])

    def _made(self, name: str, make: Make) -> tuple[Path, bytes | None, bytes | None]:
        path = self._names.resolve(name)
        before = read_note(path)
        after = make(before)
        expect_size(len(after or b""), name)
        return path, before, after

    async def _undo(self, change_or_group: str | None, by: Author) -> list[Change]:
        async with self._lock.held():
            await self._settle()
            rows = await self._history.rows(change_or_group or await self._history.last())
            rows = [row for row in rows if row.change.state == "done"]
            if not rows:
                raise Conflict(f"{change_or_group!r} is undone already", code="undo_conflict")
            for name in {row.path for row in rows}:
                await self._fresh.before_change(name)
            targets = await self._threads.run(self._taken_back, rows, by)
            numbers = await self._history.begin([target.row for target in targets])
            targets = [
                replace(target, row=replace(target.row, seq=number))
                for target, number in zip(targets, numbers, strict=True)
            ]
            changes = await self._carried_out(targets)
        return [await self._told(change) for change in changes]

    def _taken_back(self, rows: Sequence[Row], by: Author) -> list[Target]:
        """What each note of those changes becomes, the newest change taken back first."""
        targets = []
        group = new_id("undo", self._clock.now())
        for name in dict.fromkeys(row.path for row in rows):
            path = self._names.resolve(name)
            before = present = read_note(path)
            mine = [row for row in reversed(rows) if row.path == name]
            for row in mine:
                present = taken_back(row, present)
            wish = Wish(name, replace(by, group=group), "undo", undoes=" ".join(row.change.id for row in mine))
            targets.append(Target(Row(self._change(wish, *counted(before, present)), before, present), path))
        return targets

    async def _prepared(self, wish: Wish) -> Change | None:
        """Settle what others have left half done; the change when its key is known already."""
        await self._settle()
        known = await self._history.known(wish.key) if wish.key else None
        return known and replace(known, repeated=True)

    async def _settle(self) -> None:
        groups: dict[str, list[tuple[Row, Path]]] = {}
        for row in await self._history.pending():
            try:
                path = await self._threads.run(self._names.resolve, row.path)
            except InvalidPath:  # a link was put in its place: nothing there is ours
                await self._history.give_up([row.change])
                continue
            groups.setdefault(row.change.group, []).append((row, path))
        for rows in groups.values():
            try:
                await self._settle_rows(rows)
            except QworkspaceError as error:  # one note that cannot be read must not stop the others
                logger.warning("a change of %r is still half done: %s", rows[0][0].path, error.message)

    async def _settle_rows(self, rows: Sequence[tuple[Row, Path]]) -> None:
        results = await self._threads.run(settle, rows)
        done = [row.change for (row, _), took_place in zip(rows, results, strict=True) if took_place]
        if done:
            await self._history.finish(done)
        if len(done) < len(rows):
            await self._history.give_up([row.change for row, _ in rows if row.change not in done])
        for change in done:
            self._changed(change.path)

    async def _begun(self, row: Row) -> Row:
        return replace(row, seq=(await self._history.begin([row]))[0])

    async def _carried_out(self, targets: Sequence[Target]) -> list[Change]:
        rows = [(target.row, target.path) for target in targets]
        refused: QworkspaceError | None = None
        try:
            for number, target in enumerate(targets):
                row, refused = await self._put(target)
                rows[number] = (row, target.path)
        except BaseException:
            await self._failed(rows)
            raise
        if refused is not None:
            await self._history.give_up([row.change for row, _ in rows])
            raise refused
        await self._finished(rows)
        for row, _ in rows:
            self._fresh.accept(row.path, row.after)
        return [row.change for row, _ in rows]

    async def _put(self, target: Target) -> tuple[Row, QworkspaceError | None]:
        """Exchange the note until nothing came in between; what was put in the end, and what `again` has refused."""
        row, refused = target.row, None
        expected, new, again = row.before, row.after, target.again
        aside = aside_of(target.path, row.change.id)
        for _ in range(ROUNDS):
            old = await self._threads.run(put, target.path, expected, new, aside)
            self._fresh.follow(row.path, old)
            if old.data == expected or (old.data is None and new is not None):
                await self._threads.run(old.forget_name)
                return row, refused
            held = old.data if expected is None else new
            try:
                after = await self._threads.run(_said_again, again, expected, new, old.data)
            except QworkspaceError as error:
                after, refused = old.data, error
            again = None  # from now on the others see what was put: their changes are on top of it
            row = replace(row, before=old.data, after=after, seen={"attempt": zlib.crc32(held or b"")})
            await self._history.revise(row)
            await self._threads.run(old.forget_name)
            if held == after:
                return row, refused
            expected, new = held, after
        raise Conflict(f"{row.path!r} is being changed by another program all the time; try again later")

    async def _finished(self, rows: Sequence[tuple[Row, Path]]) -> None:
        try:
            await self._history.finish([row.change for row, _ in rows])
        except Exception:  # of a cancelled wait nobody knows: it may be stored, and what is pending is settled later
            await self._threads.run(_roll_back, rows)
            raise

    async def _failed(self, rows: Sequence[tuple[Row, Path]]) -> None:
        """The disk refused in the middle: what is recorded and what is there agree again, now or at the next change."""
        try:
            await self._settle_rows(rows)
        except QworkspaceError:
            return  # the rows stay pending

    def _change(self, wish: Wish, added: int, removed: int) -> Change:
        now = self._clock.now()
        id_ = new_id("chg", now)
        return Change(
            id=id_,
            group=wish.by.group or id_,
            at=now,
            by=wish.by,
            path=wish.name,
            operation=wish.operation,
            state="pending",
            added=added,
            removed=removed,
            undoes=wish.undoes,
            key=wish.key,
        )

    async def _told(self, change: Change) -> Change:
        self._changed(change.path)
        self._count += 1
        if self._count % PRUNE_EVERY == 0:
            await self._history.prune(self._clock.now())
        return replace(change, state="done")


def _said_again(again: Make | None, expected: bytes | None, new: bytes | None, theirs: bytes | None) -> bytes | None:
    if again is not None:
        return again(theirs)
    return merge(expected or b"", new or b"", theirs or b"", union=True)


def _roll_back(rows: Sequence[tuple[Row, Path]]) -> None:
    """Nobody was told of these changes, and they cannot be recorded."""
    for row, path in rows:
        data = read_note(path)
        if row.change.operation == "append":
            after = (data or b"")[: row.place] if data and data[row.place :] == row.after else data
            after = None if not after and row.before is None else after
        else:
            after = row.before if data == row.after else data
        if data != after:
            old = put(path, data, after, aside_of(path, row.change.id))
            old.forget_name()
            old.close()
