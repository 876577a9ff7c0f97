"""What providers are told and what they say, over the wire: with a server as strict as the strictest of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworkspace.base.tasks import Threads
from qworkspace.chat.models import ModelSource
from qworkspace.chat.text import Mender
from qworkspace.chat.wire import ChatModel, Finished, ModelEvent, Prompt, ReasoningDelta, TextDelta, ToolSpec
from qworkspace.config.models import HomeConfig, ModelRef
from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.sessions.models import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from qworkspace.sessions.repair import repair
from tests.support.model_replies import Call, Reply, calls, drop, empty, error, stall, text, too_long
from tests.support.model_server import ModelServer
from tests.support.other_providers import SIGNATURE, AnthropicServer, GoogleServer

LOOK = ToolSpec("look", "looks", {"type": "object", "properties": {"where": {"type": "string"}}})
Connect = Callable[..., Any]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """`await connect(type, address, ...)`: a model of a provider there."""
    providers: dict[str, Any] = {}
    threads = Threads(1)
    source = ModelSource(lambda: HomeConfig.model_validate({"providers": providers}), threads=threads)

    async def connected(kind: str, address: str, name: str = "model", **more: Any) -> ChatModel:
        providers["p"] = {"type": kind, "base_url": address, "api_key": "secret-key", **more}
        return await source.get(ModelRef(provider="p", name=name))

    yield connected
    await source.close()
    await asyncio.to_thread(threads.close)


@pytest.fixture
async def model(server: ModelServer, connect: Connect) -> ChatModel:
    found: ChatModel = await connect("openai", server.url)
    return found


async def listen(model: ChatModel, *messages: Message, **more: Any) -> list[ModelEvent]:
    prompt = Prompt(more.pop("system", "Be kind."), list(messages), more.pop("tools", [LOOK]), **more)
    return [event async for event in model.stream(prompt)]


async def ask(model: ChatModel, *messages: Message, **more: Any) -> Finished:
    last = (await listen(model, *messages, **more))[-1]
    assert isinstance(last, Finished)
    return last


def sent(server: ModelServer) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = server.last.body["messages"]
    return messages


def assistant(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts)


def results(*parts: ToolResultPart) -> Message:
    return Message(role="tool", parts=parts)


# what comes back


async def test_text_comes_in_pieces_and_whole_with_its_usage(server: ModelServer, model: ChatModel) -> None:
    server.script([text("Hello dear world", delay=0.02, usage=(11, 3))])
    events = await listen(model, user_message("hi"))
    assert [event.text for event in events if isinstance(event, TextDelta) and event.text] == [
        "Hello",
        " dear",
        " world",
    ]
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.message == assistant(TextPart(text="Hello dear world"))
    assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.requests) == (11, 3, 1)
    assert (last.usage.estimated, last.usage.cost, last.reason) == (False, None, "stop")


async def test_pieces_that_arrive_together_lose_nothing(server: ModelServer, model: ChatModel) -> None:
    words = " ".join(f"wörd{n} 字{n}" for n in range(200))
    server.script([text(words, chunk=3)])
    events = await listen(model, user_message("hi"))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == words
    assert isinstance(events[-1], Finished)
    assert events[-1].message.text == words


async def test_cost_is_reckoned_from_the_price(server: ModelServer, connect: Connect) -> None:
    server.script([text("ok", usage=(1_000_000, 500_000))])
    priced = await connect("openai", server.url, models=[{"name": "model", "price": {"input": 1, "output": 4}}])
    assert (await ask(priced, user_message("hi"))).usage.cost == pytest.approx(3.0)


async def test_reasoning_is_told_apart_from_text(server: ModelServer, model: ChatModel) -> None:
    server.script([text("42", reasoning="six times seven")])
    events = await listen(model, user_message("?"))
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "six times seven"
    assert isinstance(events[-1], Finished)
    assert events[-1].message.text == "42"


@pytest.mark.parametrize("chunk", [1000, 4])
async def test_thinking_tags_are_reasoning_too(server: ModelServer, model: ChatModel, chunk: int) -> None:
    pieces = text("<think>\nlet me <b>see</b></think>\n\nthe answer: <think> is a tag", chunk=chunk)
    server.script([pieces])
    events = await listen(model, user_message("?"))
    if chunk == 1000:
        shown = "".join(event.text for event in events if isinstance(event, TextDelta))
        thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        assert (thought.strip(), shown) == ("let me <b>see</b>", "the answer: <think> is a tag")
        assert isinstance(events[-1], Finished)
        assert events[-1].message.text == shown


async def test_calls_are_put_together_and_show_life_while_they_are_written(
    server: ModelServer, model: ChatModel
) -> None:
    server.script([Reply(text="Let me look.", calls=(Call("look", {"where": "under the old bed"}), Call("look")))])
    events = await listen(model, user_message("find it"))
    last = events[-1]
    assert isinstance(last, Finished)
    assert [(call.name, call.args, call.raw) for call in last.message.calls] == [
        ("look", {"where": "under the old bed"}, None),
        ("look", {}, None),
    ]
    assert last.message.text == "Let me look."
    assert last.reason == "tool_calls"
    assert TextDelta("") in events


@pytest.mark.parametrize("arguments", ["{broken", "[1, 2]", '"just text"', "null nonsense"])
async def test_arguments_that_are_no_object_are_kept_as_they_came_and_go_back_readable(
    server: ModelServer, model: ChatModel, arguments: str
) -> None:
    server.script([calls(Call("look", arguments)), text("sorry")])
    finished = await ask(model, user_message("find it"))
    (call,) = finished.message.calls
    assert (call.args, call.raw) == ({}, arguments)
    bad = ToolResultPart(id=call.id, name="look", text="the arguments are no JSON object", outcome="error")
    await ask(model, user_message("find it"), finished.message, results(bad))
    assert json.loads(sent(server)[2]["tool_calls"][0]["function"]["arguments"]) == {"unreadable_arguments": arguments}


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
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert shown.startswith("a😀b")
    assert isinstance(events[-1], Finished)
    assert events[-1].message.text == "a😀b\ufffd"
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


# what goes out


async def test_a_whole_conversation_passes_the_strictest_server(server: ModelServer, model: ChatModel) -> None:
    history = [
        user_message("find it"),
        assistant(
            ReasoningPart(text="where?", provider="somebody else"),
            TextPart(text="I look"),
            TextPart(text=" twice."),
            ToolCallPart(id="1", name="look", args={"where": "bed"}),
            ToolCallPart(id="2", name="look"),
        ),
        results(
            ToolResultPart(id="1", name="look", text=""), ToolResultPart(id="2", name="look", text="a \ud83d shoe")
        ),
        assistant(TextPart(text="A shoe.")),
        user_message("thanks"),
    ]
    finished = await ask(model, *history)
    assert finished.message.text == "echo: thanks"
    system, question, reply, first, second, *_ = sent(server)
    assert system == {"role": "system", "content": "Be kind."}
    assert question == {"role": "user", "content": "find it"}
    assert reply["content"] == "I look twice."
    assert [call["id"] for call in reply["tool_calls"]] == ["1", "2"]
    assert (first["content"], second["content"]) == ("(no output)", "a \ufffd shoe")
    assert server.last.headers["authorization"] == "Bearer secret-key"


async def test_without_a_system_text_none_is_sent(server: ModelServer, model: ChatModel) -> None:
    await ask(model, user_message("hi"), system="  \n")
    assert [message["role"] for message in sent(server)] == ["user"]


async def test_without_tools_none_are_sent(server: ModelServer, model: ChatModel) -> None:
    await ask(model, user_message("hi"), tools=[])
    assert "tools" not in server.last.body


async def test_nothing_empty_is_ever_sent(server: ModelServer, model: ChatModel) -> None:
    blank = assistant(ReasoningPart(text="only a thought", provider="p"), TextPart(text=" \n"))
    await ask(model, user_message(" "), blank, user_message("and?"))
    assert [message["content"] for message in sent(server)[1:3]] == ["(an empty message)", "(no answer)"]


async def test_tools_that_are_gone_stay_known_to_the_provider(server: ModelServer, model: ChatModel) -> None:
    call = ToolCallPart(id="1", name="no.such tool!", args={})
    answer = ToolResultPart(id="1", name="no.such tool!", text="no tool of that name", outcome="error")
    await ask(model, user_message("go"), assistant(call), results(answer), tools=[])
    (tool,) = server.last.body["tools"]
    assert tool["function"]["name"] == "no_such_tool_"
    assert "do not call" in tool["function"]["description"]


async def test_odd_tool_names_are_sent_fit_and_come_back_as_meant(server: ModelServer, model: ChatModel) -> None:
    odd = [ToolSpec(name, "d", LOOK.schema) for name in ("mcp.files/read", "mcp_files_read", "x" * 80)]
    server.script([calls(Call("mcp_files_read"), Call("mcp_files_read_2"), Call("x" * 64))])
    finished = await ask(model, user_message("go"), tools=odd)
    assert [call.name for call in finished.message.calls] == ["mcp.files/read", "mcp_files_read", "x" * 80]


async def test_thoughts_go_back_to_their_provider_within_the_turn_only(server: ModelServer, model: ChatModel) -> None:
    server.script([Reply(reasoning="under the bed?", calls=(Call("look"),)), text("no"), text("really")])
    first = (await ask(model, user_message("find it"))).message
    history = [user_message("find it"), first, results(ToolResultPart(id=first.calls[0].id, name="look", text="dust"))]
    second = (await ask(model, *history)).message
    assert sent(server)[2]["reasoning_content"] == "under the bed?"
    await ask(model, *history, second, user_message("sure?"))
    assert "under the bed?" not in json.dumps(server.last.body)


async def test_settings_go_along_and_unusual_ones_too(server: ModelServer, connect: Connect) -> None:
    given = {"temperature": 0.3, "max_tokens": 99, "top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}
    await ask(await connect("openai", server.url), user_message("hi"), settings=given)
    body = server.last.body
    assert (body["temperature"], body["max_tokens"], body["top_k"]) == (0.3, 99, 5)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    await ask(await connect("openai", server.url, "gpt-5-mini"), user_message("hi"), settings={"max_tokens": 99})
    assert server.last.body["max_completion_tokens"] == 99


async def test_pictures_are_sent_to_models_that_see_and_named_to_others(server: ModelServer, connect: Connect) -> None:
    picture = FilePart(path="files/cat.png", media_type="image/png")
    gone = FilePart(path="files/gone.png", media_type="image/png")
    message = Message(role="user", parts=(TextPart(text="what is it?"), picture, gone))

    async def read(part: FilePart) -> bytes | None:
        return b"\x89PNG" if part.path == "files/cat.png" else None

    sees = await connect("openai", server.url, models=[{"name": "model", "vision": True}])
    await ask(sees, message, read_file=read)
    first, second, third = sent(server)[1]["content"]
    assert first == {"type": "text", "text": "what is it?"}
    assert second["image_url"]["url"] == "data:image/png;base64,iVBORw=="
    assert third["text"] == "[attached file: files/gone.png (image/png)]"
    await ask(await connect("openai", server.url), message, read_file=read)
    assert sent(server)[1]["content"].count("[attached file: files/") == 2


async def test_ollama_is_spoken_to_at_its_openai_address(server: ModelServer, connect: Connect) -> None:
    local = await connect("ollama", server.url.removesuffix("/v1"), "qwen3:8b")
    server.script([text("42", reasoning="hm")])
    assert (await ask(local, user_message("hi"))).message.text == "42"


texts = st.text(max_size=12)
parts = st.one_of(
    texts.map(lambda t: user_message(t)),
    texts.map(lambda t: assistant(TextPart(text=t))),
    st.tuples(texts, st.sampled_from(["a", "b", ""]), st.sampled_from(["look", "vanished", "o.d d"]), texts).map(
        lambda x: assistant(TextPart(text=x[0]), ToolCallPart(id=x[1], name=x[2], raw=x[3] or None))
    ),
    st.tuples(st.sampled_from(["a", "b", ""]), texts).map(
        lambda x: results(ToolResultPart(id=x[0], name="look", text=x[1]))
    ),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories=st.lists(st.lists(parts, max_size=8), min_size=4, max_size=4))
def test_whatever_happened_the_repaired_history_is_accepted(histories: list[list[Message]]) -> None:
    async def all_accepted() -> None:
        threads = Threads(1)
        async with ModelServer() as server:
            provider = {"type": "openai", "base_url": server.url}
            source = ModelSource(lambda: HomeConfig.model_validate({"providers": {"p": provider}}), threads=threads)
            model = await source.get(ModelRef(provider="p", name="m"))
            for history in histories:
                ready = repair([*_unique_ids(history), user_message("go on")])
                assert (await ask(model, *ready)).message.text.startswith("echo:")
            await source.close()
        threads.close()

    asyncio.run(all_accepted())


def _unique_ids(history: list[Message]) -> list[Message]:
    """Calls as they are stored: no id twice, none empty. Results may be anybody's."""
    seen: set[str] = set()
    kept = []
    for message in history:
        ids = {call.id for call in message.calls}
        if "" in ids or ids & seen:
            continue
        seen |= ids
        kept.append(message)
    return kept


