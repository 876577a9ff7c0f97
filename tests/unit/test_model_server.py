"""The scripted server is as strict as the strictest provider, and shows what the client did."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.support.model_embeddings import embedding
from tests.support.model_replies import Call, calls, drop, empty, error, stall, text, too_long
from tests.support.model_server import ModelServer

ROOT = Path(__file__).parents[2]
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERS = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(server.url) as opened:
        yield opened


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(verify=False) as opened:
        yield opened


def sdk(url: str, key: str = "k") -> openai.AsyncOpenAI:
    """A client without TLS: loading certificates would block the loop for nothing."""
    return openai.AsyncOpenAI(
        base_url=url, api_key=key, max_retries=0, http_client=openai.DefaultAsyncHttpxClient(verify=False)
    )


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), "tools": TOOLS} | more


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "non-empty array"),
        ([{"role": "system", "content": "s"}], "last message"),
        ([USER, USER], "unexpected role 'user' after 'user'"),
        ([USER, {"role": "system", "content": "late"}], "unexpected role 'system'"),
        ([{"role": "assistant", "content": "first"}, USER], "unexpected role 'assistant'"),
        ([USER, {"role": "assistant", "content": "a"}], "last message"),
        ([{"role": "robot", "content": "a"}], "unknown role 'robot'"),
        ([{"role": "user", "content": ""}], "content must be non-empty"),
        ([{"role": "user", "content": " \n"}], "content must be non-empty"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "empty or unknown content part"),
        ([USER, {"role": "assistant", "content": None}, USER], "content must be non-empty"),
        ([USER, ASKS, USER], "without a result: c1"),
        ([USER, ASKS], "last message"),
        ([USER, ASKS, ANSWERS, ANSWERS], "has no call before it"),
        ([USER, {"role": "assistant", "content": "a"}, ANSWERS], "has no call before it"),
        ([USER, ASKS, ANSWERS, USER], "unexpected role 'user' after 'tool'"),
        ([USER, ASKS, ANSWERS, ASKS, ANSWERS], "used before"),
        ([USER, ASKS | {"tool_calls": [CALL, CALL]}, ANSWERS], "used before"),
        ([USER, ASKS | {"content": "x", "tool_calls": []}, ANSWERS], "non-empty array or absent"),
        (
            [USER, ASKS | {"tool_calls": [CALL | {"function": {"name": "no", "arguments": "{}"}}]}, ANSWERS],
            "'no' is not",
        ),
        (
            [USER, ASKS | {"tool_calls": [CALL | {"function": {"name": "look", "arguments": "{"}}]}, ANSWERS],
            "valid JSON",
        ),
        (
            [USER, ASKS | {"tool_calls": [CALL | {"function": {"name": "look", "arguments": "[]"}}]}, ANSWERS],
            "JSON object",
        ),
        ([{"role": "user", "content": "\ud83d"}], "lone surrogate"),
    ],
)
async def test_what_a_strict_provider_refuses(
    server: ModelServer, http: httpx2.AsyncClient, messages: list[dict[str, Any]], reason: str
) -> None:
    answer = await http.post(f"{server.url}/chat/completions", content=json.dumps(request(*messages)))
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


async def test_a_whole_conversation_with_tools_is_accepted(client: openai.AsyncOpenAI) -> None:
    told = await client.chat.completions.create(
        **request({"role": "system", "content": "s"}, USER, ASKS, ANSWERS, {"role": "assistant", "content": "ok"}, USER)
    )
    assert told.choices[0].message.content == "echo: hi"


@pytest.mark.parametrize("tools", [[], [*TOOLS, *TOOLS], [{"type": "function", "function": {"name": "a b"}}]])
async def test_tools_that_a_strict_provider_refuses(client: openai.AsyncOpenAI, tools: list[Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**request(USER, tools=tools))


async def test_streamed_text_comes_in_pieces_with_usage(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    server.script([text("one two  three", reasoning="hm", usage=(7, 3))])
    said, thought, used = [], [], None
    stream = await client.chat.completions.create(**request(USER, stream=True, stream_options={"include_usage": True}))
    async for chunk in stream:
        used = chunk.usage or used
        for choice in chunk.choices:
            said.append(choice.delta.content or "")
            thought.append((choice.delta.model_extra or {}).get("reasoning_content", ""))
    assert [piece for piece in said if piece] == ["one", " two", "  three"]
    assert "".join(thought) == "hm"
    assert used is not None
    assert (used.prompt_tokens, used.completion_tokens) == (7, 3)


async def test_streamed_calls_come_in_fragments(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    server.script([calls(Call("look", {"where": "in the long corridor"}), Call("look", "{broken", id="mine"))])
    arguments: dict[int, str] = {}
    ids: dict[int, str] = {}
    fragments = 0
    async for chunk in await client.chat.completions.create(**request(USER, stream=True)):
        for delta in chunk.choices[0].delta.tool_calls or []:
            fragments += 1
            ids[delta.index] = delta.id or ids[delta.index]
            arguments[delta.index] = arguments.get(delta.index, "") + (delta.function.arguments or "")
    assert json.loads(arguments[0]) == {"where": "in the long corridor"}
    assert arguments[1] == "{broken"
    assert ids[1] == "mine"
    assert fragments > 4


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (error(429, retry_after="7"), 429, None),
        (error(500), 500, None),
        (error(401, "invalid_api_key"), 401, "invalid_api_key"),
        (too_long(), 400, "context_length_exceeded"),
    ],
)
async def test_errors_have_openais_shape(server: ModelServer, client: openai.AsyncOpenAI, reply, status, code) -> None:
    server.script([reply])
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(**request(USER))
    assert caught.value.status_code == status
    assert caught.value.code == code
    assert caught.value.response.headers.get("retry-after") == reply.retry_after


async def test_a_dropped_line_is_seen_as_such(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    server.script([drop("half an")])
    said = ""
    with pytest.raises(openai.APIConnectionError):
        async for chunk in await client.chat.completions.create(**request(USER, stream=True)):
            said += chunk.choices[0].delta.content or ""
    assert said == "half an"


async def test_a_client_that_leaves_is_noticed(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    server.script([stall("wait"), text("slow answer here", delay=30)])
    for _ in range(2):
        stream = await client.chat.completions.create(**request(USER, stream=True))
        if server.count == 1:
            await anext(aiter(stream))
        assert not server.last.closed_early.is_set()
        await stream.close()
        await asyncio.wait_for(server.last.closed_early.wait(), 2)
        assert not server.last.finished.is_set()


async def test_an_answer_read_to_its_end_is_not_called_closed_early(
    server: ModelServer, client: openai.AsyncOpenAI
) -> None:
    await client.chat.completions.create(**request(USER))
    await asyncio.wait_for(server.last.finished.wait(), 2)
    await asyncio.sleep(0)
    assert not server.last.closed_early.is_set()


async def test_a_used_up_script_says_so(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    server.script([empty()])
    assert (await client.chat.completions.create(**request(USER))).choices[0].message.content is None
    with pytest.raises(openai.BadRequestError, match="no reply left"):
        await client.chat.completions.create(**request(USER))


async def test_a_key_is_checked_when_given() -> None:
    async with ModelServer(api_key="right") as server:
        for key, fits in (("right", True), ("wrong", False)):
            async with sdk(server.url, key) as client:
                if fits:
                    assert [model.id async for model in client.models.list()] == ["scripted"]
                    continue
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(**request(USER))


async def test_the_message_itself_can_steer_the_default_answer(client: openai.AsyncOpenAI) -> None:
    ask = {"role": "user", "content": 'go [[tool:look {"at": {"x": 1}}]] [[tool:look]] [[slow:0]]'}
    first = (await client.chat.completions.create(**request(ask))).choices[0].message.tool_calls[0]
    assert json.loads(first.function.arguments) == {"at": {"x": 1}}
    second = (await client.chat.completions.create(**request(ask, ASKS, ANSWERS))).choices[0].message.tool_calls[0]
    assert second.function.arguments == "{}"
    again = ASKS | {"tool_calls": [CALL | {"id": "c2"}]}
    last = await client.chat.completions.create(**request(ask, ASKS, ANSWERS, again, ANSWERS | {"tool_call_id": "c2"}))
    assert last.choices[0].message.content == "echo: go | seen"


async def test_the_message_can_ask_for_calls_at_once_and_for_failures(client: openai.AsyncOpenAI) -> None:
    both = {"role": "user", "content": "[[parallel]] [[tool:look]] [[tool:look]]"}
    assert len((await client.chat.completions.create(**request(both))).choices[0].message.tool_calls) == 2
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(**request({"role": "user", "content": "[[error:503]]"}))
    long = await client.chat.completions.create(**request({"role": "user", "content": "[[long:40]]"}))
    assert len(long.choices[0].message.content.split()) == 40


async def test_embeddings_are_repeatable_and_near_for_near_texts(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="e", input=["red car", "red car", "blue sky over water"])
    one, same, other = (item.embedding for item in answer.data)
    assert one == same
    assert one == pytest.approx(embedding("red car"), abs=1e-6)
    assert sum(a * b for a, b in zip(one, other, strict=True)) < 0.9


async def test_its_own_process_can_be_driven_over_http(tmp_path: Path, http: httpx2.AsyncClient) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "from the file"}]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.model_server", "--script", str(script),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        async with sdk(url) as client:
            assert (await client.chat.completions.create(**request(USER))).choices[0].message.content == "from the file"
            root = url.removesuffix("/v1")
            reply = {"calls": [{"name": "look", "args": {"a": 1}}], "usage": [5, 6]}
            await http.post(f"{root}/script", json={"replies": [reply]})
            told = await client.chat.completions.create(**request(USER))
            assert told.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
            assert told.usage.prompt_tokens == 5
            seen = (await http.get(f"{root}/requests")).json()
            assert seen["count"] == 2
            assert seen["requests"][1]["body"]["messages"] == [USER]
            await http.delete(f"{root}/requests")
            assert (await http.get(f"{root}/requests")).json() == {"count": 0, "requests": []}
    finally:
        process.terminate()
        await process.wait()
