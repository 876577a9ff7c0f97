"""What a provider is told, over the wire: everything passes a server as strict as the strictest of them."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworkspace.chat.wire import ChatModel, ToolSpec
from qworkspace.sessions.models import (
    FilePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from qworkspace.sessions.repair import repair
from tests.support.model_replies import Call, Reply, calls, text
from tests.support.model_server import ModelServer
from tests.support.providers import LOOK, Providers, ask, assistant, results


def sent(server: ModelServer) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = server.last.body["messages"]
    return messages


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
    reply = await ask(model, *history)
    assert reply.message.text == "echo: thanks"
    system, question, answer, first, second, *_ = sent(server)
    assert system == {"role": "system", "content": "Be kind."}
    assert question == {"role": "user", "content": "find it"}
    assert answer["content"] == "I look twice."
    assert [call["id"] for call in answer["tool_calls"]] == ["1", "2"]
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


@pytest.mark.parametrize("arguments", ["{broken", "[1, 2]", '"just text"', "null nonsense"])
async def test_arguments_that_are_no_object_are_kept_as_they_came_and_go_back_readable(
    server: ModelServer, model: ChatModel, arguments: str
) -> None:
    server.script([calls(Call("look", arguments)), text("sorry")])
    reply = await ask(model, user_message("find it"))
    (call,) = reply.message.calls
    assert (call.args, call.raw) == ({}, arguments)
    bad = ToolResultPart(id=call.id, name="look", text="the arguments are no JSON object", outcome="error")
    await ask(model, user_message("find it"), reply.message, results(bad))
    assert json.loads(sent(server)[2]["tool_calls"][0]["function"]["arguments"]) == {"unreadable_arguments": arguments}


async def test_odd_tool_names_are_sent_fit_and_come_back_as_meant(server: ModelServer, model: ChatModel) -> None:
    odd = [ToolSpec(name, "d", LOOK.schema) for name in ("mcp.files/read", "mcp_files_read", "x" * 80)]
    server.script([calls(Call("mcp_files_read"), Call("mcp_files_read_2"), Call("x" * 64))])
    reply = await ask(model, user_message("go"), tools=odd)
    assert [call.name for call in reply.message.calls] == ["mcp.files/read", "mcp_files_read", "x" * 80]


async def test_thoughts_go_back_to_their_provider_within_the_turn_only(server: ModelServer, model: ChatModel) -> None:
    server.script([Reply(reasoning="under the bed?", calls=(Call("look"),)), text("no"), text("really")])
    first = (await ask(model, user_message("find it"))).message
    history = [user_message("find it"), first, results(ToolResultPart(id=first.calls[0].id, name="look", text="dust"))]
    second = (await ask(model, *history)).message
    assert sent(server)[2]["reasoning_content"] == "under the bed?"
    await ask(model, *history, second, user_message("sure?"))
    assert "under the bed?" not in json.dumps(server.last.body)


async def test_settings_go_along_and_unusual_ones_too(server: ModelServer, providers: Providers) -> None:
    given = {"temperature": 0.3, "max_tokens": 99, "top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}
    await ask(await providers.model("openai", server.url), user_message("hi"), settings=given)
    body = server.last.body
    assert (body["temperature"], body["max_tokens"], body["top_k"]) == (0.3, 99, 5)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    await ask(
        await providers.model("openai", server.url, "gpt-5-mini"), user_message("hi"), settings={"max_tokens": 99}
    )
    assert server.last.body["max_completion_tokens"] == 99


async def test_pictures_are_sent_to_models_that_see_and_named_to_others(
    server: ModelServer, providers: Providers
) -> None:
    picture = FilePart(path="files/cat.png", media_type="image/png")
    gone = FilePart(path="files/gone.png", media_type="image/png")
    message = Message(role="user", parts=(TextPart(text="what is it?"), picture, gone))

    async def read(part: FilePart) -> bytes | None:
        return b"\x89PNG" if part.path == "files/cat.png" else None

    sees = await providers.model("openai", server.url, models=[{"name": "model", "vision": True}])
    await ask(sees, message, read_file=read)
    first, second, third = sent(server)[1]["content"]
    assert first == {"type": "text", "text": "what is it?"}
    assert second["image_url"]["url"] == "data:image/png;base64,iVBORw=="
    assert third["text"] == "[attached file: files/gone.png (image/png)]"
    await ask(await providers.model("openai", server.url), message, read_file=read)
    assert sent(server)[1]["content"].count("[attached file: files/") == 2


async def test_ollama_is_spoken_to_at_its_openai_address(server: ModelServer, providers: Providers) -> None:
    local = await providers.model("ollama", server.url.removesuffix("/v1"), "qwen3:8b")
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
        async with ModelServer() as server, Providers() as providers:
            model = await providers.model("openai", server.url)
            for history in histories:
                ready = repair([*_unique_ids(history), user_message("go on")])
                assert (await ask(model, *ready)).message.text.startswith("echo:")

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
