"""Ranking: keyword signals and vectors become one list, and each result says why it is there.

Pure: no files, no model. Heavy (numpy): import this module where a search begins, not at start.
The weights are those that were measured, see "Quality, measured" in docs/memory.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qworkspace.memory.keyword import KeywordIndex
from qworkspace.memory.postings import around
from qworkspace.memory.statistics import Signals
from qworkspace.memory.stopwords import without_asking
from qworkspace.memory.tokens import has_cjk, is_identifier_query, terms

KEYWORD = {"bm25": 0.325, "bm25_near": 0.2275, "bm25_file": 0.0975}
VECTOR = {"vector": 0.2, "vector_near": 0.15}
"""Shares within each kind, for a vector weight of .35."""

STRONG, WEAK = 0.7, 0.35
"""Default vector weight: of a remote embedder, and of the built-in one, with which more makes results worse."""

TRUSTED = 0.4
"""Words have their whole share when the best passage scores so much of what the question's words could score at most.

With less (a question in another language than the notes), their share shrinks beside that of the vectors.
"""

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
TINY = 1e-6
MOST_TERMS = 64
_NAME = re.compile(r"(?<=[^.?!\s]\s)[^\W\d_a-z][^\W\d_A-Z]+")

Floats = NDArray[np.float32]


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
    query = query_terms(index, text)
    board = _Board(index.scores(query), vectors, allowed)
    trust = 1.0
    if has_cjk(text):  # words of these languages are guessed from pairs of characters: vectors know better
        weights = replace(weights, vector=max(weights.vector, STRONG))
    else:
        trust = _trust(index, query, board.most)
    signals = board.reciprocal() if weights.fusion == "rrf" else board.measured(weights.vector, trust)
    candidates = board.best(signals, 2 * limit + 10)
    if today is not None and not is_identifier_query(text):
        _favour_recent(candidates, dates, today)
    return [board.explained(one) for one in _spread(candidates, limit) if one.score >= min_score]


def query_terms(index: KeywordIndex, text: str) -> dict[str, float]:
    """The terms of a query with their weights; of a very long one, those that are rarest in the notes."""
    weighted = dict[str, float](Counter(terms(without_asking(text)) or terms(text)))
    for name in set(_NAME.findall(text)):
        for term in terms(name):
            weighted[term] = weighted.get(term, 0.0) * NAME
    if len(weighted) <= MOST_TERMS:
        return weighted
    idf = index.idf
    chosen = sorted(weighted, key=lambda term: -idf.get(term, 0.0))[:MOST_TERMS]
    return {term: weighted[term] for term in chosen}


def _trust(index: KeywordIndex, query: Mapping[str, float], most: float) -> float:
    """How much words can be relied on, 0-1: that of the question's words, by their rarity, the notes have some."""
    idf, unknown = index.idf, math.log(2 * len(index) + 1)
    possible = (index.k1 + 1) * sum(weight * max(idf.get(term, unknown), 0.0) for term, weight in query.items())
    return min(1.0, most / (TRUSTED * possible)) if possible > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Signal:
    """A signal by position, none below 0, and what it adds to a score: scale * value."""

    values: Floats
    scale: float

    @classmethod
    def stretched(cls, values: Floats, share: float) -> _Signal:
        """The greatest value adds the whole share."""
        greatest = float(values.max()) if len(values) else 0.0
        return cls(values, share / greatest if greatest > 0 else 0.0)

    def at(self, position: int) -> float:
        return self.scale * float(self.values[position])


