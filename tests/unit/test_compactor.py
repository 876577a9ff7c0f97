"""A history that outgrows the window is summarised, stored so, and goes on being accepted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.base.ids import agent_id, session_id
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.compactor import Compactor
from qworkspace.chat.offline import OfflineModel
from qworkspace.chat.reliable import RetryPolicy
from qworkspace.chat.wire import ChatModel, Prompt
from qworkspace.config.models import AgentConfig
from qworkspace.errors import ModelError
from qworkspace.sessions.models import TextPart, TurnRequest, TurnState, user_message
from qworkspace.sessions.store import SessionStore
from tests.support.model_replies import error, text
from tests.support.model_server import ModelServer
from tests.support.providers import Providers, ask, assistant

SESSION = session_id("s")


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[ChatModel]:
    async with Providers() as providers:
        small = [{"name": "model", "context_window": 4000}]
        yield await providers.model("openai", server.url, models=small)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    clock, threads = SimulatedClock(), Threads(2)
    opened = SessionStore(
        tmp_path, clock=clock, threads=threads, problems=Problems(clock, EventBus(clock)), agent_id="ada"
    )
    await opened.start()
    yield opened
    await opened.stop()
    threads.close()


def compactor(store: SessionStore, **running: Any) -> Compactor:
    config = AgentConfig.model_validate({"id": "ada", "running": {"keep_recent_turns": 2, **running}})
    return Compactor(store, config=lambda: config, policy=RetryPolicy(attempts=1), clock=SimulatedClock())


async def talk(store: SessionStore, turns: int, words: str = "") -> None:
    for number in range(turns):
        request = TurnRequest(agent_id("ada"), SESSION, user_message(f"question {number} {words}"))
        turn, _ = await store.accept(request)
        await store.begin(turn.id)
        reply = assistant(TextPart(text=f"answer {number} {words}"))
        await store.finish(turn.id, TurnState.COMPLETED, text=reply.text, reply=reply)


async def test_the_older_part_becomes_a_summary_that_stays(
    store: SessionStore, server: ModelServer, model: ChatModel
) -> None:
    await talk(store, 6)
    server.script([text("Ada asked six questions.")])
    before = await compactor(store).history(SESSION)
    shorter = await compactor(store).compact(SESSION, before, model)
    assert shorter is not None
    assert "Ada asked six questions." in shorter[0].text
    assert [message.text.strip() for message in shorter[2:]] == ["question 4", "answer 4", "question 5", "answer 5"]
    assert await compactor(store).history(SESSION) == shorter
    assert "question 3" in server.last.body["messages"][1]["content"]
    server.script(None)
    assert (await ask(model, *shorter, user_message("and now?"))).message.text == "echo: and now?"


async def test_a_later_summary_builds_on_the_one_before(
    store: SessionStore, server: ModelServer, model: ChatModel
) -> None:
    await talk(store, 4)
    server.script([text("the first summary"), text("the second summary")])
    await compactor(store).compact(SESSION, [], model)
    await talk(store, 3)
    shorter = await compactor(store).compact(SESSION, [], model)
    assert "the first summary" in server.last.body["messages"][1]["content"]
    assert shorter is not None
    assert "the second summary" in shorter[0].text
    assert "the first summary" not in shorter[0].text


async def test_there_is_nothing_to_do_when_only_recent_turns_are_there(
    store: SessionStore, server: ModelServer, model: ChatModel
) -> None:
    await talk(store, 2)
    assert await compactor(store).compact(SESSION, [], model) is None
    assert server.count == 0


async def test_what_a_provider_refused_shrinks_whatever_its_window_is_said_to_be(
    store: SessionStore, server: ModelServer, model: ChatModel
) -> None:
    await talk(store, 2, "word " * 20)
    server.script([text("a short summary")])
    shorter = await compactor(store).compact(SESSION, [], model, overflow=True)
    assert shorter is not None
    assert len(shorter) < 6


async def test_a_summary_that_fails_changes_nothing(store: SessionStore, server: ModelServer, model: ChatModel) -> None:
    await talk(store, 6)
    before = await compactor(store).history(SESSION)
    server.script([error(500)])
    with pytest.raises(ModelError):
        await compactor(store).compact(SESSION, before, model)
    assert await compactor(store).history(SESSION) == before


async def test_the_offline_answer_is_never_taken_for_a_summary(store: SessionStore) -> None:
    await talk(store, 6)
    assert await compactor(store).compact(SESSION, [], OfflineModel()) is None


def test_a_smaller_limit_of_the_agent_counts(store: SessionStore) -> None:
    prompt = Prompt("s" * 4000, [user_message("hi")])
    assert not compactor(store).wanted(prompt, 128_000)
    assert compactor(store, max_input_tokens=1200).wanted(prompt, 128_000)
