"""Whatever a crash left behind, the strictest provider accepts the repaired history, and nothing said is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.sessions.models import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from qworkspace.sessions.repair import NO_ANSWER, OPENING, closed, repair
from tests.support.histories import faults


def user(*texts: str) -> Message:
    return Message(role="user", parts=tuple(TextPart(text=text) for text in texts))


def assistant(text: str = "", *calls: str) -> Message:
    said = [TextPart(text=text)] if text else []
    return Message(role="assistant", parts=(*said, *(ToolCallPart(id=call, name="tool") for call in calls)))


def tool(*calls: str, text: str = "result") -> Message:
    return Message(role="tool", parts=tuple(ToolResultPart(id=call, name="tool", text=text) for call in calls))


def shape(messages: Sequence[Message]) -> list[str]:
    """`u`, `a`, `a(c1,c2)`, `t(c1:ok,c2:interrupted)`"""
    return [_shape(message) for message in messages]


def _shape(message: Message) -> str:
    calls = ",".join(call.id for call in message.calls)
    results = ",".join(f"{part.id}:{part.outcome}" for part in message.parts if isinstance(part, ToolResultPart))
    inside = calls or results
    return message.role[0] + (f"({inside})" if inside else "")


def test_a_sound_history_comes_back_equal() -> None:
    sound = [user("a"), assistant("", "1", "2"), tool("1", "2"), assistant("b"), user("c"), assistant("d")]
    assert repair(sound) == sound
    assert closed(sound) == sound


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ([user("a"), assistant("", "1")], ["u", "a(1)", "t(1:interrupted)"]),
        ([user("a"), assistant("", "1", "2"), tool("2")], ["u", "a(1,2)", "t(1:interrupted,2:ok)"]),
        ([user("a"), assistant("", "1", "2"), tool("2"), tool("1")], ["u", "a(1,2)", "t(1:ok,2:ok)"]),
        ([user("a"), tool("9"), assistant("b")], ["u", "a"]),
        ([user("a"), assistant("", "1"), user("b"), tool("1")], ["u", "a(1)", "t(1:ok)", "a", "u"]),
        ([user("a"), user("b"), assistant("c")], ["u", "a", "u", "a"]),
        ([user("a"), assistant("b"), assistant("c", "1"), tool("1")], ["u", "a(1)", "t(1:ok)"]),
        ([assistant("hello"), user("b")], ["u", "a", "u"]),
        ([tool("1"), assistant("b")], ["u", "a"]),
        ([user("  "), assistant("b"), user("c")], ["u", "a", "u"]),
        ([user("a"), assistant("", "1", "1"), tool("1")], ["u", "a(1)", "t(1:ok)"]),
        (
            [user("a"), assistant("", "1"), tool("1"), assistant("", "1"), tool("1"), assistant("b")],
            ["u", "a(1)", "t(1:ok)", "a(1)", "t(1:ok)", "a"],
        ),
        (
            [user("a"), assistant("", "1"), assistant("", "1"), tool("1")],
            ["u", "a(1)", "t(1:interrupted)", "a(1)", "t(1:ok)"],
        ),
        ([], []),
    ],
)
def test_what_is_broken_is_mended(broken: list[Message], mended: list[str]) -> None:
    assert shape(repair(broken)) == mended
    assert faults(repair(broken)) == []


def test_a_turn_without_an_answer_says_so_before_the_next_message() -> None:
    assert repair([user("a"), user("b")]) == [user("a"), NO_ANSWER, user("b")]
    assert closed([user("a"), assistant("", "1")])[-1] == NO_ANSWER
    assert closed([]) == []


def test_what_the_daemon_said_first_is_kept() -> None:
    assert repair([assistant("the build is broken"), user("why?")])[:2] == [OPENING, assistant("the build is broken")]


def test_two_answers_in_a_row_become_one_and_read_as_two_paragraphs() -> None:
    thought = Message(role="assistant", parts=(ReasoningPart(text="hm"), TextPart(text="partial")))
    [_, joined] = repair([user("a"), thought, assistant("whole")])
    assert joined.text == "partial\n\nwhole"
    assert not any(isinstance(part, ReasoningPart) for part in joined.parts)


def test_results_of_an_interrupted_call_tell_the_model_to_look_first() -> None:
    [_, _, answered] = repair([user("a"), assistant("", "1")])
    [part] = answered.parts
    assert isinstance(part, ToolResultPart)
    assert "whether the call took effect is unknown" in part.text


IDS = st.sampled_from(["1", "2", "3"])
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=st.sampled_from(["", " ", "word", "other", "\n"])),
    st.builds(FilePart, path=st.just("files/a.png")),
    st.builds(ReasoningPart, text=st.sampled_from(["", "hm"])),
    st.builds(ToolCallPart, id=IDS, name=st.just("tool")),
    st.builds(ToolResultPart, id=IDS, name=st.just("tool"), text=st.just("result")),
)
MESSAGES = st.lists(
    st.builds(
        Message, role=st.sampled_from(["user", "assistant", "tool"]), parts=st.lists(PARTS, max_size=4).map(tuple)
    ),
    max_size=12,
)


def _texts(messages: Sequence[Message]) -> list[str]:
    parts = [part for message in messages if message.role != "tool" for part in message.parts]
    return [part.text.strip() for part in parts if isinstance(part, TextPart) and part.text.strip()]


@given(MESSAGES)
def test_whatever_came_in_the_result_is_valid_and_stays_as_it_is(messages: list[Message]) -> None:
    mended = repair(messages)
    assert faults(mended) == []
    assert repair(mended) == mended
    assert faults([*closed(messages), user("next")]) == []


@given(MESSAGES)
def test_every_text_is_kept_in_its_order(messages: list[Message]) -> None:
    kept = [text for text in _texts(repair(messages)) if text not in (NO_ANSWER.text, OPENING.text)]
    assert kept == _texts(messages)
