"""Ranking: keyword signals and vectors become one list, and each result says why it is there.

Pure: no files, no model. Heavy (numpy): import this module where a search begins, not at start.
The weights are those that were measured, see "Quality, measured" in docs/memory.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qworkspace.memory.keyword import KeywordIndex
from qworkspace.memory.statistics import Signals
from qworkspace.memory.tokens import has_cjk, is_identifier_query, terms

KEYWORD = {"bm25": 0.325, "bm25_near": 0.2275, "bm25_file": 0.0975}
VECTOR = {"vector": 0.2, "vector_near": 0.15}
"""Shares within each kind, for a vector weight of .35."""

STRONG, WEAK = 0.7, 0.35
"""Default vector weight: of a remote embedder, and of the built-in one, with which more makes results worse."""

NAME = 1.4
"""A name in the question counts so much more than another word."""

RECENT = 0.05
RECENT_DAYS = 90.0
"""A passage of today scores so much better than a very old one; the difference halves with so many days."""

RRF_K = 60
FIRST = 5
REPEATED = 0.1
"""Behind the first results, each passage of a note that is there already takes so much off the next one's score."""

LONGEST_TEXT = 20_000
MOST_TERMS = 64
_NAME = re.compile(r"(?<=[^.?!\s]\s)[^\W\d_a-z][^\W\d_A-Z]+")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much of a score vectors decide, and how it is put together."""

    vector: float = WEAK
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
        default = STRONG if strong else WEAK
        return cls(default if vector_weight is None else vector_weight, fusion=fusion)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Cosine similarities of the query to chunks: of all that have a vector, or of the best few thousand."""

    chunk_nos: NDArray[np.int64]
    similarities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A result: `score` is 0-1 within its search, `parts` add up to it; ranks count from 1, None: not found by it."""

    chunk_no: int
    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    vector_rank: int | None = None
    bm25_rank: int | None = None


Dates = Callable[[Sequence[int]], Sequence[date | None]]


def rank(
    index: KeywordIndex,
    text: str,
    *,
    dates: Dates,
    weights: Weights,
    vectors: Vectors | None = None,
    allowed: NDArray[np.int64] | None = None,
    limit: int = 10,
    min_score: float = 0.0,
    today: date | None = None,
) -> list[Ranked]:
    """The best chunks for a query, best first.

    `today` turns the mild recency prior on: then `dates` is asked once for those of a few dozen chunks by number, and
    answers in the same order (it may read a database: call `rank` in a thread). `allowed` are the chunk numbers that
    filters leave (None: all).
    """
    text = text[:LONGEST_TEXT]
    board = _Board(index.scores(query_terms(index, text)), vectors, allowed)
    if has_cjk(text):  # words of these languages are guessed from pairs of characters: vectors know better
        weights = replace(weights, vector=max(weights.vector, STRONG))
    parts = board.reciprocal() if weights.fusion == "rrf" else board.measured(weights.vector)
    candidates = board.best(parts, 2 * limit + 10)
    if today is not None and not is_identifier_query(text):
        _favour_recent(candidates, dates, today)
    return [board.explained(one) for one in _spread(candidates, limit) if one.score >= min_score]


def query_terms(index: KeywordIndex, text: str) -> dict[str, float]:
    """The terms of a query with their weights; of a very long one, those that are rarest in the notes."""
    weighted = dict[str, float](Counter(terms(text)))
    for name in set(_NAME.findall(text)):
        for term in terms(name):
            weighted[term] = weighted.get(term, 0.0) * NAME
    if len(weighted) <= MOST_TERMS:
        return weighted
    idf = index.idf
    chosen = sorted(weighted, key=lambda term: -idf.get(term, 0.0))[:MOST_TERMS]
    return {term: weighted[term] for term in chosen}


class _Board:
    """The signals of one search side by side, by position."""

    def __init__(self, signals: Signals, vectors: Vectors | None, allowed: NDArray[np.int64] | None) -> None:
        self.signals = signals
        self._allowed = np.isin(signals.chunk_nos, allowed) if allowed is not None else None
        self._order = np.argsort(signals.chunk_nos, kind="stable")
        self._similar, self._has_vector = self._similarities(vectors)
        self.chunk = self._of_allowed(signals.chunk)

    def _of_allowed(self, values: Floats) -> Floats:
        return values if self._allowed is None else values * self._allowed

    def _similarities(self, vectors: Vectors | None) -> tuple[Floats, NDArray[np.bool_]]:
        """(similarity stretched to 0-1, whether there is one) by position."""
        similar = np.zeros(len(self.signals.chunk_nos))
        there = np.zeros(len(similar), np.bool_)
        if vectors is None or not len(vectors.chunk_nos) or not len(similar):
            return similar, there
        known = np.isin(vectors.chunk_nos, self.signals.chunk_nos)
        at = self.positions(vectors.chunk_nos[known])
        there[at] = True
        similar[at] = _stretched(vectors.similarities[known].astype(np.float64))
        return similar, there

    def positions(self, chunk_nos: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Of chunks that the index has."""
        return self._order[np.searchsorted(self.signals.chunk_nos, chunk_nos, sorter=self._order)]

    def measured(self, vector_weight: float) -> dict[str, Floats]:
        """The weighted sum of signals, each stretched to 0-1. Without vectors the words decide alone."""
        values = {
            "bm25": self.signals.chunk,
            "bm25_near": self.signals.near,
            "bm25_file": self.signals.file,
            "vector": self._similar,
            "vector_near": self._vector_near(),
        }
        weight = vector_weight if self._has_vector.any() else 0.0
        shares = _shares(KEYWORD, 1 - weight) | _shares(VECTOR, weight)
        return {name: share * _stretched(self._of_allowed(values[name])) for name, share in shares.items() if share}

    def reciprocal(self) -> dict[str, Floats]:
        """Plain reciprocal rank fusion, so that the first by both has 1."""
        signals = {"bm25": self.chunk, "vector": self._of_allowed(self._similar)}
        found = {name: values for name, values in signals.items() if values.any()}
        return {name: (RRF_K + 1) / len(found) * _reciprocal_ranks(values) for name, values in found.items()}

    def _vector_near(self) -> Floats:
        """The mean of a chunk and its neighbours in the file."""
        similar, total = self._similar, self._similar.copy()
        size = np.ones(len(total))
        joined = (self.signals.files[1:] == self.signals.files[:-1]).astype(np.float64)
        total[1:] += similar[:-1] * joined
        total[:-1] += similar[1:] * joined
        size[1:] += joined
        size[:-1] += joined
        return total / size

    def best(self, parts: Mapping[str, Floats], size: int) -> list[_Candidate]:
        """The best chunks with their parts, best first."""
        score = sum(parts.values(), np.zeros(len(self.signals.chunk_nos)))
        return [
            _Candidate(
                at,
                int(self.signals.chunk_nos[at]),
                int(self.signals.files[at]),
                {name: float(values[at]) for name, values in parts.items() if values[at]},
            )
            for at in _top(score, size)
            if score[at] > 0
        ]

    def explained(self, one: _Candidate) -> Ranked:
        """With the ranks by words and by vectors alone."""
        return Ranked(
            one.chunk_no,
            one.score,
            one.parts,
            bm25_rank=_rank_of(self.chunk, one.at) if self.chunk[one.at] > 0 else None,
            vector_rank=_rank_of(self._of_allowed(self._similar), one.at) if self._has_vector[one.at] else None,
        )


