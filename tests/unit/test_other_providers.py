"""Anthropic and Google: one conversation with a tool, each in its own language.

Their libraries build their schemas when they are first used, which takes 0.1 s of the loop, once.
"""

import json

import pytest

from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.sessions.models import Message, ReasoningPart, TextPart, ToolResultPart, user_message
from tests.support.model_server import ModelServer
from tests.support.other_providers import SIGNATURE, AnthropicServer, GoogleServer
from tests.support.providers import Providers, ask, assistant, finished, listen, results, thought

pytestmark = pytest.mark.may_block


async def test_anthropic_gets_its_signed_thoughts_back(providers: Providers) -> None:
    async with AnthropicServer() as server:
        model = await providers.model("anthropic", server.address, "claude-sonnet-5", headers={"x-team": "blue"})
        events = await listen(model, user_message("find it"))
        assert thought(events) == "I should look."
        first = finished(events)
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


async def test_thoughts_of_one_provider_are_not_shown_to_another(server: ModelServer, providers: Providers) -> None:
    thought = ReasoningPart(text="a private thought", signature=SIGNATURE, provider="anthropic")
    model = await providers.model("openai", server.url)
    await ask(model, user_message("hi"), assistant(thought, TextPart(text="hello")), user_message("again"))
    assert "private" not in json.dumps(server.last.body)
    async with AnthropicServer() as other:
        foreign = ReasoningPart(text="another thought", provider="p/reasoning_content")
        claude = await providers.model("anthropic", other.address, "claude-sonnet-5")
        await ask(claude, user_message("hi"), assistant(foreign, TextPart(text="hello")), user_message("again"))
        assert "another thought" not in json.dumps(other.requests)


async def test_anthropics_errors_are_understood(providers: Providers) -> None:
    async with AnthropicServer() as server:
        model = await providers.model("anthropic", server.address, "claude-sonnet-5")
        server.overloaded()
        with pytest.raises(ModelError, match="trouble") as caught:
            await ask(model, user_message("hi"))
        assert (caught.value.status, caught.value.retryable, caught.value.retry_after) == (529, True, 5.0)
        server.too_long()
        with pytest.raises(ContextTooLong):
            await ask(model, user_message("hi"))
        assert len(server.requests) == 2


async def test_google_gets_the_signature_of_its_call_back(providers: Providers) -> None:
    async with GoogleServer() as server:
        model = await providers.model("google", server.address, "gemini-2.5-flash")
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
