"""What turns text into vectors: the built-in encoder, a provider's endpoint, or nothing.

numpy and the encoder are heavy; they are imported on the first text, in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import Threads
from qworkspace.config.models import EmbeddingConfig, ProviderConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BUILTIN_ID = "builtin/use-multilingual-3"


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

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row of length 1 for each text. Batches and tries again by itself; raises `ModelError`."""

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question; does not wait for an `embed` that is under way, beyond its present batch."""


class NoEmbedder:
    """No vectors: search goes by words alone. `embed` is never to be called."""

    id = "none"
    strong = False
    dimensions = 0

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise NotImplementedError

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        raise NotImplementedError


class Embedders:
    """The embedders of a daemon. The built-in one is loaded once, on first need, and shared by all agents."""

    def __init__(self, threads: Threads, clock: Clock) -> None:
        raise NotImplementedError

    def of(self, config: EmbeddingConfig, provider: ProviderConfig | None) -> Embedder:
        """The embedder that is configured. Equal configurations share one. `provider` is that of `config.provider`.

        "builtin" and "none" need no provider; another name without one raises `InvalidConfig`.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close connections. Idempotent."""
