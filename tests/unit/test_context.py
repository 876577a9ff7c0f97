"""What fits, what is summarised, what stays word for word."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.chat.compactor import as_messages, summarise
from qworkspace.chat.context import (
    DEFAULT_WINDOW,
    cost,
    estimate_message,
    estimate_prompt,
    estimate_text,
    fits,
    plan_compaction,
    shorten_results,
    transcript,
    window_of,
)
from qworkspace.chat.wire import Prompt, ToolSpec
from qworkspace.config.models import Price
from qworkspace.errors import ModelError
from qworkspace.sessions.models import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from qworkspace.sessions.repair import repair


def says(text: str) -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),))


def calls(number: int, result: str = "done") -> list[Message]:
    call = ToolCallPart(id=f"c{number}", name="look", args={"at": number})
    answer = ToolResultPart(id=f"c{number}", name="look", text=result, file="files/out.txt")
    return [Message(role="assistant", parts=(call,)), Message(role="tool", parts=(answer,))]


def results_of(messages: list[Message]) -> list[ToolResultPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("gpt-4.1-mini", 1_000_000),
        ("gpt-4o", DEFAULT_WINDOW),
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-5-mini", 400_000),
        ("o3-mini", 200_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("anthropic/claude-sonnet-5-5", 1_000_000),
        ("claude-opus-4-6", 1_000_000),
        ("gemini-2.5-flash", 1_000_000),
        ("gpt-5.4-mini", 400_000),
        ("gpt-5.6-sol", 1_000_000),
        ("grok-4-1-fast-reasoning", 1_000_000),
        ("grok-4-0709", 256_000),
        ("gemma3:4b", DEFAULT_WINDOW),
        ("llama3.2:3b", DEFAULT_WINDOW),
        ("llama3:8b", 8_192),
        ("deepseek-chat", DEFAULT_WINDOW),
        ("nobody-knows-it", DEFAULT_WINDOW),
    ],
)
def test_windows_of_well_known_models(name: str, tokens: int) -> None:
    assert window_of(name) == tokens


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", 0, 0),
        ("The quick brown fox jumps over the lazy dog.", 8, 14),
        ("敏捷的棕色狐狸跳过了懒狗。", 10, 16),
        ("Straße und Übung im Schnee", 5, 12),
        ("x" * 4000, 900, 1100),
    ],
)
def test_estimates_are_near_what_tokenizers_say(text: str, least: int, most: int) -> None:
    assert least <= estimate_text(text) <= most


@given(st.text(max_size=200))
def test_an_estimate_is_never_negative_and_never_above_the_bytes(text: str) -> None:
    assert 0 <= estimate_text(text) <= len(text.encode("utf-8", "replace")) + 1


def test_a_prompt_counts_system_tools_and_messages() -> None:
    bare = estimate_prompt(Prompt("", [user_message("hi")]))
    tool = ToolSpec("look", "looks somewhere", {"type": "object", "properties": {"at": {"type": "string"}}})
    full = estimate_prompt(Prompt("s" * 400, [user_message("hi")], [tool]))
    assert full - bare > 100 + 20


def test_a_quarter_of_the_window_is_left_for_the_answer() -> None:
    prompt = Prompt("s" * 4 * 740, [user_message("hi")])
    assert fits(prompt, 1000)
    assert not fits(prompt, 900)


def test_cost_per_million_tokens() -> None:
    assert cost(Price(input=2.0, output=10.0), 500_000, 100_000) == pytest.approx(2.0)
    assert cost(None, 1, 1) is None


def test_the_newest_turns_stay_and_the_rest_is_summarised() -> None:
    history = [message for n in range(10) for message in (user_message(f"question {n}"), says(f"answer {n}"))]
    plan = plan_compaction(history, 100_000, keep_turns=4)
    assert plan is not None
    assert history[plan.older].text == "question 6"
    assert plan_compaction(history[-8:], 100_000, keep_turns=4) is None
    assert plan_compaction([], 100_000) is None


def test_huge_recent_turns_do_not_stay() -> None:
    history = [user_message("old"), says("old"), user_message("x" * 4000), says("y"), user_message("new"), says("new")]
    plan = plan_compaction(history, 900, keep_turns=3)
    assert plan is not None
    assert history[plan.older].text == "new"


conversations = st.lists(
    st.one_of(
        st.text(min_size=1, max_size=400).map(lambda text: [user_message(text)]),
        st.text(min_size=1, max_size=400).map(lambda text: [says(text)]),
        st.integers(0, 50).map(calls),
    ),
    max_size=20,
).map(lambda parts: repair([message for part in parts for message in part]))


@given(conversations, st.integers(100, 4000), st.integers(1, 5))
def test_a_cut_never_separates_a_call_from_its_result(history: list[Message], window: int, keep: int) -> None:
    plan = plan_compaction(history, window, keep_turns=keep)
    if plan is None:
        return
    older, rest = history[: plan.older], history[plan.older :]
    assert older
    assert not rest or rest[0].role == "user"
    for part in (older, rest):
        wanted = [call.id for message in part for call in message.calls]
        answered = [item.id for item in results_of(part)]
        assert sorted(wanted) == sorted(answered)
    assert sum(map(estimate_message, rest)) <= window / 3


def test_old_results_of_a_long_turn_give_way_but_the_newest_stay() -> None:
    own = [user_message("go"), *(message for n in range(6) for message in calls(n, "r" * 8000))]
    shorter = shorten_results(own, 5000)
    texts = [item.text for item in results_of(shorter)]
    assert [len(text) < 300 for text in texts] == [True, True, True, True, False, False]
    assert "files/out.txt" in texts[0]
    assert [message.calls for message in shorter] == [message.calls for message in own]
    assert shorten_results(own, 1_000_000) == own


def test_a_transcript_is_cut_into_pieces_that_fit() -> None:
    history = [user_message("a" * 2000), says("b" * 90_000), *calls(1, "c" * 90_000)]
    pieces = transcript(history, 1000)
    assert all(estimate_text(piece) <= 3000 for piece in pieces)
    assert "USER: aaa" in pieces[0]
    assert any("characters left out" in piece for piece in pieces)
    assert any("[calls look: {'at': 1}]" in piece for piece in pieces)


def recorder(asked: list[Prompt], reply: Callable[[int], str]) -> Callable[[Prompt], object]:
    async def ask(prompt: Prompt) -> str:
        asked.append(prompt)
        return reply(len(asked))

    return ask


async def test_a_long_history_is_summarised_in_steps_each_knowing_the_one_before() -> None:
    asked: list[Prompt] = []
    history = [user_message(f"{n} " + "w" * 3000) for n in range(6)]
    ask = recorder(asked, lambda n: f"summary {n}")
    made = await summarise(ask, history, window=6000, before="the very first summary")  # type: ignore[arg-type]
    assert made == f"summary {len(asked)}"
    assert len(asked) > 1
    assert "the very first summary" in asked[0].messages[0].text
    assert "summary 1" in asked[1].messages[0].text
    assert all(fits(prompt, 6000) for prompt in asked)
    assert all(f"{n} www" in "".join(p.messages[0].text for p in asked) for n in range(6))


async def test_an_empty_summary_is_an_error_rather_than_a_loss() -> None:
    with pytest.raises(ModelError, match="empty summary"):
        await summarise(recorder([], lambda n: ""), [user_message("hi")], window=6000)  # type: ignore[arg-type]


def test_a_summary_opens_the_history_as_a_well_formed_exchange() -> None:
    assert as_messages(None) == []
    opening = as_messages("Ada likes tea.")
    assert [message.role for message in opening] == ["user", "assistant"]
    assert "Ada likes tea." in opening[0].text
    history = [*opening, user_message("and now?")]
    assert repair(history) == history
