"""Clients that nobody here wrote, against a real daemon: the `openai` package and `curl`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.daemon import DaemonProcess, write_home
from tests.support.model_process import ModelProcess

TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("clients")
    with ModelProcess() as models, DaemonProcess(write_home(folder / "home", models=models.url)) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0) as client:
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def test_the_openai_package_lists_asks_streams_and_has_its_tools_ignored(client: openai.OpenAI) -> None:
    assert "default" in [model.id for model in client.models.list()]
    whole = client.chat.completions.create(model="default", messages=[user("hello")], tools=[TOOL])
    assert whole.choices[0].message.content == "echo: hello" and whole.choices[0].message.tool_calls is None
    stream = client.chat.completions.create(
        model="default", messages=[user("one two three")], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "echo: one two three"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens > 0


def test_the_openai_package_sees_errors_as_its_own(daemon: DaemonProcess, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=[user("hello")])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="default", messages=[])
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl_streams_a_turn_and_is_told_what_is_wrong(daemon: DaemonProcess) -> None:
    def curl(*options: str) -> str:
        command = ["curl", "-sN", "--max-time", "30", f"{daemon.url}/console/chat", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    json_body = ("-H", "Content-Type: application/json", "-d", '{"message": "hello"}')
    told = curl("-H", f"Authorization: Bearer {daemon.token}", *json_body)
    events = [line.removeprefix("event: ") for line in told.splitlines() if line.startswith("event: ")]
    assert events[0] == "turn.started" and events[-1] == "turn.completed" and "text.delta" in events
    assert json.loads(curl(*json_body))["error"]["code"] == "unauthenticated"
    form = curl("-H", f"Authorization: Bearer {daemon.token}", "-d", "message=hello")
    assert "error" in json.loads(form)
