"""Killed at any point: what was acknowledged is there once and in order, histories are valid, open turns are marked."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.sessions.models import CallState, StoredMessage, TurnState, Usage, user_message
from qworkspace.sessions.store import SessionStore
from tests.support.histories import faults
from tests.support.stores import Bench, request, result, says

SESSIONS = ("s0", "s1")
ENDINGS = [TurnState.COMPLETED, TurnState.FAILED, TurnState.CANCELLED, TurnState.INTERRUPTED]


@dataclass
class Expected:
    """A turn as it has to be found again."""

    id: str
    state: TurnState
    calls: dict[str, CallState] = field(default_factory=dict)
    draft: str = ""
    partial: str = ""


@dataclass
class Talk:
    """A session as it has to be found again: what was acknowledged, in its order."""

    turns: list[Expected] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def first(self, *states: TurnState) -> Expected | None:
        return next((turn for turn in self.turns if turn.state in states), None)


class Player:
    """Plays operations on a store and notes what was acknowledged."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._count = 0
        self.talks = {session: Talk() for session in SESSIONS}

    async def play(self, session: str, choice: int, number: int) -> None:
        """One of the operations that are possible now in that session."""
        self._bench.clock.jump(number % 2)  # now and then two things happen at one moment
        self._count += 1
        talk = self.talks[session]
        possible = _possible(talk)
        await getattr(self, f"_{possible[choice % len(possible)]}")(session, talk, number)

    def _word(self, kind: str) -> str:
        return f"{kind} {self._count} " + "long " * (self._count % 7 * 100)

    @property
    def _store(self) -> SessionStore:
        return self._bench.store

    async def _accept(self, session: str, talk: Talk, number: int) -> None:
        text = self._word("question")
        turn, _ = await self._store.accept(request(text, session))
        talk.turns.append(Expected(turn.id, TurnState.QUEUED))
        talk.said.append(text)

    async def _begin(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.QUEUED)
        if turn is not None and talk.first(TurnState.RUNNING) is None:
            await self._store.begin(turn.id)
            turn.state = TurnState.RUNNING

    async def _respond(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.RUNNING)
        if turn is None or any(state is not CallState.DONE for state in turn.calls.values()):
            return
        calls = [f"call{self._count}.{n}" for n in range(1 + number % 3)]
        text = self._word("thinking") if number % 2 else ""
        await self._store.save_response(turn.id, says(text, *calls), Usage(input_tokens=1))
        turn.calls |= dict.fromkeys(calls, CallState.PENDING)
        turn.draft = ""
        talk.said.append(text)

    async def _start(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.RUNNING)
        pending = [call for call, state in (turn.calls if turn else {}).items() if state is CallState.PENDING]
        if turn is not None and pending:
            await self._store.call_started(turn.id, pending[-1])
            turn.calls[pending[-1]] = CallState.STARTED

    async def _result(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.RUNNING)
        started = [call for call, state in (turn.calls if turn else {}).items() if state is CallState.STARTED]
        if turn is not None and started:
            text = self._word("seen")
            await self._store.save_result(turn.id, result(started[0], text))
            turn.calls[started[0]] = CallState.DONE
            talk.said.append(text)

    async def _draft(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.RUNNING)
        if turn is not None:
            text = self._word("drafting")
            await self._store.save_draft(turn.id, text)
            turn.draft = text

    async def _finish(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.RUNNING)
        if turn is None:
            return
        state, text = ENDINGS[number % len(ENDINGS)], self._word("answer")
        whole = state is TurnState.COMPLETED
        message = {"reply": says(text)} if whole else {"partial": says(text)}
        await self._store.finish(turn.id, state, text=text, **message)  # type: ignore[arg-type]
        turn.state, turn.draft, turn.partial = state, "", text if state is TurnState.INTERRUPTED else ""
        talk.said.append(text)

    async def _reopen(self, session: str, talk: Talk, number: int) -> None:
        turn = talk.first(TurnState.INTERRUPTED)
        if turn is not None:
            await self._store.reopen(turn.id)
            turn.state = TurnState.QUEUED
            if turn.partial:
                talk.said.remove(turn.partial)

    async def _afresh(self, session: str, talk: Talk, number: int) -> None:
        if talk.turns:
            await self._store.start_afresh(session)

    async def _summarise(self, session: str, talk: Talk, number: int) -> None:
        messages, _ = await self._store.messages(session)
        if messages:
            await self._store.set_summary(session, "so far", messages[number % len(messages)].id)