# what goes wrong


@pytest.mark.parametrize(
    ("reply", "code", "status", "retryable", "retry_after", "says"),
    [
        (error(429, retry_after="7"), "model_rate_limited", 429, True, 7.0, "too many requests"),
        (error(429, "insufficient_quota", "You exceeded your quota."), "model_quota", 429, False, None, "quota"),
        (error(500), "model_error", 500, True, None, "trouble"),
        (error(503, message="try later"), "model_error", 503, True, None, "try later"),
        (
            error(401, "invalid_api_key", "Bad key secret-key"),
            "model_unauthorized",
            401,
            False,
            None,
            "providers.p.api_key",
        ),
        (error(404, "model_not_found"), "model_not_found", 404, False, None, "does not have this model"),
        (error(400, message="odd"), "model_error", 400, False, None, "refused the request (400): odd"),
    ],
)
async def test_errors_say_what_happened_and_whether_to_try_again(
    server: ModelServer,
    model: ChatModel,
    reply: Reply,
    code: str,
    status: int,
    retryable: bool,
    retry_after: float | None,
    says: str,
) -> None:
    server.script([reply])
    with pytest.raises(ModelError) as caught:
        await ask(model, user_message("hi"))
    failure = caught.value
    assert (failure.code, failure.status, failure.retryable, failure.retry_after) == (
        code,
        status,
        retryable,
        retry_after,
    )
    assert says in failure.message
    assert failure.message.startswith("p/model: ")
    assert "secret-key" not in failure.message
    assert server.count == 1


