"""From configuration to models: which is asked, which is shared, what is never loaded or called unasked."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from qworkspace.base.tasks import Threads
from qworkspace.chat.detect import detect_local
from qworkspace.chat.models import ModelSource, settings_of
from qworkspace.chat.wire import ChatModel, Finished, Prompt, TextDelta
from qworkspace.config.models import AgentConfig, HomeConfig, ModelRef, RunningConfig
from qworkspace.config.suggest import LOCAL_SERVERS
from qworkspace.errors import ModelError
from qworkspace.sessions.models import user_message
from tests.support.model_replies import stall, text
from tests.support.model_server import ModelServer


class Home:
    """A configuration that can be changed."""

    def __init__(self, **values: Any) -> None:
        self.change(**values)

    def change(self, **values: Any) -> None:
        self.value = HomeConfig.model_validate(values)

    def __call__(self) -> HomeConfig:
        return self.value


def provider(server: ModelServer, **more: Any) -> dict[str, Any]:
    return {"type": "openai", "base_url": server.url, "api_key": "k", "models": ["scripted"], **more}


@pytest.fixture
async def home() -> Home:
    return Home()


@pytest.fixture
async def source(home: Home) -> AsyncIterator[ModelSource]:
    threads = Threads(2)
    opened = ModelSource(home, threads=threads)
    yield opened
    await opened.close()
    await asyncio.to_thread(threads.close)


async def answer(model: ChatModel, question: str = "hi") -> str:
    events = [event async for event in model.stream(Prompt("", [user_message(question)]))]
    assert isinstance(events[-1], Finished)
    return events[-1].message.text


def names(refs: list[ModelRef]) -> list[str]:
    return [str(ref) for ref in refs]


def test_which_models_are_asked_in_which_order() -> None:
    home = Home(
        providers={"a": {"models": ["x", "y"]}, "b": {"models": ["z"]}},
        default_model="b/z",
        roles={"light": "a/y"},
    )
    source = ModelSource(home, threads=Threads(1))
    agent = AgentConfig.model_validate({"fallback_models": ["b/z", "a/x"]})
    assert names(source.chain(agent)) == ["b/z", "a/x"]
    assert names(source.chain(agent.model_copy(update={"model": ModelRef.parse("a/x")}))) == ["a/x", "b/z"]
    assert names(source.chain(agent, override=ModelRef.parse("a/y"))) == ["a/y", "b/z", "a/x"]
    assert names(source.chain(agent, role="light")) == ["a/y", "b/z", "a/x"]
    assert names(source.chain(agent, role="heavy")) == ["b/z", "a/x"]
    assert source.names() == ["a/x", "a/y", "b/z"]


def test_without_a_default_the_first_usable_model_is_taken_and_without_any_the_offline_one() -> None:
    agent = AgentConfig()
    listed = {"locked": {"api_key": "${MISSING}", "models": ["m"]}, "open": {"models": ["n"]}}
    assert names(ModelSource(Home(providers=listed), threads=Threads(1)).chain(agent)) == ["open/n"]
    empty = ModelSource(Home(), threads=Threads(1))
    assert names(empty.chain(agent)) == ["offline/offline"]
    assert empty.names() == ["offline/offline"]


async def test_a_configured_model_answers(home: Home, source: ModelSource) -> None:
    async with ModelServer(api_key="k") as server:
        listed = [{"name": "scripted", "context_window": 4000, "vision": True, "price": {"input": 1, "output": 2}}]
        home.change(providers={"mine": provider(server, models=listed, headers={"X-Team": "blue"})})
        model = await source.get(ModelRef.parse("mine/scripted"))
        assert await answer(model) == "echo: hi"
        assert server.last.headers["x-team"] == "blue"
        assert (model.context_window, model.vision) == (4000, True)
        assert model.price is not None
        assert (await source.get(ModelRef.parse("mine/unlisted"))).context_window == 128_000


async def test_a_client_is_shared_until_its_configuration_changes(home: Home, source: ModelSource) -> None:
    async with ModelServer() as first, ModelServer([text("from the second")]) as second:
        ref = ModelRef.parse("mine/scripted")
        home.change(providers={"mine": provider(first)})
        model, again = await asyncio.gather(source.get(ref), source.get(ref))
        assert model is again
        home.change(providers={"mine": provider(first)}, user_timezone="Europe/Berlin")
        assert await source.get(ref) is model
        home.change(providers={"mine": provider(second)})
        assert await answer(await source.get(ref)) == "from the second"


async def test_an_answer_under_way_survives_a_change_and_then_its_client_closes(
    home: Home, source: ModelSource
) -> None:
    async with ModelServer([text("one two", delay=0.1)]) as first, ModelServer() as second:
        ref = ModelRef.parse("mine/scripted")
        home.change(providers={"mine": provider(first)})
        model = await source.get(ref)
        stream = model.stream(Prompt("", [user_message("hi")]))
        said = [await anext(stream)]
        home.change(providers={"mine": provider(second)})
        assert await answer(await source.get(ref)) == "echo: hi"
        said += [event async for event in stream]
        assert "".join(event.text for event in said if isinstance(event, TextDelta)) == "one two"
        with pytest.raises(ModelError):
            await answer(model)


async def test_closing_ends_the_answers_under_way(home: Home, source: ModelSource) -> None:
    async with ModelServer([stall("wait")]) as server:
        home.change(providers={"mine": provider(server)})
        model = await source.get(ModelRef.parse("mine/scripted"))
        stream = model.stream(Prompt("", [user_message("hi")]))
        await anext(stream)
        await source.close()
        await asyncio.wait_for(server.last.closed_early.wait(), 2)
        await stream.aclose()


@pytest.mark.parametrize(
    ("providers", "model", "reason"),
    [
        ({}, "gone/m", "no provider 'gone'"),
        ({"odd": {"type": "quantum", "models": ["m"]}}, "odd/m", "unknown type 'quantum'"),
        ({"locked": {"api_key": "${NO_SUCH_KEY}"}}, "locked/m", "needs NO_SUCH_KEY"),
        ({"keyless": {"type": "openai"}}, "keyless/m", "set providers.keyless.api_key"),
        ({"keyless": {"type": "anthropic"}}, "keyless/m", "set providers.keyless.api_key"),
        ({"keyless": {"type": "google"}}, "keyless/m", "set providers.keyless.api_key"),
    ],
)
async def test_a_model_that_cannot_be_had_says_why_when_it_is_asked(
    home: Home, source: ModelSource, providers: dict[str, Any], model: str, reason: str
) -> None:
    home.change(providers=providers)
    found = await source.get(ModelRef.parse(model))
    with pytest.raises(ModelError, match=reason) as caught:
        await answer(found)
    assert not caught.value.retryable


@pytest.mark.parametrize("extra", ["anthropic", "google"])
async def test_a_missing_extra_is_named(
    home: Home, source: ModelSource, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"pydantic_ai.models.{extra}", None)
    home.change(providers={"p": {"type": extra, "api_key": "k"}})
    with pytest.raises(ModelError, match=rf"pip install 'qworkspace\[{extra}\]'"):
        await answer(await source.get(ModelRef.parse("p/m")))


async def test_the_offline_model_is_there_without_being_configured(home: Home, source: ModelSource) -> None:
    assert "offline answer" in await answer(await source.get(ModelRef.parse("offline/offline")))
    home.change(providers={"offline": {"type": "offline", "models": ["offline"]}, "mute": {"type": "offline"}})
    assert "offline answer" in await answer(await source.get(ModelRef.parse("offline/offline")))
    assert "offline answer" in await answer(await source.get(ModelRef.parse("mute/any")))


_PRELOAD = """
import asyncio, sys
from qworkspace.chat.models import ModelSource
from qworkspace.config.models import HomeConfig
from qworkspace.chat import compactor, context, prompt, reliable, wire

