"""OpenAI's own client against an agent: whole and streamed, the conversation found again, errors it understands."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from qworkspace.chat.closing import Ending
from qworkspace.chat.live import LiveTurn
from qworkspace.errors import ModelError
from tests.support.api import ApiBench, completed, served


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        yield bench


@pytest.fixture
async def client(bench: ApiBench) -> AsyncIterator[AsyncOpenAI]:
    async with served(bench.app) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key=bench.token) as client:
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def slowly(live: LiveTurn) -> Ending:
    live.emit("reasoning.delta", {"text": "hm"})
    for word in ("one ", "two ", "three"):
        live.say(word)
        live.emit("notice", {"code": "none", "message": "flushes"})
    return completed(live)


async def test_a_whole_answer(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="default", messages=[user("hello")], temperature=0.2, user="me")
    assert answer.object == "chat.completion"
    assert answer.model == "default"
    assert answer.choices[0].message.content == "you said: hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)


async def test_a_stream_with_usage(client: AsyncOpenAI, bench: ApiBench) -> None:
    bench.script = slowly
    stream = await client.chat.completions.create(
        model="default", messages=[user("count")], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "one two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 18


async def test_a_stream_without_usage_ends_with_the_finish_reason(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="other", messages=[user("hi")], stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_tools_and_settings_are_left_to_the_agent(client: AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    answer = await client.chat.completions.create(
        model="default",
        messages=[user("hello")],
        tools=[tool],
        tool_choice="auto",
        max_tokens=5,
        top_p=0.5,
        seed=1,
        stop=["x"],
        response_format={"type": "json_object"},
        n=1,
    )
    assert answer.choices[0].message.content == "you said: hello"
    assert answer.choices[0].message.tool_calls is None


async def test_a_conversation_is_found_again_by_what_was_said(client: AsyncOpenAI, bench: ApiBench) -> None:
    said: list[Any] = [{"role": "system", "content": "be brief"}, user("first")]

    async def turn(messages: list[Any], who: str = "me") -> tuple[str, str]:
        raw = await client.chat.completions.with_raw_response.create(model="default", messages=messages, user=who)
        text = raw.parse().choices[0].message.content
        assert text is not None
        return raw.headers["x-session-id"], text

    first, text = await turn(said)
    said += [{"role": "assistant", "content": text}, user("second")]
    second, text = await turn(said)
    assert second == first
    said += [{"role": "assistant", "content": [{"type": "text", "text": text}]}, user("third")]
    assert (await turn(said))[0] == first
    assert (await turn(said, who="somebody else"))[0] != first
    changed = [user("FIRST"), *said[2:]]
    assert (await turn(changed))[0] != first
    stored = await bench.ask("GET", f"/api/agents/default/sessions/{first}/messages")
    assert [m["text"] for m in stored.json()["messages"] if m["role"] == "user"] == ["first", "second", "third"]


async def test_a_named_session_is_taken_and_system_messages_are_notes_of_the_turn(
    client: AsyncOpenAI, bench: ApiBench
) -> None:
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "developer", "content": "no jokes"}]
    await client.chat.completions.create(
        model="default", messages=[*messages, user("hi")], extra_headers={"X-Session-Id": "mine"}, metadata={"k": "v"}
    )
    (turn,) = (await bench.ask("GET", "/api/agents/default/sessions/mine/turns")).json()["turns"]
    assert turn["metadata"] == {"k": "v", "client_instructions": ["be brief", "no jokes"]}
    assert turn["source"] == "api"


async def test_pictures_inside_of_a_message_are_kept(client: AsyncOpenAI, bench: ApiBench) -> None:
    picture = base64.b64encode(b"\x89PNG").decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    content: Any = [{"type": "text", "text": "what is it?"}, part]
    await client.chat.completions.create(model="default", messages=[{"role": "user", "content": content}])
    folder = bench.home / "workspaces" / "default" / "files" / "uploads"
    assert [path.read_bytes() for path in folder.iterdir()] == [b"\x89PNG"]
    for url in ("https://example.org/cat.png", "data:image/png;base64,!", "data:text/html;base64,eA=="):
        part["image_url"] = {"url": url}
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="default", messages=[{"role": "user", "content": content}])


async def test_the_agents_are_the_models(client: AsyncOpenAI, bench: ApiBench) -> None:
    await bench.manager.disable_agent("other")
    assert [model.id async for model in client.models.list()] == ["default"]
    assert (await client.models.retrieve("default")).owned_by == "qworkspace"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_errors_are_those_that_the_client_knows(client: AsyncOpenAI, bench: ApiBench) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="gpt-4o", messages=[user("x")])
    assert (missing.value.code, missing.value.type, missing.value.param) == (
        "model_not_found",
        "invalid_request_error",
        "model",
    )
    with pytest.raises(openai.BadRequestError) as two:
        await create(model="default", messages=[user("x")], n=2)
    assert two.value.param == "n"
    assistant: Any = {"role": "assistant", "content": "x"}
    with pytest.raises(openai.BadRequestError) as last:
        await create(model="default", messages=[user("x"), assistant])
    assert last.value.param == "messages"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").chat.completions.create(model="default", messages=[user("x")])
    with pytest.raises(openai.APIStatusError) as none:
        await client.with_options(max_retries=0).embeddings.create(model="default", input="x")
    assert (none.value.status_code, none.value.code) == (501, "not_available")


async def test_a_failed_turn_is_an_error_and_is_not_sent_again(client: AsyncOpenAI, bench: ApiBench) -> None:
    async def fail(live: LiveTurn) -> Ending:
        live.say("half a ")
        raise ModelError("the provider is away", retryable=True)

    bench.script = fail
    with pytest.raises(openai.InternalServerError, match="the provider is away"):
        await client.chat.completions.create(model="default", messages=[user("x")])
    assert len((await bench.ask("GET", "/api/agents/default/sessions")).json()["sessions"]) == 1
    with pytest.raises(openai.APIError, match="the provider is away"):
        async for _ in await client.chat.completions.create(model="default", messages=[user("x")], stream=True):
            pass


async def test_a_client_that_leaves_does_not_end_the_turn(client: AsyncOpenAI, bench: ApiBench) -> None:
    go_on = asyncio.Event()

    async def wait(live: LiveTurn) -> Ending:
        live.say("one ")
        await go_on.wait()
        live.say("two")
        return completed(live)

    bench.script = wait
    headers = {"X-Session-Id": "s"}
    stream = await client.chat.completions.create(
        model="default", messages=[user("x")], stream=True, extra_headers=headers
    )
    await anext(aiter(stream))
    await stream.close()
    go_on.set()
    joined = await bench.ask("GET", "/api/agents/default/sessions/s/stream")
    assert joined.status_code in (200, 204)
    stored = (await bench.ask("GET", "/api/agents/default/sessions/s/messages")).json()["messages"]
    assert [message["text"] for message in stored] == ["x", "one two"]
