"""The clients that people have: the official openai SDK and curl, against a real daemon."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.daemon import DaemonProcess, write_home, write_json
from tests.support.model_process import ModelProcess

ONE_TRY = {"running": {"retry": {"attempts": 1}}}
PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture(scope="module")
def daemon(models: ModelProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for all tests here: each of them speaks in sessions of its own."""
    agents = ("default", "other", "strict", "off")
    home = write_home(tmp_path_factory.mktemp("clients") / "home", models=models.url, agents=agents, agent=ONE_TRY)
    config = json.loads((home / "config.json").read_text())
    config["agents"]["profiles"]["off"]["enabled"] = False
    write_json(home / "config.json", config)
    strict = json.loads((home / "workspaces" / "strict" / "agent.json").read_text())
    strict["running"]["if_busy"] = "reject"
    write_json(home / "workspaces" / "strict" / "agent.json", strict)
    with DaemonProcess(home) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, timeout=30) as client:
        yield client


def says(role: str, content: Any) -> ChatCompletionMessageParam:
    message: Any = {"role": role, "content": content}
    return message  # type: ignore[no-any-return]


def asked(client: openai.OpenAI, *messages: ChatCompletionMessageParam, **more: Any) -> tuple[str, str]:
    """The answer, and the session that it belongs to."""
    given = {"model": "default", **more}
    raw = client.chat.completions.with_raw_response.create(messages=list(messages), **given)
    return str(raw.parse().choices[0].message.content), raw.headers["x-session-id"]


def test_an_answer_in_one_piece(client: openai.OpenAI, daemon: DaemonProcess) -> None:
    answer = client.chat.completions.create(model="default", messages=[says("user", "hello there")])
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant", "echo: hello there", "stop",
    )  # fmt: skip
    assert answer.model == "default" and answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer.id.startswith("chatcmpl-turn_")


def test_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="default",
        messages=[says("user", "one two three [[slow:0.02]]")],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece for piece in pieces if piece) == "echo: one two three"
    assert len([piece for piece in pieces if piece]) > 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


def test_the_sdks_own_stream_helper_understands_it(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="default", messages=[says("user", "one two [[slow:0.01]]")]) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == "echo: one two"


def test_an_answer_in_steps_is_one_text(client: openai.OpenAI) -> None:
    question = says("user", "what time is it? [[tool:current_time {}]]")
    text, session = asked(client, question)
    assert text.startswith("echo: what time is it? | ")
    again, same = asked(client, question, says("assistant", text), says("user", "thanks"))
    assert (again, same) == ("echo: thanks", session)


