"""Where vectors are kept and the nearest ones are found: the contract, and the store that is built in.

Heavy: imports numpy; imported when a first vector is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

EXACT_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Near:
    """Chunks and their cosine similarities (-1 to 1), in the same order."""

    chunk_nos: NDArray[np.int64]
    similarities: NDArray[np.float32]


class VectorStore(Protocol):
    """Vectors of length 1, one per chunk number. All calls block (run them in a thread) and are safe from any thread.

    What it holds it may keep (chroma) or forget (builtin) when it is closed: `stored` tells at opening. A store that
    cannot be reached raises `Unavailable`.
    """

    def stored(self) -> Mapping[int, str]:
        """chunk number -> hash of everything it holds, so that only what differs needs to be added or removed."""

    def add(self, items: Sequence[tuple[int, str]], vectors: NDArray[np.floating]) -> None:
        """Store the rows of `vectors` under (chunk number, hash of its text); a number that is there is replaced."""

    def remove(self, chunk_nos: Collection[int]) -> None:
        """Forget these; unknown numbers are no error."""

    def search(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None = None) -> Near:
        """The `k` nearest, best first; `allowed` are the chunk numbers to choose from, None is all."""

    def similarities(self, vector: NDArray[np.float32]) -> Near | None:
        """All chunks in no order, when that is cheap (built in, up to `EXACT_ROWS`); otherwise None: use `search`."""

    def clear(self) -> None:
        """Forget everything, also what is kept beyond closing."""

    def close(self) -> None:
        """Free what is held. Idempotent."""

    def __len__(self) -> int:
        """The number of vectors."""
