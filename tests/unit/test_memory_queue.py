"""The summarize queue: durable, serial, exactly once, visible when it fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qworkspace.errors import ModelError, NotFound, StorageError, Unavailable
from qworkspace.memory.asking import NoModel
from qworkspace.memory.notes import Change
from qworkspace.sessions.models import TurnState
from tests.support.extracting import VaultWorkshop, Workshop, facts
from tests.support.stores import request, says

DOWN = ModelError("cannot reach the provider", code="model_unreachable", retryable=True)
BROKEN = ModelError("the provider's answer makes no sense")


async def queued(shop: Workshop, *sessions: str) -> None:
    """A turn in each session, and its task."""
    for session in sessions:
        turn = await shop.bench.talk(f"I like {session}", session=session)
        await shop.queue.add(session, reason="asked", upto_turn=turn.id)


async def test_tasks_are_worked_off_in_order_and_never_two_at_a_time(tmp_path: Path) -> None:
    replies = [facts(f"Ann likes {name}.") for name in ("tea", "rain", "jazz")]
    async with Workshop(tmp_path, *replies) as shop:
        shop.queue.activate()
        await queued(shop, "tea", "rain", "jazz")
        await shop.queue.idle()
        assert shop.notes.lines == ["- Ann likes tea.", "- Ann likes rain.", "- Ann likes jazz."]
        assert shop.ask.most_running == 1
        assert {state for _, state in await shop.states()} == {"done"}
        assert shop.queue.status().waiting == 0


async def test_a_task_survives_a_process_that_ends_at_once(tmp_path: Path) -> None:
    async with Workshop(tmp_path, facts("Ann likes tea.")) as shop:
        await queued(shop, "tea")
        assert shop.notes.lines == []
        await shop.restart()
        assert shop.notes.lines == ["- Ann likes tea."]


async def test_wishes_for_one_session_become_one_question(tmp_path: Path) -> None:
    async with Workshop(tmp_path, facts("Ann likes tea.")) as shop:
        await queued(shop, "tea", "tea", "tea")
        await shop.restart()
        assert len(shop.ask.questions) == 1
        assert shop.ask.questions[0].count("user: I like tea") == 3


async def test_a_wish_during_the_extraction_is_not_lost(tmp_path: Path) -> None:
    async def meanwhile(question: str) -> str:
        await shop.bench.talk("I also like rain", session="tea")
        await shop.queue.add("tea", reason="asked")
        return facts("Ann likes tea.")

    async with Workshop(tmp_path, meanwhile) as shop:
        await queued(shop, "tea")
        await shop.restart()
        assert ["I also like rain" in question for question in shop.ask.questions] == [False, True]


@pytest.mark.parametrize("struck", [False, True])
async def test_whatever_moment_the_process_dies_at_each_fact_is_there_once(tmp_path: Path, struck: bool) -> None:
    points = 0
    died = True
    while died:
        points += 1
        directory = tmp_path / str(points)
        directory.mkdir()
        async with Workshop(directory) as shop:
            shop.notes.texts["MEMORY.md"] = "# Facts\n- Ann likes coffee.\n"
            await queued(shop, "tea")
            more = {"supersedes": "Ann likes coffee."} if struck else {}
            shop.ask.replies = [facts("Ann likes tea.", "Ann lives in Rome.", **more)] * 2
            died = await shop.die(points)
            await shop.restart()
            old = "- ~~Ann likes coffee.~~" if struck else "- Ann likes coffee."
            assert shop.notes.lines == ["# Facts", old, "- Ann likes tea.", "- Ann lives in Rome."]
            assert await shop.states() == [("tea", "done")]
    assert points > 10


async def test_in_the_real_vault_too_each_fact_is_there_once_and_can_be_undone(tmp_path: Path) -> None:
    points = 0
    died = True
    while died:
        points += 1
        directory = tmp_path / str(points)
        directory.mkdir()
        async with VaultWorkshop(directory) as shop:
            before = "# Facts\n- Ann likes coffee.\n"
            (directory / "MEMORY.md").write_text(before)
            await queued(shop, "tea")
            shop.ask.replies = [facts("Ann likes tea.", supersedes="Ann likes coffee.")] * 2
            died = await shop.die(points, hangs=False)
            await shop.restart()
            assert shop.notes.lines == ["# Facts", "- ~~Ann likes coffee.~~", "- Ann likes tea."]
            (task,) = await shop.queue.tasks()
            assert task.state == "done"
            await shop.vault.undo(task.id)
            assert shop.notes.texts["MEMORY.md"] == before
            assert "tea" not in "".join(shop.notes.texts.values())
    assert points > 8


async def test_three_failures_set_a_task_aside_visibly_and_the_next_one_goes_on(tmp_path: Path) -> None:
    def reply(question: str) -> str:
        if "I like poison" in question:
            raise BROKEN
        return facts("Ann likes tea.")

    async with Workshop(tmp_path, *[reply] * 9) as shop:
        shop.queue.activate()
        await queued(shop, "poison", "tea")
        await shop.queue.idle()
        assert shop.notes.lines == ["- Ann likes tea."]
        await shop.advance(10)
        await shop.advance(60)
        assert await shop.states() == [("poison", "aside"), ("tea", "done")]
        (problem,) = shop.problems
        assert "poison" in problem.message and "makes no sense" in problem.message
        task = (await shop.queue.tasks())[0]
        assert task.id in problem.message
        await shop.restart()
        assert [problem.key for problem in shop.problems] == [problem.key]
        shop.ask.replies = [facts("Ann likes poison.")]
        await shop.queue.retry(task.id)
        await shop.queue.idle()
        assert "- Ann likes poison." in shop.notes.lines
        assert shop.problems == []
        with pytest.raises(NotFound):
            await shop.queue.retry(task.id)


async def test_a_provider_that_is_down_is_waited_for_and_is_no_failure_for_an_hour(tmp_path: Path) -> None:
    async with Workshop(tmp_path, *[DOWN] * 8, facts("Ann likes tea.")) as shop:
        shop.queue.activate()
        await queued(shop, "tea")
        await shop.queue.idle()
        assert [problem.severity for problem in shop.problems] == ["warning"]
        assert "cannot reach the provider" in shop.queue.status().waits_for
        for _ in range(12):
            await shop.advance(300)
        assert shop.notes.lines == ["- Ann likes tea."]
        assert shop.problems == []
        assert shop.queue.status().waits_for == ""


async def test_one_session_that_the_provider_chokes_on_blocks_nobody(tmp_path: Path) -> None:
    def reply(question: str) -> str:
        if "I like poison" in question:
            raise DOWN
        return facts()

    async with Workshop(tmp_path, *[reply] * 40) as shop:
        shop.queue.activate()
        await queued(shop, "poison", "tea", "rain", "jazz")
        for _ in range(5):
            await shop.advance(60)
        assert [state for session, state in await shop.states() if session != "poison"] == ["done"] * 3
        for _ in range(5):
            await shop.advance(60)
            await queued(shop, "tea")
        await shop.queue.idle()
        assert sorted(await shop.states())[:2] == [("jazz", "done"), ("poison", "aside")]
        assert {state for session, state in await shop.states() if session != "poison"} == {"done"}


async def test_what_a_long_outage_set_aside_comes_back_by_itself(tmp_path: Path) -> None:
    async with Workshop(tmp_path, *[DOWN] * 40) as shop:
        shop.queue.activate()
        await queued(shop, "tea")
        for _ in range(20):
            await shop.advance(601)
        assert await shop.states() == [("tea", "aside")]
        shop.ask.replies = [facts("Ann likes rain."), facts("Ann likes tea.")]
        await queued(shop, "rain")
        shop.queue.wake()
        await shop.queue.idle()
        assert shop.notes.lines == ["- Ann likes rain.", "- Ann likes tea."]
        assert shop.problems == []


async def test_without_a_model_everything_waits_until_there_is_one(tmp_path: Path) -> None:
    async with Workshop(tmp_path, *[NoModel("no model")] * 99) as shop:
        shop.queue.activate()
        await queued(shop, "tea", "rain")
        for _ in range(30):
            await shop.advance(601)
        assert {state for _, state in await shop.states()} == {"queued"}
        assert shop.queue.status().waiting == 2
        assert "model" in shop.queue.status().waits_for
        assert shop.problems == []
        shop.ask.replies = [facts("Ann likes tea."), facts("Ann likes rain.")]
        shop.queue.wake()
        await shop.queue.idle()
        assert shop.notes.lines == ["- Ann likes tea.", "- Ann likes rain."]


async def test_a_full_disk_is_waited_for_with_what_was_extracted(tmp_path: Path) -> None:
    async with Workshop(tmp_path, facts("Ann likes tea.")) as shop:
        append, full = shop.notes.append, [StorageError("the disk is full")]

        async def refusing(*args: Any, **kwargs: Any) -> Change:
            if full:
                raise full.pop()
            return await append(*args, **kwargs)

        shop.notes.append = refusing  # type: ignore[method-assign]
        shop.queue.activate()
        await queued(shop, "tea")
        await shop.queue.idle()
        assert await shop.states() == [("tea", "extracted")]
        await shop.advance(16)
        assert shop.notes.lines == ["- Ann likes tea."]
        assert len(shop.ask.questions) == 1


async def test_a_deleted_session_leaves_nothing(tmp_path: Path) -> None:
    async def deleting(question: str) -> str:
        await shop.bench.store.delete("rain")
        return facts("Ann likes rain.")

    async with Workshop(tmp_path, deleting) as shop:
        await queued(shop, "tea", "rain")
        await shop.bench.store.delete("tea")
        await shop.restart()
        assert shop.notes.lines == []
        assert {state for _, state in await shop.states()} == {"done"}
        assert shop.problems == []


async def test_every_fifth_turn_is_queued_and_the_rest_when_it_is_quiet(tmp_path: Path) -> None:
    async with Workshop(tmp_path) as shop:
        shop.queue.activate()
        for number in range(7):
            turn = await shop.bench.talk(f"fact {number}")
            await shop.queue.turn_ended("s1", turn.id, "chat")
        await shop.queue.idle()
        assert [question.count("user: fact") for question in shop.ask.questions] == [5]
        await shop.advance(599)
        assert len(shop.ask.questions) == 1
        await shop.advance(2)
        assert [question.count("user: fact") for question in shop.ask.questions] == [5, 2]
        await shop.advance(7_200)
        assert len(shop.ask.questions) == 2


async def test_a_restart_catches_up_on_what_was_never_queued(tmp_path: Path) -> None:
    async with Workshop(tmp_path) as shop:
        await shop.bench.talk("an old one", session="old")
        shop.clock.jump(700)
        for number in range(5):
            await shop.bench.talk(f"fact {number}", session="many")
        await shop.bench.talk("a new one", session="new")
        await shop.restart()
        assert sorted(question.count("user: ") for question in shop.ask.questions) == [1, 5]
        assert not any("a new one" in question for question in shop.ask.questions)
        await shop.advance(601)
        assert "a new one" in shop.ask.questions[-1]
        await shop.restart()
        assert len(shop.ask.questions) == 3


async def test_what_the_daemon_says_to_itself_is_not_remembered(tmp_path: Path) -> None:
    async with Workshop(tmp_path) as shop:
        await shop.bench.talk("my cat is Minka")
        asked = replace(request("heartbeat prompt"), source="heartbeat")
        turn, _ = await shop.bench.store.accept(asked)
        await shop.bench.store.begin(turn.id)
        await shop.bench.store.finish(turn.id, TurnState.COMPLETED, text="ok", reply=says("ok"))
        await shop.queue.turn_ended("s1", turn.id, "heartbeat")
        await shop.queue.add("s1", reason="idle")
        await shop.restart()
        assert "Minka" in shop.ask.questions[0] and "heartbeat prompt" not in shop.ask.questions[0]
        await shop.queue.add("s1", reason="idle")
        await shop.queue.idle()
        assert len(shop.ask.questions) == 1


async def test_a_resumed_turn_is_not_extracted_again(tmp_path: Path) -> None:
    async with Workshop(tmp_path) as shop:
        turn = await shop.bench.ask("my cat is Minka")
        await shop.bench.store.recover()
        await shop.queue.add("s1", reason="idle")
        await shop.restart()
        assert len(shop.ask.questions) == 1
        await shop.bench.store.reopen(turn.id)
        await shop.bench.store.begin(turn.id)
        await shop.bench.store.finish(turn.id, TurnState.COMPLETED, text="nice", reply=says("nice"))
        await shop.queue.add("s1", reason="idle")
        await shop.queue.idle()
        assert len(shop.ask.questions) == 1


async def test_a_turn_that_still_runs_is_waited_for(tmp_path: Path) -> None:
    async with Workshop(tmp_path) as shop:
        shop.queue.activate()
        turn = await shop.bench.ask("my cat is Minka")
        await shop.queue.add("s1", reason="interval", upto_turn=turn.id)
        await shop.queue.idle()
        assert shop.ask.questions == []
        await shop.bench.store.finish(turn.id, TurnState.COMPLETED, text="nice", reply=says("nice"))
        await shop.advance(2)
        assert "Minka" in shop.ask.questions[0]


async def test_summarize_tells_how_many_facts_were_kept_and_why_not(tmp_path: Path) -> None:
    async with Workshop(tmp_path, facts("Ann likes tea.", "Ann lives in Rome."), NoModel("no model")) as shop:
        with pytest.raises(Unavailable):
            await shop.queue.summarize("s1")
        shop.queue.activate()
        await shop.bench.talk("I like tea and live in Rome")
        assert await shop.queue.summarize("s1") == 2
        await shop.bench.talk("and rain")
        with pytest.raises(NoModel):
            await shop.queue.summarize("s1")
        assert shop.queue.status().waiting == 1


async def test_a_replaced_queue_hands_over_and_nothing_is_done_twice(tmp_path: Path) -> None:
    async def reply(question: str) -> str:
        begun.set()
        await going.wait()
        return facts("Ann likes tea.")

    begun, going, actor = asyncio.Event(), asyncio.Event(), asyncio.Lock()
    async with Workshop(tmp_path, reply, reply) as shop:
        old, new = shop.make(actor), shop.make(actor)
        shop.queue = new
        await queued(shop, "tea")
        old.activate()
        await begun.wait()
        assert old.busy
        old.deactivate()
        new.activate()
        going.set()
        await new.idle()
        assert (shop.notes.lines, old.busy, new.busy) == (["- Ann likes tea."], False, False)
        assert shop.ask.most_running == 1
        await old.close()