def _possible(talk: Talk) -> list[str]:
    """Names of operations; what leads on stands more than once."""
    running = talk.first(TurnState.RUNNING)
    states = set(running.calls.values()) if running is not None else set()
    checks = {
        "accept": len(talk.turns) < 6,
        "begin begin": running is None and talk.first(TurnState.QUEUED) is not None,
        "respond respond respond": running is not None and states <= {CallState.DONE},
        "start start": CallState.PENDING in states,
        "result result": CallState.STARTED in states,
        "draft finish": running is not None,
        "reopen": talk.first(TurnState.INTERRUPTED) is not None,
        "afresh summarise": len(talk.turns) > 1,
    }
    return [name for names, possible in checks.items() if possible for name in names.split()] or ["afresh"]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(SESSIONS), st.integers(0, 2**16), st.integers(0, 11)), min_size=1, max_size=45
)


async def _check(bench: Bench, talks: dict[str, Talk]) -> None:
    for session, talk in talks.items():
        messages, _ = await bench.store.messages(session, limit=1000)
        _check_messages(messages, talk)
        for turn in talk.turns:
            expected = turn.state if turn.state.ended else TurnState.INTERRUPTED
            assert (await bench.store.get_turn(turn.id)).state is expected
            assert await bench.store.pending_calls(turn.id) == turn.calls
            history = await bench.store.history(session, before_turn=turn.id)
            assert faults([*history.messages, user_message("next")]) == []
        history = await bench.store.history(session)
        assert faults([*history.messages, user_message("next")]) == []


def _check_messages(messages: list[StoredMessage], talk: Talk) -> None:
    drafts = [turn.draft for turn in talk.turns if turn.draft]
    recovered = [item for item in messages if item.message.text in drafts]
    assert [(item.message.text, item.status) for item in recovered] == [(text, "interrupted") for text in drafts]
    assert [_text(item) for item in messages if item not in recovered] == talk.said
    assert len({item.id for item in messages}) == len(messages)


def _text(item: StoredMessage) -> str:
    return "".join(part.text for part in item.message.parts if part.type in ("text", "tool_result"))


async def _play_and_crash(operations: list[tuple[str, int, int]], directory: Path) -> None:
    async with Bench(directory / "state") as bench:
        player = Player(bench)
        for operation in operations:
            await player.play(*operation)
        await bench.crash()
        await _check(bench, player.talks)
        assert bench.problems.of() == []
        for talk in player.talks.values():  # it can be carried on
            for turn in talk.turns:
                if (await bench.store.get_turn(turn.id)).state is TurnState.INTERRUPTED:
                    await bench.store.reopen(turn.id)
                    await bench.store.begin(turn.id)
                    await bench.store.finish(turn.id, TurnState.COMPLETED, reply=says("resumed"))
        for session in SESSIONS:
            assert faults((await bench.store.history(session)).messages) == []


@settings(max_examples=40, deadline=None)
@given(OPERATIONS)
def test_killed_after_any_operation(operations: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_play_and_crash(operations, Path(directory)))


async def _play_and_tear(operations: list[tuple[str, int, int]], share: float, directory: Path) -> None:
    """The last operation was being written when the machine stopped: of its bytes only a share has arrived."""
    async with Bench(directory / "state") as bench:
        player = Player(bench)
        log = bench.directory / "sessions.db-wal"
        for operation in operations[:-1]:
            await player.play(*operation)
        size = log.stat().st_size
        shutil.copytree(bench.directory, directory / "before")
        acknowledged = {name: Talk([*talk.turns], [*talk.said]) for name, talk in player.talks.items()}
        states = {turn.id: turn.state for talk in player.talks.values() for turn in talk.turns}
        await player.play(*operations[-1])
        torn = directory / "torn"
        shutil.copytree(bench.directory, torn)
        with (torn / log.name).open("rb+") as file:
            file.truncate(size + int((log.stat().st_size - size) * share))
        async with Bench(torn) as after:
            for name, talk in acknowledged.items():
                messages, _ = await after.store.messages(name, limit=1000)
                found = [_text(item) for item in messages if item.status != "interrupted"]
                expected = [text for text in talk.said if not _is_partial(text, talk)]
                assert found[: len(expected)] == expected
                assert len(found) - len(expected) <= 1
                for turn in talk.turns:
                    state = (await after.store.get_turn(turn.id)).state
                    assert state in (states[turn.id], turn.state, TurnState.INTERRUPTED)
                assert faults([*(await after.store.history(name)).messages, user_message("next")]) == []


def _is_partial(text: str, talk: Talk) -> bool:
    return any(turn.partial and turn.partial == text for turn in talk.turns)


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]))
def test_torn_in_the_middle_of_an_operation(operations: list[tuple[str, int, int]], share: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_play_and_tear(operations, share, Path(directory)))