class _Board:
    """The signals of one search side by side, by position."""

    def __init__(self, signals: Signals, vectors: Vectors | None, allowed: NDArray[np.int64] | None) -> None:
        self._layout = layout = signals.layout
        self._mask: Floats | None = None
        if allowed is not None:
            self._mask = np.zeros(len(layout), np.float32)
            self._mask[layout.positions(allowed)[0]] = 1
        self._similar = np.zeros(len(layout), np.float32)
        self._has_vector = np.zeros(len(layout), np.bool_)
        if vectors is not None and len(vectors.chunk_nos):
            self._place(vectors)
        self._chunk = self._of_allowed(signals.chunk.astype(np.float32))
        self._near, self._file = self._of_allowed(signals.near), self._of_allowed(signals.file)

    def _place(self, vectors: Vectors) -> None:
        """Similarities by position, stretched to 0-1: where there is none it counts as the least."""
        positions, here = self._layout.positions(vectors.chunk_nos)
        similar = vectors.similarities[here].astype(np.float32)
        low, high = (float(similar.min()), float(similar.max())) if len(similar) else (0.0, 0.0)
        self._has_vector[positions] = True
        self._similar[positions] = (similar - low) / (high - low) if high > low else 1.0

    def _of_allowed(self, values: Floats) -> Floats:
        return values if self._mask is None else values * self._mask

    @property
    def most(self) -> float:
        """The best passage's score by words."""
        return float(self._chunk.max()) if len(self._chunk) else 0.0

    def measured(self, vector_weight: float, trust: float = 1.0) -> dict[str, _Signal]:
        """The weighted sum of signals, each stretched to 0-1. Without vectors the words decide alone."""
        weight = vector_weight if self._has_vector.any() else 0.0
        shares = _shares(KEYWORD, (1 - weight) * (trust if weight else 1.0)) | _shares(VECTOR, weight)
        values = {"bm25": self._chunk, "bm25_near": self._near, "bm25_file": self._file}
        if weight:
            layout = self._layout
            near = around(self._similar, layout.joined) / layout.window
            values |= {"vector": self._of_allowed(self._similar), "vector_near": self._of_allowed(near)}
        return {name: _Signal.stretched(values[name], share) for name, share in shares.items() if share}

    def reciprocal(self) -> dict[str, _Signal]:
        """Plain reciprocal rank fusion, so that the first by both has 1."""
        signals = {"bm25": self._chunk, "vector": self._of_allowed(self._similar)}
        found = {name: values for name, values in signals.items() if values.any()}
        return {name: _Signal(_reciprocal_ranks(values), (RRF_K + 1) / len(found)) for name, values in found.items()}

    def best(self, signals: Mapping[str, _Signal], size: int) -> list[_Candidate]:
        """The best chunks with what each signal adds, best first."""
        score = np.zeros(len(self._layout), np.float32)
        for signal in signals.values():
            score += np.float32(signal.scale) * signal.values
        return [
            _Candidate(
                at,
                int(self._layout.chunk_nos[at]),
                int(self._layout.files[at]),
                {name: part for name, signal in signals.items() if (part := signal.at(at)) > 0},
            )
            for at in _top(score, size)
        ]

    def explained(self, one: _Candidate) -> Ranked:
        """With the ranks by words and by vectors alone."""
        return Ranked(
            one.chunk_no,
            one.score,
            one.parts,
            bm25_rank=_rank_of(self._chunk, one.at) if self._chunk[one.at] > 0 else None,
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


def _reciprocal_ranks(values: Floats) -> Floats:
    found = np.flatnonzero(values)
    ranked = found[np.argsort(-values[found], kind="stable")]
    scores = np.zeros(len(values), np.float32)
    scores[ranked] = 1 / (RRF_K + 1 + np.arange(len(ranked)))
    return scores


def _rank_of(values: Floats, at: int) -> int:
    return int(np.count_nonzero(values > values[at])) + 1


def _top(values: Floats, size: int) -> list[int]:
    """Positions of the greatest values above 0, in their order; equal ones by position."""
    least = float(values.max()) if len(values) else 0.0
    candidates = np.zeros(0, np.int64)
    while least > TINY and len(candidates) < size:  # mostly one or two passes; sorting all takes ten times as long
        least *= 0.5
        candidates = np.flatnonzero(values >= least)
    order: list[int] = candidates[np.argsort(-values[candidates], kind="stable")][:size].tolist()
    return order