@pytest.mark.parametrize("more", [{"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "auto"}])
def test_a_clients_tools_are_left_to_the_agent(client: openai.OpenAI, models: ModelProcess, more: Any) -> None:
    answer = client.chat.completions.create(
        model="default", messages=[says("user", "is it raining?")], temperature=0.2, max_tokens=50, top_p=0.9, **more
    )
    assert answer.choices[0].message.content == "echo: is it raining?"
    assert answer.choices[0].message.tool_calls is None
    offered = {tool["function"]["name"] for tool in models.requests()[-1]["body"]["tools"]}
    assert "weather" not in offered and "read_file" in offered


def test_parts_and_pictures(client: openai.OpenAI, daemon: DaemonProcess) -> None:
    parts = [{"type": "text", "text": "look at "}, {"type": "text", "text": "this"}]
    picture = {"type": "image_url", "image_url": {"url": PICTURE}}
    text, session = asked(client, says("user", [*parts, picture]))
    assert text.startswith("echo: look at this")
    [file] = [part for part in daemon.messages(session=session)[0]["parts"] if part["type"] == "file"]
    assert (daemon.home / "workspaces" / "default" / file["path"]).read_bytes().startswith(b"\x89PNG")


def test_what_was_said_finds_its_session(client: openai.OpenAI, daemon: DaemonProcess) -> None:
    history = [says("user", "my name is Ann")]
    sessions = []
    for question in ("what is my name?", "and again?", "thanks"):
        text, session = asked(client, *history, user="ann")
        sessions.append(session)
        history += [says("assistant", text), says("user", question)]
    assert len(set(sessions)) == 1
    said = [(m["role"], m["text"]) for m in daemon.messages(session=sessions[0])]
    assert said == [
        ("user", "my name is Ann"), ("assistant", "echo: my name is Ann"),
        ("user", "what is my name?"), ("assistant", "echo: what is my name?"),
        ("user", "and again?"), ("assistant", "echo: and again?"),
    ]  # fmt: skip


def test_another_user_agent_or_history_is_another_session(client: openai.OpenAI) -> None:
    first = says("user", "a secret of mine")
    text, session = asked(client, first, user="ann")
    following = (first, says("assistant", text), says("user", "go on"))
    changed = (first, says("assistant", text + "!"), says("user", "go on"))
    others = [
        asked(client, *following, user="bob")[1],
        asked(client, *following, user="ann", model="other")[1],
        asked(client, *changed, user="ann")[1],
    ]
    assert session not in others and len(set(others)) == 3
    assert asked(client, *following, user="ann")[1] == session
    assert asked(client, first, user="ann")[1] not in (session, *others)


def test_a_clients_instructions_are_a_note_and_not_the_agents_own(client: openai.OpenAI, models: ModelProcess) -> None:
    text, _ = asked(client, says("system", "Answer like a pirate."), says("user", "hello"))
    assert text.startswith("echo: hello")
    system, *_, last = models.requests()[-1]["body"]["messages"]
    assert "pirate" not in system["content"] and "Answer like a pirate." in json.dumps(last)


def test_a_session_may_be_named(client: openai.OpenAI, daemon: DaemonProcess) -> None:
    for number in range(2):
        _, session = asked(client, says("user", f"number {number}"), extra_headers={"X-Session-Id": "my.session"})
        assert session == "my.session"
    assert [m["text"] for m in daemon.messages(session="my.session") if m["role"] == "user"] == ["number 0", "number 1"]


def test_agents_are_models(client: openai.OpenAI) -> None:
    assert {"default", "other", "strict"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("other").id == "other"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_errors_are_the_sdks_own(client: openai.OpenAI, daemon: DaemonProcess) -> None:
    hello = [says("user", "hello")]
    create = client.chat.completions.create
    with pytest.raises(openai.AuthenticationError) as unknown:
        client.with_options(api_key="wrong").chat.completions.create(model="default", messages=hello)
    assert unknown.value.status_code == 401 and unknown.value.type == "authentication_error"
    with pytest.raises(openai.NotFoundError, match="the model 'nobody' does not exist") as missing:
        create(model="nobody", messages=hello)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.ConflictError, match="is disabled"):
        client.with_options(max_retries=0).chat.completions.create(model="off", messages=hello)
    with pytest.raises(openai.BadRequestError, match="one answer") as several:
        create(model="default", messages=hello, n=2)
    assert several.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="empty"):
        create(model="default", messages=[says("user", "  ")])
    with pytest.raises(openai.BadRequestError, match="last one must be the user's"):
        create(model="default", messages=[*hello, says("assistant", "hi")])
    with pytest.raises(openai.APIStatusError) as large:
        create(model="default", messages=[says("user", "x" * 11_000_000)])
    assert large.value.status_code == 413


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, openai.RateLimitError), (500, openai.InternalServerError), (401, openai.InternalServerError)],
)
def test_a_providers_failure_is_told_and_not_asked_again(
    client: openai.OpenAI, daemon: DaemonProcess, status: int, kind: type[openai.APIStatusError]
) -> None:
    named = {"extra_headers": {"X-Session-Id": f"failing-{status}"}}
    with pytest.raises(kind):
        asked(client, says("user", f"fail [[error:{status}]]"), **named)
    assert [m["role"] for m in daemon.messages(session=f"failing-{status}")] == ["user"]
    assert asked(client, says("user", "and now?"), **named)[0] == "echo: and now?"


def test_a_failure_in_a_stream_is_an_error_of_the_sdk(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="default", messages=[says("user", "fail [[drop]]")], stream=True, extra_headers={"X-Session-Id": "broken"}
    )
    said = ""
    with pytest.raises(openai.APIError):
        for chunk in stream:
            said += chunk.choices[0].delta.content or ""
    assert said.startswith("echo: fail")


async def test_a_busy_session_is_a_conflict_and_others_run_meanwhile(daemon: DaemonProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0) as client:
        named = {"X-Session-Id": "busy"}
        slow = [says("user", "[[slow:0.03]] [[long:60]]")]
        stream = await client.chat.completions.create(model="strict", messages=slow, stream=True, extra_headers=named)
        await anext(stream)
        with pytest.raises(openai.ConflictError, match="a turn is running"):
            await client.chat.completions.create(model="strict", messages=[says("user", "me too")], extra_headers=named)
        answers = await asyncio.gather(
            *(client.chat.completions.create(model="strict", messages=[says("user", f"n{n}")]) for n in range(8))
        )
        assert [answer.choices[0].message.content for answer in answers] == [f"echo: n{n}" for n in range(8)]
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert len(text.split()) in (59, 60)


