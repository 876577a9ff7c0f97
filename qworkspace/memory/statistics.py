"""What BM25 knows about all chunks: lengths, averages, idf.

Heavy (numpy): only `keyword.py` imports this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qworkspace.memory.postings import Segment, around
from qworkspace.memory.scoring import Norms, Scores

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands at which position; holds until the next change.

    The chunks of one file stand together, in their order; `files` counts from 0 upwards. `order` sorts the chunk
    numbers; `joined` is 1 between two chunks of a file and 0 between two files; `window` is 1 + the neighbours.
    """

    chunk_nos: NDArray[np.int64]
    files: NDArray[np.int64]
    order: NDArray[np.int64]
    joined: NDArray[np.float32]
    window: NDArray[np.float32]

    @classmethod
    def of(cls, chunk_nos: NDArray[np.int64], file_nos: NDArray[np.int64]) -> Layout:
        files = np.cumsum(np.diff(file_nos, prepend=file_nos[:1]) != 0)
        joined = (files[1:] == files[:-1]).astype(np.float32)
        window = around(np.ones(len(files), np.float32), joined)
        return cls(chunk_nos, files, np.argsort(chunk_nos, kind="stable"), joined, window)

    def __len__(self) -> int:
        return len(self.chunk_nos)

    def positions(self, chunk_nos: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(positions of those that are here, which of them are)."""
        if not len(self):
            return self.order, np.zeros(len(chunk_nos), np.bool_)
        places = np.searchsorted(self.chunk_nos, chunk_nos, sorter=self.order)
        found = self.order[np.minimum(places, len(self) - 1)]
        here = self.chunk_nos[found] == chunk_nos
        return found[here], here


@dataclass(frozen=True, slots=True)
class Signals:
    """BM25 by position: of each chunk, of the chunk with its two neighbours, of its file."""

    layout: Layout
    chunk: NDArray[np.float64]
    near: NDArray[np.float32]
    file: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Okapi:
    """BM25's parameters, as rank-bm25 names them."""

    k1: float = 1.5
    b: float = 0.75
    epsilon: float = 0.25


class View:
    """What scores need and what holds until the next change."""

    def __init__(self, segments: Sequence[Segment], frequencies: NDArray[np.int64], okapi: Okapi) -> None:
        self._live = [slice(None) if segment.all_live else segment.live for segment in segments]
        pairs = list(zip(segments, self._live, strict=True))
        self.lengths = _joined([segment.lengths[live] for segment, live in pairs], np.int64)
        self.layout = Layout.of(
            _joined([segment.chunk_nos[live] for segment, live in pairs], np.int64),
            _joined([segment.file_nos[live] for segment, live in pairs], np.int64),
        )
        self.size = len(self.lengths)
        self.files = int(self.layout.files[-1]) + 1 if self.size else 0
        self.average_length = float(self.lengths.mean()) if self.size else 0.0
        self.idf, self.average_idf = _okapi(self.size, frequencies, okapi.epsilon)
        self.norms = self._norms(segments, okapi.k1, okapi.b)

    def _norms(self, segments: Sequence[Segment], k1: float, b: float) -> list[Norms]:
        near = [segment.around(segment.lengths.astype(np.float32)) for segment in segments]
        living = _joined([lengths[live] for lengths, live in zip(near, self._live, strict=True)], np.float32)
        near_average = max(float(living.mean()) if self.size else 1.0, 1e-9)
        average = max(self.average_length, 1e-9)
        file_average = max(self.average_length * self.size / max(self.files, 1), 1e-9)
        return [
            Norms(
                np.asarray(k1 * (1 - b + b * segment.lengths / average), np.float64),
                (k1 * (1 - b + b * lengths / near_average)).astype(np.float32),
                (k1 * (1 - b + b * np.bincount(segment.file_of, segment.lengths) / file_average)).astype(np.float32),
            )
            for segment, lengths in zip(segments, near, strict=True)
        ]

    def living(self, parts: Sequence[Array]) -> Array:
        """What the segments have for their live chunks, by position."""
        return _joined([part[live] for part, live in zip(parts, self._live, strict=True)])

    def signals(self, parts: Sequence[Scores]) -> Signals:
        return Signals(
            self.layout,
            self.living([part.chunk for part in parts]),
            self.living([part.near for part in parts]),
            self.living([part.file[part.segment.file_of] for part in parts]),
        )


class Idf(Mapping[str, float]):
    """idf by term."""

    def __init__(self, numbers: Mapping[str, int], values: NDArray[np.float64], frequencies: NDArray[np.int64]) -> None:
        self._numbers, self._values, self._frequencies = numbers, values, frequencies

    def __getitem__(self, term: str) -> float:
        number = self._numbers.get(term)
        if number is None or number >= len(self._values) or not self._frequencies[number]:
            raise KeyError(term)
        return float(self._values[number])

    def __iter__(self) -> Iterator[str]:
        return (term for term in self._numbers if term in self)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._frequencies))


def _okapi(size: int, frequencies: NDArray[np.int64], epsilon: float) -> tuple[NDArray[np.float64], float]:
    """(idf by term number, their average): what is in more than half of the chunks gets epsilon * average."""
    there = frequencies > 0
    if not there.any():
        return np.zeros(len(frequencies)), 0.0
    idf = np.zeros(len(frequencies))
    idf[there] = np.log(size - frequencies[there] + 0.5) - np.log(frequencies[there] + 0.5)
    average = float(idf[there].mean())
    idf[idf < 0] = epsilon * average
    return idf, average


def wide_idf(size: int, frequency: int) -> float:
    return float(np.log(1 + (size - frequency + 0.5) / (frequency + 0.5)))


def _joined(parts: Sequence[Array], dtype: type[np.generic] | None = None) -> Array:
    if not parts:
        return np.zeros(0, dtype)
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined.astype(dtype, copy=False) if dtype else joined
