"""What a new home is told it could be connected to: found without a request, named by models that exist."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from qworkspace.config.suggest import LOCAL_SERVERS, listening, suggest_providers, suggestions_for

EXAMPLE = Path(__file__).resolve().parents[2] / "config.example.json"


@pytest.mark.may_block
def test_a_server_nearby_is_noticed_and_nothing_is_sent_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = replace(LOCAL_SERVERS[0], base_url=f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        nobody = replace(LOCAL_SERVERS[1], base_url="http://127.0.0.1:9/v1")
        assert listening([nobody, place]) == [place]
        visitor, _ = server.accept()
        with visitor:
            assert visitor.recv(100) == b""


@pytest.mark.may_block
def test_what_is_connected_already_is_not_suggested() -> None:
    environ = {"OPENAI_API_KEY": "sk", "MISTRAL_API_KEY": "m"}
    local = {server.name for server in LOCAL_SERVERS}
    assert [one.why for one in suggestions_for(environ, local)] == ["$OPENAI_API_KEY is set", "$MISTRAL_API_KEY is set"]
    assert [one.name for one in suggestions_for(environ, {*local, "openai"})] == ["mistral"]


def test_no_model_that_its_maker_has_ended_is_named() -> None:
    data = pytest.importorskip("anthropic._data")
    listed = json.loads(EXAMPLE.read_text())["providers"]["anthropic"]["models"]
    [suggested] = suggest_providers({"ANTHROPIC_API_KEY": "sk"})
    named = [model["name"] if isinstance(model, dict) else model for model in [*listed, suggested.model]]
    assert not set(named) & set(data.DEPRECATED_MODELS)
