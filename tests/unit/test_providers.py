"""What a provider says, over the wire."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.chat.text import Mender
from qworkspace.chat.wire import ChatModel, TextDelta
from qworkspace.sessions.models import TextPart, ToolResultPart, user_message
from tests.support.model_replies import Call, Reply, calls, empty, text
from tests.support.model_server import ModelServer
from tests.support.providers import Providers, ask, assistant, finished, listen, results, shown, thought


async def test_text_comes_in_pieces_and_whole_with_its_usage(server: ModelServer, model: ChatModel) -> None:
    server.script([text("Hello dear world", delay=0.02, usage=(11, 3))])
    events = await listen(model, user_message("hi"))
    assert [event.text for event in events if isinstance(event, TextDelta) and event.text] == [
        "Hello",
        " dear",
        " world",
    ]
    last = finished(events)
    assert last.message == assistant(TextPart(text="Hello dear world"))
    assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.requests) == (11, 3, 1)
    assert (last.usage.estimated, last.usage.cost, last.reason) == (False, None, "stop")


async def test_pieces_that_arrive_together_lose_nothing(server: ModelServer, model: ChatModel) -> None:
    words = " ".join(f"wörd{n} 字{n}" for n in range(200))
    server.script([text(words, chunk=3)])
    events = await listen(model, user_message("hi"))
    assert shown(events) == words
    assert finished(events).message.text == words


async def test_cost_is_reckoned_from_the_price(server: ModelServer, providers: Providers) -> None:
    server.script([text("ok", usage=(1_000_000, 500_000))])
    priced = await providers.model("openai", server.url, models=[{"name": "model", "price": {"input": 1, "output": 4}}])
    assert (await ask(priced, user_message("hi"))).usage.cost == pytest.approx(3.0)


async def test_reasoning_is_told_apart_from_text(server: ModelServer, model: ChatModel) -> None:
    server.script([text("42", reasoning="six times seven")])
    events = await listen(model, user_message("?"))
    assert thought(events) == "six times seven"
    assert finished(events).message.text == "42"


@pytest.mark.parametrize("chunk", [1000, 5, 4, 1])
async def test_thinking_tags_are_reasoning_too(server: ModelServer, model: ChatModel, chunk: int) -> None:
    server.script([text("<think>\nlet me <b>see</b></think>\n\nthe answer: <think> is a tag", chunk=chunk)])
    events = await listen(model, user_message("?"))
    assert thought(events).strip() == "let me <b>see</b>"
    assert shown(events) == "the answer: <think> is a tag"
    assert finished(events).message.text == shown(events)


@pytest.mark.parametrize("answer", ["<", "<thin", "<thing> is no tag", "  \n<b>bold</b>", "a < b"])
async def test_what_only_looks_like_a_thinking_tag_is_text(server: ModelServer, model: ChatModel, answer: str) -> None:
    server.script([text(answer, chunk=1)])
    events = await listen(model, user_message("?"))
    assert shown(events).strip() == finished(events).message.text.strip() == answer.strip()
    assert thought(events) == ""


async def test_calls_are_put_together_and_show_life_while_they_are_written(
    server: ModelServer, model: ChatModel
) -> None:
    server.script([Reply(text="Let me look.", calls=(Call("look", {"where": "under the old bed"}), Call("look")))])
    events = await listen(model, user_message("find it"))
    last = finished(events)
    assert [(call.name, call.args, call.raw) for call in last.message.calls] == [
        ("look", {"where": "under the old bed"}, None),
        ("look", {}, None),
    ]
    assert last.message.text == "Let me look."
    assert last.reason == "tool_calls"
    assert TextDelta("") in events


async def test_call_ids_that_were_used_before_are_replaced(server: ModelServer, model: ChatModel) -> None:
    server.script(
        [calls(Call("look", id="call_1")), calls(Call("look", id="call_1"), Call("look", id="call_1")), text("ok")]
    )
    history = [user_message("find it")]
    for _ in range(2):
        reply = (await ask(model, *history)).message
        history += [reply, results(*(ToolResultPart(id=c.id, name="look", text="no") for c in reply.calls))]
    assert (await ask(model, *history)).message.text == "ok"
    assert len({call.id for message in history for call in message.calls}) == 3


async def test_halves_of_a_character_that_come_apart_are_joined(server: ModelServer, model: ChatModel) -> None:
    server.script([text("a\ud83d\ude00b\ud83d", chunk=1), calls(Call("look", '{"where": "\\ud83d x \\ud83d\\ude00"}'))])
    events = await listen(model, user_message("?"))
    assert shown(events).startswith("a😀b")
    assert finished(events).message.text == "a😀b\ufffd"
    (call,) = (await ask(model, user_message("?"))).message.calls
    assert call.args == {"where": "\ufffd x 😀"}


@given(st.text(alphabet=st.characters(), max_size=30), st.lists(st.integers(0, 60), max_size=5))
def test_mending_pieces_gives_the_same_as_mending_the_whole(words: str, cuts: list[int]) -> None:
    units = [chr(unit) for character in words for unit in _utf16(character)]
    edges = [0, *sorted(min(cut, len(units)) for cut in cuts), len(units)]
    mender = Mender()
    shown = "".join(mender.feed("".join(units[start:end])) for start, end in pairwise(edges))
    assert shown + mender.rest() == words.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _utf16(character: str) -> list[int]:
    data = character.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]


async def test_an_empty_answer_is_an_empty_message(server: ModelServer, model: ChatModel) -> None:
    server.script([empty()])
    assert (await ask(model, user_message("hi"))).message.parts == ()


async def test_an_answer_cut_at_its_limit_says_so(server: ModelServer, model: ChatModel) -> None:
    server.script([text("half an ans", finish_reason="length")])
    assert (await ask(model, user_message("hi"))).reason == "length"
