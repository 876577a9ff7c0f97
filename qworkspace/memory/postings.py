"""Postings in arrays: a segment holds whole files of chunks, is never changed but for what is dead, and merges.

Heavy (numpy): only `keyword.py` imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

COUNT_MAX = np.iinfo(np.uint16).max
DENSE = 32
"""Above one posting in so many chunks, passes over all chunks are cheaper than picking them out."""


@dataclass(slots=True)
class FileTerms:
    """A file as it is put in: postings chunk by chunk, as (term, place in the file, count)."""

    chunk_nos: NDArray[np.int64]
    lengths: NDArray[np.int32]
    terms: NDArray[np.int32]
    places: NDArray[np.int32]
    counts: NDArray[np.uint16]


@dataclass(slots=True)
class Segment:
    """By place: chunk number, file, length in terms, alive or not. By row: a term and where its postings begin."""

    chunk_nos: NDArray[np.int64]
    file_nos: NDArray[np.int64]
    lengths: NDArray[np.int32]
    terms: NDArray[np.int32]
    starts: NDArray[np.int64]
    places: NDArray[np.int32]
    counts: NDArray[np.uint16]
    live: NDArray[np.bool_] = field(init=False)
    all_live: bool = True
    opens: NDArray[np.bool_] = field(init=False)
    closes: NDArray[np.bool_] = field(init=False)
    joined: NDArray[np.float32] = field(init=False)
    file_of: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.live = np.ones(len(self.chunk_nos), np.bool_)
        self.opens = np.ones(len(self.chunk_nos), np.bool_)
        self.opens[1:] = self.file_nos[1:] != self.file_nos[:-1]
        self.closes = np.append(self.opens[1:], True)[: len(self.opens)]
        self.joined = (~self.opens[1:]).astype(np.float32)
        self.file_of = np.cumsum(self.opens, dtype=np.int32) - np.int32(1)

    def __len__(self) -> int:
        return len(self.chunk_nos)

    @property
    def alive(self) -> int:
        return len(self) if self.all_live else int(np.count_nonzero(self.live))

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """By row: in how many chunks the term is, dead ones included."""
        return np.diff(self.starts)

    def bury(self, file_nos: Sequence[int]) -> NDArray[np.int64]:
        """Mark files as dead; by row: in how many of their chunks the term was."""
        dying = np.isin(self.file_nos, np.array(file_nos, np.int64)) & self.live
        first, last = _ends(dying)
        self.live &= ~dying
        self.all_live = self.all_live and first == last
        if first == last:
            return np.zeros(len(self.terms), np.int64)
        hits = np.flatnonzero((self.places >= first) & (self.places < last))
        rows = np.searchsorted(self.starts, hits[dying[self.places[hits]]], side="right") - 1
        return np.bincount(rows, minlength=len(self.terms))

    def postings(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.uint16]]:
        """(places, counts) of a term in live chunks."""
        row = int(np.searchsorted(self.terms, np.int32(term)))  # of another type, it would convert them all
        if row == len(self.terms) or self.terms[row] != term:
            return self.places[:0], self.counts[:0]
        part = slice(self.starts[row], self.starts[row + 1])
        places, counts = self.places[part], self.counts[part]
        if self.all_live:
            return places, counts
        kept = self.live[places]
        return places[kept], counts[kept]

    def add(self, scores: NDArray[np.float64], term: int, factor: float, norms: NDArray[np.float64]) -> None:
        """Add a term's BM25 by place."""
        places, counts = self.postings(term)
        add_scores(scores, places, counts, factor, norms)

    def around(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """By place: the sum of the values of the chunk and its two neighbours in the file."""
        return around(values, self.joined)


def around(values: NDArray[np.float32], joined: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums with both neighbours, where `joined` is 1 between two of them and 0 where a file ends."""
    total = values.copy()
    total[1:] += values[:-1] * joined
    total[:-1] += values[1:] * joined
    return total


def add_scores(
    scores: NDArray[np.float64],
    places: NDArray[np.int32],
    counts: NDArray[np.uint16],
    factor: float,
    norms: NDArray[np.float64],
) -> None:
    """Add factor * count / (count + norm) by place."""
    values = counts.astype(np.float64)
    scores[places] += factor * (values / (values + norms[places]))


def sealed(files: dict[int, FileTerms]) -> Segment:
    """A segment of new files."""
    parts = list(files.values())
    sizes = [len(part.chunk_nos) for part in parts]
    offsets = np.cumsum([0, *sizes[:-1]])
    places = [part.places + np.int32(offset) for part, offset in zip(parts, offsets, strict=True)]
    return _segment(
        np.concatenate([part.chunk_nos for part in parts]),
        np.repeat(np.array(list(files), np.int64), sizes),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.terms for part in parts]),
        np.concatenate(places),
        np.concatenate([part.counts for part in parts]),
    )


def merged(segments: Sequence[Segment]) -> Segment:
    """One segment of what is alive in several, in their order."""
    terms, places, counts, offset = [], [], [], 0
    for segment in segments:
        owners = np.repeat(segment.terms, segment.frequencies)
        moved = (np.cumsum(segment.live, dtype=np.int32) + np.int32(offset - 1))[segment.places]
        kept = segment.live[segment.places] if not segment.all_live else slice(None)
        terms.append(owners[kept])
        places.append(moved[kept])
        counts.append(segment.counts[kept])
        offset += segment.alive
    return _segment(
        np.concatenate([segment.chunk_nos[segment.live] for segment in segments]),
        np.concatenate([segment.file_nos[segment.live] for segment in segments]),
        np.concatenate([segment.lengths[segment.live] for segment in segments]),
        np.concatenate(terms),
        np.concatenate(places),
        np.concatenate(counts),
    )


def _segment(
    chunk_nos: NDArray[np.int64],
    file_nos: NDArray[np.int64],
    lengths: NDArray[np.int32],
    terms: NDArray[np.int32],
    places: NDArray[np.int32],
    counts: NDArray[np.uint16],
) -> Segment:
    """Postings in any order of terms, but each term's in the order of places."""
    order = np.argsort(terms, kind="stable")  # of a few sorted runs, which this sort joins in linear time
    terms = terms[order]
    rows = np.flatnonzero(np.diff(terms, prepend=np.int32(-1)))
    starts = np.append(rows, len(terms)).astype(np.int64)
    return Segment(chunk_nos, file_nos, lengths, terms[rows], starts, places[order], counts[order])


def _ends(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """The range that holds all true values."""
    found = np.flatnonzero(mask)
    return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