@pytest.mark.parametrize(
    "reply",
    [
        too_long(),
        error(400, message="the request exceeds the available context size (4096 tokens), try increasing it"),
        error(413, message="input is too long"),
    ],
)
async def test_too_long_a_prompt_is_known_as_such(server: ModelServer, model: ChatModel, reply: Reply) -> None:
    server.script([reply])
    with pytest.raises(ContextTooLong):
        await ask(model, user_message("hi"))


async def test_a_line_that_breaks_is_a_failure_that_may_pass(server: ModelServer, model: ChatModel) -> None:
    server.script([drop("half an")])
    said = ""
    with pytest.raises(ModelError) as caught:
        async for event in model.stream(Prompt("", [user_message("hi")])):
            said += event.text if isinstance(event, TextDelta) else ""
    assert said == "half an"
    assert caught.value.retryable


async def test_nobody_there_is_a_failure_that_may_pass(connect: Connect) -> None:
    with pytest.raises(ModelError, match="cannot reach") as caught:
        await ask(await connect("openai", "http://127.0.0.1:9/v1"), user_message("hi"))
    assert (caught.value.retryable, caught.value.code) == (True, "model_unreachable")


async def test_leaving_closes_the_line_at_once(server: ModelServer, model: ChatModel) -> None:
    server.script([stall("wait for"), stall(headers=False)])
    stream = model.stream(Prompt("", [user_message("hi")]))
    await anext(stream)
    await stream.aclose()
    await asyncio.wait_for(server.last.closed_early.wait(), 1)
    waiting = asyncio.ensure_future(ask(model, user_message("hi")))
    await server.wait_for(2)
    waiting.cancel()
    await asyncio.wait_for(server.last.closed_early.wait(), 1)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_one_connection_serves_one_answer_after_another(server: ModelServer, model: ChatModel) -> None:
    await asyncio.gather(*(ask(model, user_message(f"{n}")) for n in range(3)))
    for n in range(5):
        assert (await ask(model, user_message(f"again {n}"))).message.text == f"echo: again {n}"
    assert server.count == 8


