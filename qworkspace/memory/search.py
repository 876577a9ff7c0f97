"""Ranking: keyword signals and vectors become one list, and each result says why it is there.

Pure: no files, no model. Heavy (numpy): import this module where a search begins, not at start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qworkspace.memory.keyword import KeywordIndex


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of the signals (together 1 with `vector_*`), by `of`."""

    chunk: float
    near: float
    file: float
    vector: float
    vector_near: float
    fusion: Literal["measured", "rrf"] = "measured"

    @classmethod
    def of(
        cls,
        vector_weight: float | None = None,
        *,
        strong: bool = False,
        fusion: Literal["measured", "rrf"] = "measured",
    ) -> Weights:
        """By `memory.vector_weight`; None: .7 for a strong embedder, .35 for the built-in one."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Vectors:
    """Cosine similarities of the query to chunks: of all that have a vector, or of the best few thousand."""

    chunk_nos: NDArray[np.int64]
    similarities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Passage:
    """What ranking asks about a chunk: `text` as by `indexed_text`."""

    text: str
    date: date | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A result: `score` is 0-1 within its search, `parts` add up to it; ranks count from 1, None: not found by it."""

    chunk_no: int
    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    vector_rank: int | None = None
    bm25_rank: int | None = None


def rank(
    index: KeywordIndex,
    text: str,
    *,
    passages: Callable[[Sequence[int]], Sequence[Passage]],
    weights: Weights,
    vectors: Vectors | None = None,
    allowed: NDArray[np.int64] | None = None,
    limit: int = 10,
    min_score: float = 0.0,
    today: date | None = None,
) -> list[Ranked]:
    """The best chunks for a query, best first.

    `passages` is asked for at most a few dozen chunks by number, in two batches (it may read a database: call `rank`
    in a thread), and answers in the same order. `allowed` are the chunk numbers that filters leave (None: all).
    `today` turns the mild recency prior on.
    """
    raise NotImplementedError
