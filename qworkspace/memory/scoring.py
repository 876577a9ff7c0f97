"""Scores of a segment while they are added up: of chunks, of their neighbourhoods, of their files.

Heavy (numpy): only `keyword.py` and `statistics.py` import this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qworkspace.memory.postings import DENSE, Segment, add_scores


@dataclass(frozen=True, slots=True)
class Norms:
    """k1 * (1 - b + b * length / average) of chunks, neighbourhoods and files of a segment."""

    chunk: NDArray[np.float64]
    near: NDArray[np.float32]
    file: NDArray[np.float32]


class Scores:
    """The scores of a segment while they are added up, term by term."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.chunk = np.zeros(len(segment))
        self.near = np.zeros(len(segment), np.float32)
        self.file = np.zeros(int(segment.file_of[-1]) + 1 if len(segment) else 0, np.float32)
        self._scratch = np.zeros(len(segment), np.float32)

    def gather(self, term: int) -> None:
        """Find a term: counts in chunks, in neighbourhoods, in files, and in how many of these it is."""
        self.places, self.counts = self.segment.postings(term)
        self.near_size = self.file_size = 0
        if not len(self.places):
            return
        self._in_files = np.bincount(self.segment.file_of[self.places], self.counts, minlength=len(self.file))
        self.file_size = int(np.count_nonzero(self._in_files))
        if len(self.places) * DENSE > len(self.segment):
            self._gather_all()
        else:
            self._gather_some()

    def _gather_all(self) -> None:
        self._scratch[self.places] = self.counts
        self._around: NDArray[np.int32] | slice = slice(None)
        self._in_near = self.segment.around(self._scratch)
        self._scratch[self.places] = 0
        self.near_size = int(np.count_nonzero(self._in_near))

    def _gather_some(self) -> None:
        """As `_gather_all`, for the few places where it can be: those of the term and beside them."""
        places, sums = self.places, self._scratch
        with_left, with_right = ~self.segment.opens[places], ~self.segment.closes[places]
        left, right = places[with_left] - 1, places[with_right] + 1
        sums[places] = self.counts
        self.near_size = len(places) + int(np.count_nonzero(sums[left] == 0))
        sums[left] += self.counts[with_left]
        self.near_size += int(np.count_nonzero(sums[right] == 0))
        sums[right] += self.counts[with_right]
        self._around = np.concatenate([places, left, right])
        self._in_near = sums[self._around]
        sums[self._around] = 0

    def add(self, chunk: float, near: float, file: float, norms: Norms) -> None:
        add_scores(self.chunk, self.places, self.counts, chunk, norms.chunk)
        # places that are there twice have the same sum twice, and are written once
        self.near[self._around] += np.float32(near) * (self._in_near / (self._in_near + norms.near[self._around]))
        self.file += (file * (self._in_files / (self._in_files + norms.file))).astype(np.float32)
