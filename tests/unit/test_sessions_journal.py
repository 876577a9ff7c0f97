"""The turn journal: what is acknowledged is stored, calls run at most once, an interrupted turn can be carried on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.errors import Conflict, NotFound, StorageError
from qworkspace.sessions.models import CallState, Message, ReasoningPart, TurnState, Usage
from tests.support.histories import faults
from tests.support.stores import Bench, lines, request, result, says


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path / ".state") as bench:
        yield bench


async def test_a_turn_from_its_request_to_its_end(bench: Bench) -> None:
    turn, _ = await bench.store.accept(request("look at it"))
    assert (turn.state, turn.user_id, turn.metadata, turn.started_at) == (TurnState.QUEUED, "ann", {"n": 1}, None)
    bench.clock.jump(1)
    await bench.store.begin(turn.id)
    bench.clock.jump(1)
    await bench.store.save_response(turn.id, says("let me see", "c1"), Usage(input_tokens=10, requests=1))
    await bench.store.call_started(turn.id, "c1")
    await bench.store.save_result(turn.id, result("c1"))
    await bench.store.save_context(turn.id, [{"kind": "memory", "title": "x", "text": "y"}])
    ended = await bench.store.finish(
        turn.id,
        TurnState.COMPLETED,
        text="let me see\n\nred",
        usage=Usage(input_tokens=25, requests=2),
        reply=says("red"),
    )
    assert (ended.state, ended.text, ended.usage) == (
        TurnState.COMPLETED,
        "let me see\n\nred",
        Usage(input_tokens=25, requests=2),
    )
    assert ended.context == [{"kind": "memory", "title": "x", "text": "y"}]
    assert ended.created_at < (ended.started_at or ended.created_at) < (ended.ended_at or ended.created_at)
    assert await bench.store.get_turn(turn.id) == ended
    assert lines(await bench.store.turn_messages(turn.id)) == [
        "user: look at it",
        "assistant: let me see",
        "tool: ",
        "assistant: red",
    ]


async def test_a_known_key_is_the_known_turn_in_its_own_session(bench: Bench) -> None:
    turn, fresh = await bench.store.accept(request("once", key="k"))
    again, fresh_again = await bench.store.accept(request("once more", key="k"))
    assert (again.id, fresh, fresh_again) == (turn.id, True, False)
    assert lines((await bench.store.messages("s1"))[0]) == ["user: once"]
    other, fresh = await bench.store.accept(request("once", session="s2", key="k"))
    assert fresh
    assert other.id != turn.id
    await bench.store.begin(turn.id)
    await bench.store.finish(turn.id, TurnState.COMPLETED, reply=says("done"))
    again, _ = await bench.store.accept(request("once", key="k"))
    assert (again.state, again.text) == (TurnState.COMPLETED, "done")


async def test_only_a_queued_turn_begins(bench: Bench) -> None:
    turn = await bench.ask()
    with pytest.raises(Conflict, match="is running; only a queued turn can begin"):
        await bench.store.begin(turn.id)


async def test_the_first_ending_stands(bench: Bench) -> None:
    turn = await bench.ask()
    error = {"code": "x", "message": "y", "retryable": False}
    await bench.store.finish(turn.id, TurnState.FAILED, error=error, partial=says("half a"))
    later = await bench.store.finish(turn.id, TurnState.COMPLETED, reply=says("whole"))
    assert (later.state, later.error, later.text) == (TurnState.FAILED, error, "half a")
    messages, _ = await bench.store.messages("s1")
    assert [(item.message.text, item.status) for item in messages] == [("hello", "completed"), ("half a", "failed")]


async def test_nothing_is_added_to_a_turn_that_has_ended(bench: Bench) -> None:
    turn = await bench.ask()
    await bench.store.save_response(turn.id, says("", "c"), turn.usage)
    await bench.store.finish(turn.id, TurnState.CANCELLED)
    for late in (
        bench.store.save_response(turn.id, says("late"), turn.usage),
        bench.store.save_result(turn.id, result("c")),
        bench.store.call_started(turn.id, "c"),
        bench.store.save_draft(turn.id, "late"),
    ):
        with pytest.raises(Conflict, match="has ended as cancelled"):
            await late


async def test_an_empty_message_is_never_stored(bench: Bench) -> None:
    turn = await bench.ask()
    thought = Message(role="assistant", parts=(ReasoningPart(text="hm"),))
    await bench.store.save_response(turn.id, thought, Usage(input_tokens=5))
    await bench.store.save_response(turn.id, says(" \n"), Usage(input_tokens=5))
    await bench.store.finish(
        turn.id, TurnState.CANCELLED, partial=says("  "), reply=Message(role="assistant", parts=())
    )
    assert lines((await bench.store.messages("s1"))[0]) == ["user: hello"]
    assert (await bench.store.get_turn(turn.id)).usage.input_tokens == 5


async def test_a_result_counts_once_and_only_for_a_call_that_was_made(bench: Bench) -> None:
    turn = await bench.ask()
    await bench.store.save_response(turn.id, says("", "c"), turn.usage)
    await bench.store.save_result(turn.id, result("c", "first"))
    await bench.store.save_result(turn.id, result("c", "second"))
    stored = await bench.store.turn_messages(turn.id)
    assert [part.text for part in stored[-1].message.parts if part.type == "tool_result"] == ["first"]
    for unknown in (bench.store.save_result(turn.id, result("x")), bench.store.call_started(turn.id, "x")):
        with pytest.raises(NotFound, match="made no such call"):
            await unknown


async def test_an_id_that_a_provider_uses_again_means_the_later_call(bench: Bench) -> None:
    turn = await bench.ask()
    for answer in ("first", "second"):
        await bench.store.save_response(turn.id, says("", "call_0"), turn.usage)
        assert await bench.store.pending_calls(turn.id) == {"call_0": CallState.PENDING}
        await bench.store.call_started(turn.id, "call_0")
        await bench.store.save_result(turn.id, result("call_0", answer))
    stored = await bench.store.turn_messages(turn.id)
    texts = [part.text for item in stored for part in item.message.parts if part.type == "tool_result"]
    assert texts == ["first", "second"]


# after a crash


async def test_what_was_open_is_interrupted_and_keeps_what_was_said(bench: Bench) -> None:
    done = await bench.talk("before", session="s0")
    running = await bench.ask("tell me a story")
    await bench.store.save_draft(running.id, "Once")
    await bench.store.save_draft(running.id, "Once upon a time")
    queued, _ = await bench.store.accept(request("and then?"))
    await bench.crash()
    found = {turn.id: turn for turn in [*(await bench.store.turns("s1"))[0], *(await bench.store.turns("s0"))[0]]}
    assert found[done.id].state is TurnState.COMPLETED
    assert found[running.id].state is TurnState.INTERRUPTED
    assert found[running.id].text == "Once upon a time"
    assert found[queued.id].state is TurnState.INTERRUPTED
    assert (found[queued.id].error or {})["code"] == "interrupted"
    messages, _ = await bench.store.messages("s1")
    assert [(item.message.text, item.status) for item in messages] == [
        ("tell me a story", "completed"),
        ("and then?", "completed"),
        ("Once upon a time", "interrupted"),
    ]
    interrupted = await bench.store.find_interrupted("s1")
    assert interrupted is not None
    assert interrupted.id == queued.id


async def test_the_next_message_works_with_the_strictest_provider(bench: Bench) -> None:
    turn = await bench.ask("look")
    await bench.store.save_response(turn.id, says("", "c1", "c2"), turn.usage)
    await bench.store.call_started(turn.id, "c1")
    await bench.crash()
    following = await bench.ask("and now?")
    history = await bench.store.history("s1", before_turn=following.id)
    assert faults([*history.messages, request("and now?").message]) == []
    results = [part for message in history.messages for part in message.parts if part.type == "tool_result"]
    assert [(part.id, part.outcome) for part in results] == [("c1", "interrupted"), ("c2", "interrupted")]


async def test_calls_tell_what_may_be_run_again(bench: Bench) -> None:
    turn = await bench.ask()
    await bench.store.save_response(turn.id, says("", "done", "started", "waiting"), turn.usage)
    await bench.store.call_started(turn.id, "done")
    await bench.store.save_result(turn.id, result("done"))
    await bench.store.call_started(turn.id, "started")
    await bench.crash()
    assert await bench.store.pending_calls(turn.id) == {
        "done": CallState.DONE,
        "started": CallState.STARTED,
        "waiting": CallState.PENDING,
    }


async def test_a_resumed_turn_goes_on_from_its_last_complete_step(bench: Bench) -> None:
    turn = await bench.ask("look")
    await bench.store.save_response(turn.id, says("let me see", "c"), Usage(input_tokens=10, requests=1))
    await bench.store.save_draft(turn.id, "it is re")
    await bench.crash()
    assert lines((await bench.store.messages("s1"))[0])[-1] == "assistant: it is re"
    again = await bench.store.reopen(turn.id)
    assert (again.state, again.error, again.text) == (TurnState.QUEUED, None, "")
    assert lines(await bench.store.turn_messages(turn.id)) == ["user: look", "assistant: let me see"]
    await bench.store.begin(turn.id)
    await bench.store.save_result(turn.id, result("c"))
    ended = await bench.store.finish(
        turn.id,
        TurnState.COMPLETED,
        text="let me see\n\nit is red",
        usage=Usage(input_tokens=7, requests=1),
        reply=says("it is red"),
    )
    assert ended.usage == Usage(input_tokens=17, requests=2)
    messages, _ = await bench.store.messages("s1")
    assert lines(messages) == ["user: look", "assistant: let me see", "tool: ", "assistant: it is red"]
    assert (await bench.store.get_session("s1")).message_count == 4
    assert faults((await bench.store.history("s1")).messages) == []
    said = [("user", "look"), ("assistant", "let me see\n\nit is red")]
    assert await bench.store.find_by_prefix("ann", said) == "s1"


async def test_only_an_interrupted_turn_is_resumed(bench: Bench) -> None:
    running = await bench.ask()
    ended = await bench.talk(session="s2")
    for turn in (running, ended):
        with pytest.raises(Conflict, match="only an interrupted one"):
            await bench.store.reopen(turn.id)
    with pytest.raises(NotFound):
        await bench.store.reopen("no")


async def test_a_turn_stopped_with_the_daemon_is_resumed_like_one_that_crashed(bench: Bench) -> None:
    turn = await bench.ask()
    await bench.store.finish(turn.id, TurnState.INTERRUPTED, partial=says("half"), error={"code": "interrupted"})
    await bench.store.stop()
    await bench.store.start()
    assert (await bench.store.reopen(turn.id)).state is TurnState.QUEUED
    assert lines(await bench.store.turn_messages(turn.id)) == ["user: hello"]


async def test_an_orderly_stop_and_start_changes_nothing(bench: Bench) -> None:
    await bench.talk()
    await bench.store.stop()
    await bench.store.stop()
    await bench.store.start()
    assert await bench.store.recover() == []
    assert lines((await bench.store.messages("s1"))[0]) == ["user: hello", "assistant: hi"]


# a disk that refuses or damages


async def test_what_a_full_disk_refused_was_not_acknowledged_and_works_later(bench: Bench) -> None:
    await bench.talk("before")

    def fill(db: object) -> None:
        db.execute(f"PRAGMA max_page_count={db.execute('PRAGMA page_count').fetchone()[0]}")  # type: ignore[attr-defined]

    await bench.store._database.write(fill)
    with pytest.raises(StorageError, match="the disk is full"):
        await bench.store.accept(request("x" * 200_000))
    assert [problem.agent_id for problem in bench.problems.of()] == ["a"]
    assert lines((await bench.store.messages("s1"))[0]) == ["user: before", "assistant: hi"]
    await bench.talk("after")
    assert bench.problems.of() == []
    assert len((await bench.store.messages("s1"))[0]) == 4


async def test_a_damaged_file_costs_only_what_cannot_be_read(bench: Bench) -> None:
    for n in range(60):
        await bench.talk(f"question {n} " * 20, f"answer {n} " * 20, session=f"s{n % 3}")
    before = {item.id: item for n in range(3) for item in (await bench.store.messages(f"s{n}"))[0]}
    await bench.store.stop()
    path = bench.directory / "sessions.db"
    data = bytearray(path.read_bytes())
    at = data.index(b"question 30 question 30")
    page = at // 4096 * 4096
    data[page : page + 4096] = b"\xa5" * 4096
    path.write_bytes(data)
    await bench.store.start()
    await bench.store.sessions()
    after = {item.id: item for n in range(3) for item in (await bench.store.messages(f"s{n}"))[0]}
    assert len(before) - 20 < len(after) < len(before)
    assert all(before[id] == item for id, item in after.items())
    [problem] = bench.problems.of("a")
    assert "was damaged; saved: 3 sessions" in problem.message
    assert [path.name for path in bench.directory.glob("*.damaged-*")] == ["sessions.db.damaged-20260101T000200Z"]
    await bench.talk("goes on", session="s0")
    assert faults((await bench.store.history("s0")).messages) == []


async def test_a_damaged_message_says_so_and_hides_no_other(bench: Bench) -> None:
    await bench.talk("one", "1")
    await bench.store._database.write(
        lambda db: db.execute("UPDATE messages SET parts = '[{\"type\": \"te' WHERE role = 'assistant'").rowcount
    )
    messages, _ = await bench.store.messages("s1")
    assert lines(messages) == [
        "user: one",
        "assistant: (this message was damaged on the disk and cannot be read)",
    ]
