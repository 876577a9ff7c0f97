"""A scripted model server and the models that reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from qworkspace.chat.wire import ChatModel
from tests.support.model_server import ModelServer
from tests.support.providers import Providers


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    async with Providers() as opened:
        yield opened


@pytest.fixture
async def model(server: ModelServer, providers: Providers) -> ChatModel:
    return await providers.model("openai", server.url)
