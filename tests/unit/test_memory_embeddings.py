"""Text becomes vectors: built in without a network, or by a provider that is slow, strict and fails."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
from pydantic import SecretStr

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.tasks import Threads
from qworkspace.config.models import EmbeddingConfig, ProviderConfig
from qworkspace.errors import ModelError
from qworkspace.memory.embeddings import BUILTIN_ID, BuiltinEmbedder, Embedders
from tests.support.model_embeddings import Trouble
from tests.support.model_server import ModelServer


class Hasty(SimulatedClock):
    """Notes how long it was asked to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def threads() -> Iterator[Threads]:
    pool = Threads(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def loaded() -> Iterator[BuiltinEmbedder]:
    """One encoder for the module: loading it takes two seconds."""
    pool = Threads(2)
    yield BuiltinEmbedder(pool)
    pool.close()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(api_key="secret-key") as running:
        yield running


@pytest.fixture
async def embedders(threads: Threads) -> AsyncIterator[Embedders]:
    made = Embedders(threads, SimulatedClock())
    yield made
    await made.close()


def provider(server: ModelServer, **more: object) -> ProviderConfig:
    return ProviderConfig.model_validate({"base_url": server.url, "api_key": SecretStr("secret-key")} | more)


def config(**more: object) -> EmbeddingConfig:
    return EmbeddingConfig.model_validate({"provider": "p", "name": "e"} | more)


async def test_built_in_vectors_tell_meaning_apart_also_across_languages(loaded: BuiltinEmbedder) -> None:
    rows = await loaded.embed(
        ["the dentist is on Friday", "周五去看牙医", "金曜日に歯医者へ行く", "the car needs new tyres"]
    )
    question = await loaded.embed_query("牙医预约是哪天？")
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
    similarities = rows @ question
    assert similarities[:3].min() > similarities[3] + 0.2


async def test_built_in_vectors_of_anything_at_all(loaded: BuiltinEmbedder) -> None:
    odd = ["", " \n", "half \ud83d of a face", "\x00", "字" * 100_000, "e" * 100_000, "🙂"]
    rows = await loaded.embed(odd)
    assert rows.shape == (7, 512) and np.isfinite(rows).all()
    assert not rows[:2].any(), "a blank text is near to nothing"
    assert (await loaded.embed([])).shape == (0, 512)


async def test_a_question_does_not_wait_for_the_notes_that_are_being_indexed(loaded: BuiltinEmbedder) -> None:
    await loaded.embed_query("load")
    indexing = asyncio.create_task(loaded.embed(["words of a long note " * 40] * 20))
    await asyncio.sleep(0)
    await loaded.embed_query("where is it?")
    assert not indexing.done()
    assert len(await indexing) == 20


async def test_all_agents_share_the_built_in_one_and_equal_remote_ones(
    embedders: Embedders, server: ModelServer
) -> None:
    assert embedders.of(EmbeddingConfig(), None) is embedders.of(EmbeddingConfig(), None)
    assert embedders.of(EmbeddingConfig(), None).id == BUILTIN_ID
    remote = embedders.of(config(), provider(server))
    assert embedders.of(config(), provider(server)) is remote
    assert embedders.of(config(dimensions=32), provider(server)) is not remote
    assert (remote.id, remote.strong) == ("p/e", True)


async def test_remote_texts_go_out_in_batches_and_blank_ones_not_at_all(
    embedders: Embedders, server: ModelServer
) -> None:
    embedder = embedders.of(config(batch_size=4, dimensions=32), provider(server))
    texts = [f"note {number}" for number in range(9)] + ["", "   "]
    rows = await embedder.embed(texts)
    assert rows.shape == (11, 32) and rows.dtype == np.float32
    assert [len(body["input"]) for body in server.embeddings.requests] == [4, 4, 1]
    assert not rows[9:].any()
    assert np.allclose(await embedder.embed_query("note 3"), rows[3])
    assert embedder.id == "p/e/32"


async def test_a_batch_that_is_refused_as_too_large_is_halved_from_then_on(
    embedders: Embedders, server: ModelServer
) -> None:
    server.embeddings.most = 10
    embedder = embedders.of(config(batch_size=32), provider(server))
    assert len(await embedder.embed([f"note {number}" for number in range(64)])) == 64
    sizes = [len(body["input"]) for body in server.embeddings.requests]
    assert sizes[:3] == [32, 16, 8] and set(sizes[5:]) <= {8, 16}
    assert server.embeddings.embedded == 64, "nothing is embedded twice"


async def test_a_text_that_is_too_long_for_the_model_is_cut(embedders: Embedders, server: ModelServer) -> None:
    server.embeddings.longest = 200
    embedder = embedders.of(config(), provider(server))
    rows = await embedder.embed(["short", "word " * 150])
    assert (np.linalg.norm(rows, axis=1) > 0.99).all()


async def test_a_provider_in_trouble_is_asked_again_when_it_says(threads: Threads, server: ModelServer) -> None:
    clock = Hasty()
    embedders = Embedders(threads, clock)
    server.embeddings.troubles = [Trouble(503), Trouble(429, retry_after="20")]
    assert (await embedders.of(config(), provider(server)).embed(["a note"])).shape == (1, 64)
    assert clock.pauses == [1.0, 20.0]
    assert len(server.embeddings.requests) == 3
    await embedders.close()


@pytest.mark.parametrize(
    ("trouble", "retryable", "says"),
    [
        (Trouble(401), False, "check providers.p.api_key"),
        (Trouble(429, retry_after="600"), True, "too many requests (429): scripted failure"),
        (Trouble(404), False, "does not have this model"),
    ],
)
async def test_what_cannot_be_mended_by_asking_again_is_told_at_once(
    embedders: Embedders, server: ModelServer, trouble: Trouble, retryable: bool, says: str
) -> None:
    server.embeddings.troubles = [trouble]
    with pytest.raises(ModelError) as caught:
        await embedders.of(config(), provider(server)).embed(["a note"])
    assert caught.value.retryable is retryable and says in caught.value.message
    assert len(server.embeddings.requests) == 1


async def test_failures_name_the_place_and_never_the_key(embedders: Embedders, server: ModelServer) -> None:
    away = ProviderConfig(base_url="http://127.0.0.1:9/v1", api_key=SecretStr("secret-key"))
    with pytest.raises(ModelError, match="cannot reach the provider") as caught:
        await embedders.of(config(), away).embed_query("x")
    assert caught.value.retryable
    wrong = provider(server, api_key=SecretStr("wrong-key"))
    with pytest.raises(ModelError) as caught:
        await embedders.of(config(), wrong).embed_query("x")
    assert "wrong-key" not in caught.value.message and "p/e" in caught.value.message


@pytest.mark.parametrize(
    ("embedding", "given", "says"),
    [
        ({"provider": "gone"}, None, "there is no provider 'gone'"),
        ({"provider": "p"}, ProviderConfig(), "embedding.name is missing"),
        ({"provider": "p", "name": "x"}, ProviderConfig(type="anthropic"), "offers no embeddings"),
        ({"provider": "none"}, None, "switched off"),
        ({"provider": "p", "name": "x"}, ProviderConfig(api_key=SecretStr("${NOT_THERE}")), "NOT_THERE"),
    ],
)
async def test_a_configuration_that_cannot_work_says_so_when_it_is_used(
    embedders: Embedders, embedding: dict[str, str], given: ProviderConfig | None, says: str
) -> None:
    embedder = embedders.of(EmbeddingConfig.model_validate(embedding), given)
    with pytest.raises(ModelError, match=says):
        await embedder.embed_query("x")


async def test_vectors_of_another_length_than_asked_for_are_refused(embedders: Embedders, server: ModelServer) -> None:
    embedder = embedders.of(config(), provider(server))
    await embedder.embed_query("one")
    server.embeddings.size = 48
    with pytest.raises(ModelError, match="48 numbers, not 64"):
        await embedder.embed_query("two")


async def test_the_built_in_encoder_is_freed_when_nobody_needs_it_and_comes_back(threads: Threads):
    clock = SimulatedClock()
    embedders = Embedders(threads, clock)
    embedder = embedders.of(EmbeddingConfig(), None)
    before = await embedder.embed_query("tea")
    for _ in range(9):
        await clock.advance(60)
        await embedders.rest()
    assert embedder.ready
    await embedder.embed_query("coffee")  # used again: ten more minutes
    await embedders.rest()
    await clock.advance(500)
    await embedders.rest()
    assert embedder.ready
    await clock.advance(100)
    await embedders.rest()
    assert not embedder.ready
    assert (await embedder.embed_query("tea") == before).all()
    await embedders.close()
