"""Without a model there is still an honest, useful answer."""

from collections.abc import Sequence

import pytest

from qworkspace.chat.offline import OFFLINE, Hit, OfflineModel, answer
from qworkspace.chat.prompt import with_notes
from qworkspace.chat.wire import Finished, Prompt, TextDelta
from qworkspace.plugins.extensions import ContextNote
from qworkspace.sessions.models import Message, user_message


async def ask(model: OfflineModel, *messages: Message) -> tuple[str, Finished]:
    events = [event async for event in model.stream(Prompt("be kind", list(messages)))]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), events[-1]


async def test_it_says_what_it_is_and_how_to_connect_a_model() -> None:
    said, finished = await ask(OfflineModel(), user_message("What is the capital of Peru?"))
    assert "built-in offline answer" in said
    assert "no language model is connected" in said
    assert '"providers"' in said
    assert "qworkspace models" in said
    assert finished.message.text == said
    assert finished.usage.estimated
    assert finished.usage.output_tokens > 0


@pytest.mark.parametrize("greeting", ["hi", "Hello there!", "good morning", "Hey…"])
def test_a_greeting_is_greeted_back(greeting: str) -> None:
    assert answer(greeting).startswith("Hello!")


@pytest.mark.parametrize("greeting", ["你好", "您好！", "早上好"])
def test_chinese_is_answered_in_chinese(greeting: str) -> None:
    assert answer(greeting).startswith("你好！")
    assert "离线回答" in answer(greeting)
    assert "离线回答" in answer("秘鲁的首都是哪里？")
    assert "built-in offline answer" in answer("カタカナのしつもん")


def test_thanks_do_not_bring_a_lecture() -> None:
    assert answer("thanks!") == "You are welcome."
    assert answer("谢谢") == "不客气。"


async def test_what_memory_holds_is_shown_when_it_can_be_searched() -> None:
    asked: list[str] = []

    async def search(question: str) -> Sequence[Hit]:
        asked.append(question)
        return [Hit("memory/2026-01-02.md:3", "Ada likes\ngreen tea")]

    said, _ = await ask(OfflineModel(search=search), user_message("what does Ada drink?"))
    assert asked == ["what does Ada drink?"]
    assert "- Ada likes green tea (memory/2026-01-02.md:3)" in said


async def test_notes_beside_the_message_are_not_taken_for_the_question() -> None:
    message = with_notes(user_message("hello"), [ContextNote("memory", "old", "你好，世界")])
    said, _ = await ask(OfflineModel(), message)
    assert said.startswith("Hello!")


def test_it_names_itself() -> None:
    assert str(OfflineModel().ref) == str(OFFLINE) == "offline/offline"