# other languages: their libraries build their schemas when they are first used, which takes 0.1 s of the loop, once


@pytest.mark.may_block
async def test_anthropic_gets_its_signed_thoughts_back(connect: Connect) -> None:
    async with AnthropicServer() as server:
        model = await connect("anthropic", server.address, "claude-sonnet-5", headers={"x-team": "blue"})
        events = await listen(model, user_message("find it"))
        assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "I should look."
        first = events[-1]
        assert isinstance(first, Finished)
        assert first.message.text == "Let me look."
        assert (first.usage.input_tokens, first.usage.output_tokens) == (40, 25)
        (call,) = first.message.calls
        assert (call.id, call.args) == ("toolu_1", {"where": "under the bed"})
        stored = Message.model_validate_json(first.message.model_dump_json())
        answer = ToolResultPart(id=call.id, name="look", text="not there", outcome="error")
        final = await ask(model, user_message("find it"), stored, results(answer))
        assert final.message.text == "Found it."
        body = server.requests[1]
        thinking, *_ = body["messages"][1]["content"]
        assert thinking == {"type": "thinking", "thinking": "I should look.", "signature": SIGNATURE}
        assert body["messages"][2]["content"][0]["is_error"] is True
        assert "Be kind." in json.dumps(body["system"])
        assert "cache_control" in json.dumps(body)
        assert (server.headers[1]["authorization"], server.headers[1]["x-team"]) == ("Bearer secret-key", "blue")


