"""Sessions as people see them: listed, searched, paged, renamed, removed; histories as models see them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.errors import Conflict, InvalidInput, NotFound
from qworkspace.sessions.models import FilePart, Message, TurnState
from tests.support.stores import Bench, lines, request, result, says


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path / ".state") as bench:
        yield bench


async def test_what_was_said_is_there_in_its_order(bench: Bench) -> None:
    await bench.talk("one", "1")
    await bench.talk("two", "2")
    messages, cursor = await bench.store.messages("s1")
    assert lines(messages) == ["user: one", "assistant: 1", "user: two", "assistant: 2"]
    assert cursor is None
    assert [item.status for item in messages] == ["completed"] * 4
    assert [item.created_at for item in messages] == sorted(item.created_at for item in messages)


async def test_a_message_is_there_as_soon_as_it_is_acknowledged(bench: Bench) -> None:
    turn, fresh = await bench.store.accept(request("just said"))
    assert fresh
    assert turn.state is TurnState.QUEUED
    assert lines((await bench.store.messages("s1"))[0]) == ["user: just said"]
    session = await bench.store.get_session("s1")
    assert (session.message_count, session.last_state, session.user_id) == (1, TurnState.QUEUED, "ann")


async def test_messages_come_in_pages_the_oldest_first(bench: Bench) -> None:
    for n in range(5):
        await bench.talk(f"q{n}", f"a{n}")
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        page, cursor = await bench.store.messages("s1", limit=3, cursor=cursor)
        assert len(page) <= 3
        seen += lines(page)
        if cursor is None:
            break
    assert seen == [line for n in range(5) for line in (f"user: q{n}", f"assistant: a{n}")]


async def test_sessions_come_in_pages_the_last_used_first(bench: Bench) -> None:
    for n in range(7):
        await bench.talk(session=f"s{n}")
    await bench.talk("again", session="s2")
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        page, cursor = await bench.store.sessions(limit=2, cursor=cursor)
        seen += [session.id for session in page]
        if cursor is None:
            break
    assert seen == ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]


async def test_sessions_of_one_moment_are_all_listed(bench: Bench) -> None:
    for n in range(6):
        await bench.store.accept(request(session=f"s{n}"))
    first, cursor = await bench.store.sessions(limit=4)
    rest, _ = await bench.store.sessions(limit=4, cursor=cursor)
    assert {session.id for session in [*first, *rest]} == {f"s{n}" for n in range(6)}


async def test_turns_come_in_pages_the_newest_first(bench: Bench) -> None:
    made = [(await bench.talk(f"{n}")).id for n in range(3)]
    first, cursor = await bench.store.turns("s1", limit=2)
    rest, end = await bench.store.turns("s1", limit=2, cursor=cursor)
    assert [turn.id for turn in [*first, *rest]] == made[::-1]
    assert end is None


@pytest.mark.parametrize("cursor", ["x", "W10", "!!", "WyJhIl0", "WzEsMl0", "W251bGxd", "WzFlMTAwXQ", "é", "W3RydWVd"])
async def test_a_cursor_that_was_never_given_out_is_refused(bench: Bench, cursor: str) -> None:
    for listing in (bench.store.messages("s1", cursor=cursor), bench.store.sessions(cursor=cursor)):
        with pytest.raises(InvalidInput) as caught:
            await listing
        assert caught.value.code == "invalid_cursor"


async def test_search_looks_into_titles_and_messages(bench: Bench) -> None:
    await bench.talk("Where is the Eiffel tower?", 'In "Paris", 100% sure', session="paris")
    await bench.talk("第一个问题", "好的", session="zh")
    await bench.talk("other", session="other", user="bob")

    async def found(query: str, user_id: str | None = None) -> list[str]:
        return [session.id for session in (await bench.store.sessions(query=query, user_id=user_id))[0]]

    assert await found("eiffel") == ["paris"]
    assert await found('"paris"') == ["paris"]
    assert await found("100%") == ["paris"]
    assert await found("1%0") == []
    assert await found("个问") == ["zh"]
    assert await found("_") == []
    assert await found("other", user_id="ann") == []
    assert await found("other", user_id="bob") == ["other"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("What is a monad?", "What is a monad?"),
        ("\n\n  # Plan   my\tweek \nplease", "Plan my week"),
        ("word " * 40, "word word word word word word word word word word word…"),
        ("长" * 100, "长" * 59 + "…"),
        ("", ""),
    ],
)
async def test_the_title_is_the_first_words(bench: Bench, text: str, title: str) -> None:
    await bench.store.accept(request(text))
    assert (await bench.store.get_session("s1")).title == title


async def test_the_title_of_a_picture_is_its_name(bench: Bench) -> None:
    picture = Message(role="user", parts=(FilePart(path="files/cat.png"),))
    ask: Any = request()
    object.__setattr__(ask, "message", picture)
    await bench.store.accept(ask)
    assert (await bench.store.get_session("s1")).title == "cat.png"


async def test_a_command_makes_no_lasting_title_but_a_person_does(bench: Bench) -> None:
    await bench.talk("/status", "all is well")
    await bench.talk("What next?")
    assert (await bench.store.get_session("s1")).title == "What next?"
    await bench.store.rename("s1", "  My\n plans ")
    await bench.talk("Something else")
    assert (await bench.store.get_session("s1")).title == "My plans"
    for wrong in ("", "  ", "x" * 201):
        with pytest.raises(InvalidInput):
            await bench.store.rename("s1", wrong)


async def test_what_does_not_exist_is_not_found(bench: Bench) -> None:
    for action in (
        bench.store.get_session("no"),
        bench.store.rename("no", "x"),
        bench.store.pin("no"),
        bench.store.delete("no"),
        bench.store.start_afresh("no"),
        bench.store.set_setting("no", "model", "x"),
        bench.store.get_turn("no"),
        bench.store.begin("no"),
        bench.store.save_context("no", []),
    ):
        with pytest.raises(NotFound):
            await action
    assert (await bench.store.messages("no"))[0] == []
    assert (await bench.store.history("no")).messages == []
    assert await bench.store.find_interrupted("no") is None


async def test_a_session_is_removed_with_everything_in_it_but_not_while_it_runs(bench: Bench) -> None:
    turn = await bench.ask()
    with pytest.raises(Conflict, match="stop it first"):
        await bench.store.delete("s1")
    await bench.store.save_response(turn.id, says("", "c"), turn.usage)
    await bench.store.finish(turn.id, TurnState.CANCELLED)
    await bench.store.set_setting("s1", "model", "x/y")
    await bench.talk(session="s2")
    await bench.store.delete("s1")
    assert (await bench.store.messages("s1"))[0] == []
    assert await bench.store.setting("s1", "model") is None
    assert [session.id for session in (await bench.store.sessions())[0]] == ["s2"]
    turn, fresh = await bench.store.accept(request())
    assert fresh


async def test_old_sessions_go_unless_they_are_pinned_or_busy(bench: Bench) -> None:
    for name in ("old", "pinned", "busy"):
        await bench.talk(session=name)
    await bench.store.pin("pinned")
    await bench.ask(session="busy")
    bench.clock.jump(31 * 86_400)
    await bench.talk(session="new")
    assert await bench.store.delete_older(30) == 1
    assert {session.id for session in (await bench.store.sessions())[0]} == {"pinned", "busy", "new"}
    assert (await bench.store.get_session("pinned")).pinned
    await bench.store.pin("pinned", False)
    assert await bench.store.delete_older(30) == 1


async def test_choices_of_a_session_stay_until_taken_back(bench: Bench) -> None:
    await bench.talk()
    await bench.store.set_setting("s1", "model", "openai/gpt")
    await bench.store.set_setting("s1", "model", "openai/other")
    await bench.store.set_setting("s1", "mode", "plan")
    assert await bench.store.setting("s1", "model") == "openai/other"
    await bench.store.set_setting("s1", "model", None)
    assert await bench.store.setting("s1", "model") is None
    assert await bench.store.setting("s1", "mode") == "plan"


async def test_files_and_directory_are_for_their_owner_only(bench: Bench) -> None:
    await bench.talk()
    assert stat.S_IMODE(bench.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in bench.directory.iterdir()} == {0o600}


async def test_fifty_sessions_in_parallel_keep_to_themselves_and_keep_their_order(bench: Bench) -> None:
    async def conversation(session: str) -> None:
        for n in range(5):
            await bench.talk(f"{session} q{n}", f"{session} a{n}", session=session)

    names = [f"s{n}" for n in range(50)]
    await asyncio.gather(*(conversation(name) for name in names))
    for name in names:
        found = lines((await bench.store.messages(name))[0])
        assert found == [line for n in range(5) for line in (f"user: {name} q{n}", f"assistant: {name} a{n}")]


# what a model is told


async def test_the_history_before_a_turn_is_what_earlier_turns_said(bench: Bench) -> None:
    await bench.talk("one", "1")
    first = await bench.ask("two")
    waiting, _ = await bench.store.accept(request("three"))
    before = await bench.store.history("s1", before_turn=first.id)
    assert [message.text for message in before.messages] == ["one", "1"]
    await bench.store.finish(first.id, TurnState.COMPLETED, reply=says("2"))
    before = await bench.store.history("s1", before_turn=waiting.id)
    assert [message.text for message in before.messages] == ["one", "1", "two", "2"]
    assert [item.message.text for item in before.stored] == ["one", "1", "two", "2"]
    assert [message.text for message in (await bench.store.history("s1")).messages] == ["one", "1", "two", "2"]
    await bench.store.begin(waiting.id)
    await bench.store.finish(waiting.id, TurnState.COMPLETED, reply=says("3"))
    answered = [message.text for message in (await bench.store.history("s1")).messages]
    assert answered == ["one", "1", "two", "2", "three", "3"]  # each answer behind its question
    await bench.talk(session="s2")
    with pytest.raises(NotFound):
        await bench.store.history("s2", before_turn=waiting.id)


async def test_after_a_fresh_start_nothing_earlier_is_seen_but_all_is_stored(bench: Bench) -> None:
    await bench.talk("old", "old answer")
    await bench.store.set_summary("s1", "they greeted", (await bench.store.messages("s1"))[0][0].id)
    command = await bench.ask("/new")
    queued, _ = await bench.store.accept(request("new question"))
    await bench.store.start_afresh("s1")
    await bench.store.finish(command.id, TurnState.COMPLETED, reply=says("a fresh start"), in_context=False)
    before = await bench.store.history("s1", before_turn=queued.id)
    assert (before.summary, before.messages) == (None, [])
    await bench.store.begin(queued.id)
    await bench.store.finish(queued.id, TurnState.COMPLETED, reply=says("new answer"))
    assert [message.text for message in (await bench.store.history("s1")).messages] == ["new question", "new answer"]
    assert len((await bench.store.messages("s1"))[0]) == 6


async def test_commands_stay_out_of_what_models_see(bench: Bench) -> None:
    await bench.talk("one", "1")
    turn = await bench.ask("/status")
    await bench.store.finish(turn.id, TurnState.COMPLETED, reply=says("all is well"), in_context=False)
    assert [message.text for message in (await bench.store.history("s1")).messages] == ["one", "1"]
    assert len((await bench.store.messages("s1"))[0]) == 4


async def test_a_summary_stands_for_the_messages_up_to_one(bench: Bench) -> None:
    for n in range(3):
        await bench.talk(f"q{n}", f"a{n}")
    messages, _ = await bench.store.messages("s1")
    await bench.store.set_summary("s1", "two questions were answered", messages[3].id)
    history = await bench.store.history("s1")
    assert history.summary == "two questions were answered"
    assert [message.text for message in history.messages] == ["q2", "a2"]
    assert len((await bench.store.messages("s1"))[0]) == 6
    with pytest.raises(NotFound):
        await bench.store.set_summary("s2", "x", messages[3].id)


async def test_a_summary_that_ends_within_a_turn_leaves_a_valid_rest(bench: Bench) -> None:
    turn = await bench.ask("look")
    await bench.store.save_response(turn.id, says("", "c"), turn.usage)
    await bench.store.save_result(turn.id, result("c"))
    await bench.store.finish(turn.id, TurnState.COMPLETED, reply=says("done"))
    messages, _ = await bench.store.messages("s1")
    await bench.store.set_summary("s1", "something was looked at", messages[1].id)
    history = await bench.store.history("s1")
    assert [message.role for message in history.messages] == ["user", "assistant"]
    assert history.messages[-1].text == "done"


# OpenAI clients send the whole conversation each time


async def test_a_client_is_recognised_by_exactly_what_was_said(bench: Bench) -> None:
    said = [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2")]
    await bench.talk("one", "1")
    await bench.talk("two ", "2")
    find = bench.store.find_by_prefix
    assert await find("ann", said) == "s1"
    assert await find("ann", [(role, f" {text}\n") for role, text in said]) == "s1"
    assert await find("bob", said) is None
    assert await find("ann", said[:2]) is None
    assert await find("ann", [*said, ("user", "three")]) is None
    assert await find("ann", [("assistant", "one"), *said[1:]]) is None
    assert await find("ann", []) is None
    await bench.talk("one", "1", session="copy")
    await bench.talk("two", "2", session="copy")
    assert await find("ann", said) == "copy"


async def test_a_turn_with_tools_is_recognised_by_its_whole_text(bench: Bench) -> None:
    turn = await bench.ask("look")
    await bench.store.save_response(turn.id, says("let me see", "c"), turn.usage)
    await bench.store.save_result(turn.id, result("c"))
    await bench.store.finish(turn.id, TurnState.COMPLETED, text="let me see\n\nit is red", reply=says("it is red"))
    said = [("user", "look"), ("assistant", "let me see\n\nit is red")]
    assert await bench.store.find_by_prefix("ann", said) == "s1"


async def test_recognising_a_client_reads_no_messages(bench: Bench) -> None:
    await bench.talk()
    plan = await bench.store._database.read(
        lambda db: db.execute(
            "EXPLAIN QUERY PLAN SELECT id FROM sessions WHERE digest = ? AND user_id = ? ORDER BY updated_at DESC",
            (b"", ""),
        ).fetchall()
    )
    assert "USING INDEX sessions_by_digest (digest=? AND user_id=?)" in str(plan)


async def test_lone_surrogates_are_stored_as_valid_text(bench: Bench) -> None:
    await bench.talk("a\ud83d b", "\udc00!", user="\ud800")
    assert lines((await bench.store.messages("s1"))[0]) == ["user: a\ufffd b", "assistant: \ufffd!"]
    assert (await bench.store.get_session("s1")).user_id == "\ufffd"
