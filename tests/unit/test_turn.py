"""One turn through its phases: hooks, commands, failures; and the one ending that each turn has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from qworkspace.base.scope import current_scope
from qworkspace.chat.turn import find_command
from qworkspace.errors import StorageError
from qworkspace.plugins.extensions import ContextNote, Phase, SlashCommand, ToolContext, ToolOutput, TurnContext
from qworkspace.sessions.models import Turn, TurnState, user_message
from tests.support.turns import TurnBench, Words, call, ended, kinds, notices, reached, says, until

pytestmark = pytest.mark.may_block  # the bench's databases work inline, in step with simulated time


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TurnBench]:
    async with TurnBench(tmp_path) as bench:
        yield bench


def noting(seen: list[str], name: str) -> Callable[[TurnContext], Awaitable[None]]:
    async def note(context: TurnContext) -> None:
        seen.append(name)

    return note


async def failing(context: TurnContext) -> None:
    raise ValueError("oops")


async def test_phases_run_in_their_order(bench: TurnBench) -> None:
    seen: list[str] = []
    for phase in Phase:
        bench.hook(phase, noting(seen, phase))
    await bench.ask("go")
    assert seen == [phase for phase in Phase if phase is not Phase.ON_ERROR]
    seen.clear()
    bench.model.will(says(RuntimeError("boom")))
    await bench.ask("go")
    assert seen[-2:] == [Phase.ON_ERROR, Phase.FINALLY] and Phase.POST_RESPONSE not in seen


async def test_a_command_needs_no_model_and_skips_what_is_for_one(bench: TurnBench) -> None:
    seen: list[str] = []
    for phase in Phase:
        bench.hook(phase, noting(seen, phase))
    live = await bench.send("/help stop")
    assert "Stop the running answer" in (await ended(live)).text
    assert seen == [Phase.PRE_DISPATCH, Phase.POST_DISPATCH, Phase.POST_RESPONSE, Phase.FINALLY]
    assert bench.model.prompts == [] and kinds(live) == ["turn.started", "text.delta", "turn.completed"]
    await bench.ask("hello")
    assert [message.text for message in bench.model.prompts[0].messages] == ["hello"]


async def test_a_hook_that_fails_is_named_and_skipped(bench: TurnBench) -> None:
    bench.hook(Phase.PRE_EXECUTE, failing, name="shaky")
    live = await bench.send("go")
    assert (await ended(live)).state is TurnState.COMPLETED
    assert notices(live) == ["hook_failed"]
    [problem] = bench.problems.of("anna")
    assert "'shaky' of 'test' failed at pre_execute: oops" in problem.message
    bench.extensions.remove_owner("test")
    bench.hook(Phase.PRE_EXECUTE, noting([], ""), name="shaky")
    await bench.ask("again")
    assert bench.problems.of("anna") == []


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.ON_ERROR, Phase.FINALLY)])
async def test_an_essential_hook_that_fails_fails_the_turn(bench: TurnBench, phase: Phase) -> None:
    bench.hook(phase, failing, essential=True)
    turn = await bench.ask("go")
    assert turn.error is not None and turn.error["code"] == "hook_failed"
    assert (await bench.ask("/status")).state is (
        TurnState.FAILED if phase in (Phase.PRE_DISPATCH, Phase.POST_DISPATCH, Phase.POST_RESPONSE) else
        TurnState.COMPLETED
    )  # fmt: skip


@pytest.mark.parametrize("essential", [False, True])
async def test_last_hooks_that_fail_change_nothing(bench: TurnBench, essential: bool) -> None:
    bench.hook(Phase.ON_ERROR, failing, name="a", essential=essential)
    bench.hook(Phase.FINALLY, failing, name="b", essential=essential)
    assert (await bench.ask("go")).state is TurnState.COMPLETED
    bench.model.will(says(RuntimeError("boom")))
    turn = await bench.ask("go")
    assert turn.error is not None and turn.error["code"] == "internal_error"


async def test_a_hook_may_answer_and_may_replace_the_message(bench: TurnBench) -> None:
    async def answer(context: TurnContext) -> None:
        if context.message.text == "ping":
            context.answer = "pong"
        else:
            context.message = user_message("[seen] " + context.message.text)

    bench.hook(Phase.PRE_DISPATCH, answer)
    assert (await bench.ask("ping")).text == "pong"
    assert bench.model.prompts == []
    assert (await bench.ask("hello")).text == "echo: [seen] hello"
    assert await bench.said() == [
        ("user", "ping"), ("assistant", "pong"), ("user", "hello"), ("assistant", "echo: [seen] hello"),
    ]  # fmt: skip
    assert [message.text for message in bench.model.prompts[0].messages] == ["ping", "pong", "[seen] hello"]


async def test_what_was_looked_up_is_kept_with_the_turn_and_not_in_the_history(bench: TurnBench) -> None:
    async def recall(context: TurnContext) -> None:
        context.notes.append(ContextNote("memory", "Cats", "There are two.", {"path": "MEMORY.md"}))

    bench.hook(Phase.PRE_EXECUTE, recall)
    bench.model.will("Two.")
    turn = await bench.ask("how many cats?")
    assert "There are two." in bench.model.prompts[0].messages[-1].parts[-1].text  # type: ignore[union-attr]
    stored = await bench.store.get_turn(turn.id)
    assert stored.context == [
        {"kind": "memory", "title": "Cats", "text": "There are two.", "origin": {"path": "MEMORY.md"}}
    ]
    await bench.ask("and dogs?")
    assert sum("There are two." in str(message) for message in bench.model.prompts[1].messages) == 1


async def test_hooks_and_tools_know_for_whom_they_act(bench: TurnBench) -> None:
    seen: list[tuple[str, str]] = []

    def look() -> None:
        scope = current_scope()
        assert scope is not None
        seen.append((scope.agent_id, scope.session_id))

    async def tool(context: ToolContext, args: Words) -> ToolOutput:
        look()
        return ToolOutput("ok")

    async def hook(context: TurnContext) -> None:
        look()

    for phase in (Phase.PRE_DISPATCH, Phase.FINALLY):
        bench.hook(phase, hook)
    bench.tool(run=tool)
    bench.model.will(says(call("note")))
    await bench.ask("go", "mine")
    assert seen == [("anna", "mine")] * 3 and current_scope() is None


async def test_what_nobody_expected_is_told_without_its_insides(bench: TurnBench) -> None:
    bench.model.will(says("half", RuntimeError("secret path /x")))
    live = await bench.send("go")
    turn = await ended(live)
    assert turn.error == {
        "code": "internal_error", "message": "something went wrong here; the log says what", "retryable": True,
    }  # fmt: skip
    assert kinds(live)[-1] == "turn.failed"


async def test_what_was_cancelled_from_inside_is_a_failure(bench: TurnBench) -> None:
    async def given_up(context: TurnContext) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    bench.hook(Phase.PRE_EXECUTE, given_up)
    turn = await bench.ask("go")
    assert turn.state is TurnState.FAILED and turn.error is not None and turn.error["code"] == "internal_error"


async def test_a_command_that_fails_says_why(bench: TurnBench) -> None:
    turn = await bench.ask("/model no/such")
    assert turn.state is TurnState.FAILED and turn.error is not None
    assert "no model 'no/such'" in turn.error["message"]


async def test_a_stop_while_a_hook_looks_at_the_failure_is_too_late(bench: TurnBench) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def look(context: TurnContext) -> None:
        seen.append(str(context.error))
        await gate.wait()

    bench.hook(Phase.ON_ERROR, look)
    bench.model.will(says(RuntimeError("boom")))
    live = await bench.send("go")
    await until(lambda: seen == ["boom"])
    stopping = asyncio.create_task(bench.runner.cancel("s1"))
    await bench.clock.advance(0.1)
    gate.set()
    await stopping
    assert live.turn.state is TurnState.FAILED
    assert (await bench.ask("next")).state is TurnState.COMPLETED


@pytest.mark.parametrize("phase", [Phase.ON_ERROR, Phase.FINALLY])
async def test_a_last_hook_that_hangs_does_not_hold_up_the_end(bench: TurnBench, phase: Phase) -> None:
    async def hang(context: TurnContext) -> None:
        await asyncio.Event().wait()

    bench.hook(phase, hang)
    bench.model.will(says(RuntimeError("boom")))
    live = await bench.send("go")
    for _ in range(100):
        await bench.clock.advance(0.1)
    assert (await ended(live)).state is TurnState.FAILED
    assert bench.clock.monotonic() < 11


async def test_a_stop_after_the_last_word_keeps_the_word(bench: TurnBench) -> None:
    gate = asyncio.Event()

    async def wait(context: TurnContext) -> None:
        await gate.wait()

    bench.hook(Phase.FINALLY, wait)
    live = await bench.send("go")
    await until(lambda: live.text == "echo: go")
    await bench.clock.advance(0.1)
    stopping = asyncio.create_task(bench.runner.cancel("s1"))
    await bench.clock.advance(0.1)
    gate.set()
    await stopping
    assert live.turn.state is TurnState.COMPLETED
    assert await bench.said() == [("user", "go"), ("assistant", "echo: go")]


async def test_an_ending_that_the_disk_refuses_is_told_and_stored_later(
    bench: TurnBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = bench.store.finish
    refusals = [StorageError("the disk is full")] * 2

    async def full(*args: object, **kwargs: object) -> Turn:
        if refusals:
            raise refusals.pop()
        return await finish(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.store, "finish", full)
    live = await bench.send("go")
    await ended(live)
    last = live.log.since(live.log.last - 1)[-1]
    assert (last.type, last.data["code"], last.data["retryable"]) == ("turn.failed", "storage_error", True)
    assert await bench.states() == ["running"]
    await bench.clock.advance(11)
    assert await bench.states() == ["completed"]
    assert await bench.said() == [("user", "go"), ("assistant", "echo: go")]


async def test_a_message_that_the_disk_refuses_is_not_acknowledged(
    bench: TurnBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(request: object) -> tuple[Turn, bool]:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "accept", full)
        with pytest.raises(StorageError):
            await bench.send("go")
    assert not bench.runner.busy
    assert (await bench.ask("go")).state is TurnState.COMPLETED
    assert [text for role, text in await bench.said() if role == "user"] == ["go"]


async def test_the_bus_hears_of_beginning_and_end(bench: TurnBench) -> None:
    bench.model.will(says("a", 0.5, "b"))
    live = await bench.send("go")
    await reached(live, "turn.started")
    await bench.clock.advance(1)
    await ended(live)
    await until(lambda: not bench.runner.busy)
    [began] = bench.events("turn.started")
    assert began == {"agent_id": "anna", "session_id": "s1", "turn_id": live.id, "source": "chat"}
    [done] = bench.events("turn.completed")
    assert (done["duration_ms"], done["first_token_ms"], done["model"]) == (500, 0, "test/one")
    assert done["usage"]["output_tokens"] == 5


async def test_a_sessions_own_model_is_used(bench: TurnBench) -> None:
    await bench.ask("/model test/two")
    bench.second.will("from the second")
    live = await bench.send("go")
    assert (await ended(live)).text == "from the second"
    assert (await reached(live, "turn.started")).data["model"] == "test/two"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/help", ("help", "")),
        ("  /help me  please ", ("help", "me  please")),
        ("/hepl", "There is no command /hepl. Did you mean /help? /help lists all commands."),
        ("/hepl me", "There is no command /hepl. Did you mean /help? /help lists all commands."),
        ("/zzz", "There is no command /zzz. /help lists all commands."),
        ("/etc/passwd is a file", None),
        ("/usr is a directory", None),
        ("help", None),
        ("/", None),
        ("", None),
    ],
)
async def test_what_is_a_command(bench: TurnBench, text: str, found: object) -> None:
    command = find_command(text, bench.extensions)
    shown = (command[0].name, command[1]) if isinstance(command, tuple) else command
    assert shown == found


async def test_a_plugin_command_that_says_nothing_is_done(bench: TurnBench) -> None:
    async def quiet(context: TurnContext, rest: str) -> str:
        return ""

    bench.extensions.commands.add("quiet", SlashCommand("quiet", "Say nothing.", quiet), owner="test")
    assert (await bench.ask("/quiet")).text == "/quiet: done"
