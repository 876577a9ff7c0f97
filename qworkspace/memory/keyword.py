"""BM25 over chunks that can be replaced file by file: rank-bm25's scores, made incremental.

Heavy (numpy): import this module where a search or an index begins, not at start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi


@dataclass(frozen=True, slots=True)
class Signals:
    """Scores by position. The chunks of one file stand together, in their order; `files` counts from 0 upwards."""

    chunk_nos: NDArray[np.int64]
    files: NDArray[np.int64]
    chunk: NDArray[np.float64]
    near: NDArray[np.float64]
    file: NDArray[np.float64]


class KeywordIndex(BM25Okapi):  # type: ignore[misc]  # rank_bm25 has no types
    """Chunks by number, grouped in files. Not thread-safe: one caller at a time (a search changes caches too)."""

    def __init__(self) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        """The number of chunks."""
        raise NotImplementedError

    def replace_file(self, file_no: int, chunks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Put (chunk number, terms) in the file's place, in the file's order; no chunks remove the file. Cheap."""
        raise NotImplementedError

    def remove_file(self, file_no: int) -> None:
        """Take a file out; one that is not there is none."""
        raise NotImplementedError

    def scores(self, terms: Sequence[str] | Mapping[str, float]) -> Signals:
        """BM25 of every chunk, of its neighbourhood and of its file; a mapping gives weights to terms."""
        raise NotImplementedError

    def get_scores(self, query: Sequence[str]) -> Any:
        """As in the parent: the chunks' scores, by position."""
        raise NotImplementedError

    def dump(self) -> bytes:
        """All of it as bytes, compact; `load` takes only what the same version has written."""
        raise NotImplementedError

    @classmethod
    def load(cls, data: bytes) -> KeywordIndex:
        """The index again; ValueError when the bytes are damaged or of another version."""
        raise NotImplementedError