async def test_leaving_a_stream_does_not_end_the_turn(daemon: DaemonProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token) as client:
        stream = await client.chat.completions.create(
            model="default",
            messages=[says("user", "[[slow:0.02]] [[long:30]]")],
            stream=True,
            extra_headers={"X-Session-Id": "left"},
        )
        await anext(stream)
        await stream.close()
    async with daemon.async_client() as plain, asyncio.timeout(30):
        while True:
            turns = (await plain.get("/api/agents/default/sessions/left/turns")).json()["turns"]
            if turns[0]["state"] == "completed":
                break
            await asyncio.sleep(0.05)
    assert len(turns[0]["text"].split()) == 30


# curl


def curl(daemon: DaemonProcess, path: str, *arguments: str, token: bool = True) -> subprocess.CompletedProcess[str]:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    access = ["-H", f"Authorization: Bearer {daemon.token}"] if token else []
    command = [program, "-sS", "--max-time", "30", *access, *arguments, daemon.url + path]
    return subprocess.run(command, capture_output=True, text=True, timeout=40, env={"PATH": "/usr/bin:/bin"})


def body(**fields: Any) -> list[str]:
    return ["-H", "Content-Type: application/json", "-d", json.dumps(fields)]


def test_curl_gets_one_json(daemon: DaemonProcess) -> None:
    done = curl(daemon, "/console/chat", *body(session_id="c1", message="hello", stream=False))
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["text"], answer["session_id"]) == ("completed", "echo: hello", "c1")
    assert answer["usage"]["output_tokens"] > 0 and answer["turn_id"].startswith("turn_")
    other = curl(daemon, "/console/chat", "-H", "X-Agent-Id: other", *body(message="hello", stream=False))
    assert json.loads(other.stdout)["session_id"].startswith("sess_")
    listed = json.loads(curl(daemon, "/api/agents/other/sessions").stdout)["sessions"]
    assert json.loads(other.stdout)["session_id"] in [session["id"] for session in listed]


def test_curl_gets_a_stream_and_joins_it_again(daemon: DaemonProcess) -> None:
    first = curl(daemon, "/api/agents/default/chat", "-N", *body(session_id="c2", message="one two [[slow:0.01]]"))
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in first.stdout.strip().split("\n\n")]
    assert blocks[0]["event"] == "turn.started" and blocks[-1]["event"] == "turn.completed"
    data = [json.loads(block["data"]) for block in blocks]
    assert all(d["id"] == block["id"] and d["turn_id"] and d["ts"] for d, block in zip(data, blocks, strict=True))
    text = "".join(d["text"] for d, block in zip(data, blocks, strict=True) if block["event"] == "text.delta")
    assert text == data[-1]["text"] == "echo: one two"
    rest = curl(daemon, "/api/agents/default/sessions/c2/stream", "-N", "-H", f"Last-Event-ID: {blocks[1]['id']}")
    assert rest.stdout == first.stdout.split("\n\n", 2)[2]


def test_curl_talks_openai(daemon: DaemonProcess) -> None:
    fields = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    done = curl(daemon, "/v1/chat/completions", "-N", *body(**fields))
    lines = [line.removeprefix("data: ") for line in done.stdout.split("\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "echo: hi"
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}


def test_curl_is_told_what_is_wrong(daemon: DaemonProcess) -> None:
    def told(*arguments: str, path: str = "/console/chat", token: bool = True) -> tuple[str, str]:
        done = curl(daemon, path, "-w", "\n%{http_code}", *arguments, token=token)
        text, _, status = done.stdout.rpartition("\n")
        return status, json.loads(text)["error"]["code"]

    hello = body(message="hello")
    assert told(*hello, token=False) == ("401", "unauthenticated")
    assert told(*hello, "-H", "X-Agent-Id: nobody") == ("404", "agent_not_found")
    assert told(*hello, "-H", "X-Agent-Id: off") == ("409", "agent_disabled")
    assert told("-d", "message=hello") == ("415", "unsupported_media_type")
    assert told("-H", "Content-Type: application/json", "-d", "{oops")[0] == "400"
    assert told(*body(message="hello", session_id="../x"))[0] == "400"
    assert told(path="/api/nothing") == ("404", "not_found")
    assert curl(daemon, "/healthz", token=False).stdout.strip().startswith("{")


def test_after_all_of_that_the_daemon_is_well(daemon: DaemonProcess, models: ModelProcess) -> None:
    """Nothing was refused by the strict model server, and nothing surprised the daemon."""
    refused = [request for request in models.requests() if request["status"] == 400]
    assert refused == []
    assert "Traceback" not in daemon.text()
    assert httpx.get(f"{daemon.url}/readyz").status_code == 200