@pytest.mark.may_block
async def test_thoughts_of_one_provider_are_not_shown_to_another(server: ModelServer, connect: Connect) -> None:
    thought = ReasoningPart(text="a private thought", signature=SIGNATURE, provider="anthropic")
    model = await connect("openai", server.url)
    await ask(model, user_message("hi"), assistant(thought, TextPart(text="hello")), user_message("again"))
    assert "private" not in json.dumps(server.last.body)
    async with AnthropicServer() as other:
        foreign = ReasoningPart(text="another thought", provider="p/reasoning_content")
        claude = await connect("anthropic", other.address, "claude-sonnet-5")
        await ask(claude, user_message("hi"), assistant(foreign, TextPart(text="hello")), user_message("again"))
        assert "another thought" not in json.dumps(other.requests)


@pytest.mark.may_block
async def test_anthropics_errors_are_understood(connect: Connect) -> None:
    async with AnthropicServer() as server:
        model = await connect("anthropic", server.address, "claude-sonnet-5")
        server.overloaded()
        with pytest.raises(ModelError, match="trouble") as caught:
            await ask(model, user_message("hi"))
        assert (caught.value.status, caught.value.retryable, caught.value.retry_after) == (529, True, 5.0)
        server.too_long()
        with pytest.raises(ContextTooLong):
            await ask(model, user_message("hi"))
        assert len(server.requests) == 2


@pytest.mark.may_block
async def test_google_gets_the_signature_of_its_call_back(connect: Connect) -> None:
    async with GoogleServer() as server:
        model = await connect("google", server.address, "gemini-2.5-flash")
        first = await ask(model, user_message("find it"))
        assert first.message.text == "Let me look."
        (call,) = first.message.calls
        assert (call.name, call.args) == ("look", {"where": "under the bed"})
        stored = Message.model_validate_json(first.message.model_dump_json())
        answer = ToolResultPart(id=call.id, name="look", text="a shoe")
        final = await ask(model, user_message("find it"), stored, results(answer))
        assert (final.message.text, final.usage.output_tokens) == ("Found it.", 25)
        parts = [part for content in server.requests[1]["contents"] for part in content["parts"]]
        (call_part,) = [part for part in parts if "functionCall" in part]
        assert call_part["thoughtSignature"].rstrip("=") == SIGNATURE.rstrip("=")
        assert server.headers[0]["x-goog-api-key"] == "secret-key"