@dataclass(slots=True)
class _Candidate:
    """A chunk that may become a result, with what adds up to its score so far."""

    at: int
    chunk_no: int
    file: int
    parts: dict[str, float]

    @property
    def score(self) -> float:
        return sum(self.parts.values())


def _favour_recent(candidates: list[_Candidate], dates: Dates, today: date) -> None:
    """What is newer comes first among equals. What has no date (a consolidated note) stands in the middle."""
    days = dates([one.chunk_no for one in candidates]) if candidates else []
    for one, day in zip(candidates, days, strict=True):
        share = 0.5 if day is None else 0.5 ** (max((today - day).days, 0) / RECENT_DAYS)
        recency = RECENT * share * one.score
        one.parts = {name: value / (1 + RECENT) for name, value in [*one.parts.items(), ("recency", recency)]}
    candidates.sort(key=lambda one: -one.score)


def _spread(candidates: list[_Candidate], limit: int) -> list[_Candidate]:
    """The first ones as they are; then those of notes that are not there yet come somewhat earlier."""
    first = min(FIRST, limit)
    chosen, rest = candidates[:first], [(one.score, one) for one in candidates[first:]]
    seen = Counter(one.file for one in chosen)
    while rest and len(chosen) < limit:
        damped, at = max((score * (1 - REPEATED) ** seen[one.file], -at) for at, (score, one) in enumerate(rest))
        score, one = rest.pop(-at)
        if damped < score:
            one.parts["repeated"] = damped - score
        chosen.append(one)
        seen[one.file] += 1
    return chosen


def _shares(of: Mapping[str, float], weight: float) -> dict[str, float]:
    whole = sum(of.values())
    return {name: weight * share / whole for name, share in of.items()}


def _stretched(values: Floats) -> Floats:
    """To 0-1: the least is 0, the greatest 1; when all are the same (a single chunk), 1 for what was found at all."""
    if not len(values):
        return values
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else (values > 0).astype(np.float64)


def _reciprocal_ranks(values: Floats) -> Floats:
    found = np.flatnonzero(values)
    ranked = found[np.argsort(-values[found], kind="stable")]
    scores = np.zeros(len(values))
    scores[ranked] = 1 / (RRF_K + 1 + np.arange(len(ranked)))
    return scores


def _rank_of(values: Floats, at: int) -> int:
    return int(np.count_nonzero(values > values[at])) + 1


def _top(values: Floats, size: int) -> list[int]:
    """Positions of the greatest values, in their order; equal ones by position."""
    if size < len(values):
        least = np.partition(values, len(values) - size)[len(values) - size]
        candidates = np.flatnonzero(values >= least)
    else:
        candidates = np.arange(len(values))
    order: list[int] = candidates[np.argsort(-values[candidates], kind="stable")][:size].tolist()
    return order
