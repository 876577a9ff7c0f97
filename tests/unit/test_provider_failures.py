"""What goes wrong at a provider, in words that a person and a program understand."""

import asyncio

import pytest

from qworkspace.chat.wire import ChatModel, Prompt, TextDelta
from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.sessions.models import user_message
from tests.support.model_replies import Reply, drop, error, stall, too_long
from tests.support.model_server import ModelServer
from tests.support.providers import Providers, ask


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


async def test_nobody_there_is_a_failure_that_may_pass(providers: Providers) -> None:
    with pytest.raises(ModelError, match="cannot reach") as caught:
        await ask(await providers.model("openai", "http://127.0.0.1:9/v1"), user_message("hi"))
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