async def main(providers):
    source = ModelSource(lambda: HomeConfig.model_validate({"providers": providers}))
    before = sorted(heavy & set(sys.modules))
    await source.preload()
    await source.close()
    return before, sorted(heavy & set(sys.modules))

heavy = {"pydantic_ai", "openai", "anthropic", "google.genai", "httpx2", "numpy"}
print(asyncio.run(main(eval(sys.argv[1]))))
"""


@pytest.mark.parametrize(
    ("providers", "loaded"),
    [
        ({"offline": {"type": "offline"}}, "([], [])"),
        ({"locked": {"type": "openai", "api_key": "${NO_SUCH}"}}, "([], [])"),
        ({"local": {"type": "ollama"}}, "([], ['httpx2', 'openai', 'pydantic_ai'])"),
    ],
)
def test_the_library_is_loaded_only_where_a_provider_needs_it(providers: dict[str, Any], loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRELOAD, repr(providers)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == loaded, done.stderr


def test_what_an_agent_sends_along() -> None:
    running = RunningConfig(temperature=0.2, max_output_tokens=500, model_settings={"top_p": 0.9, "temperature": 1.0})
    assert settings_of(running) == {"top_p": 0.9, "temperature": 0.2, "max_tokens": 500}
    assert settings_of(RunningConfig()) == {}


async def test_servers_nearby_are_found_with_their_models() -> None:
    async with ModelServer(models=["qwen3:8b", "llama3.2"]) as server:
        nobody = replace(LOCAL_SERVERS[1], base_url="http://127.0.0.1:9/v1")
        places = [replace(LOCAL_SERVERS[0], base_url=server.url), nobody]
        (found,) = await detect_local(places, timeout=2)
    assert (found.title, found.type, found.base_url) == ("Ollama", "ollama", server.url)
    assert found.models == ("qwen3:8b", "llama3.2")


async def test_something_else_on_that_port_is_no_model_server() -> None:
    async with ModelServer() as server:
        for path in ("/nowhere", "/requests?"):
            place = replace(LOCAL_SERVERS[1], base_url=server.url.replace("/v1", path))
            assert await detect_local([place]) == []
