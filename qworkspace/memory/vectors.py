"""Where vectors are kept and the nearest ones are found: the contract, and the store that is built in.

Heavy: imports numpy; imported when a first vector is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

EXACT_ROWS = 20_000
"""Up to so many rows each one is compared exactly (4 ms at 512 numbers)."""
CANDIDATES = 2_000
"""Beyond that: rows whose signs agree best with the question's, to be compared exactly."""
FEEDBACK = 0.3
"""What search takes for `feedback`: measured, see `moved`."""
NEAREST = 3
_AGAIN = 500  # rows that are compared again after feedback; those behind cannot come to the front
_SCALE = 32_767.0
_FIRST_ROWS = 256
_STEP = 512  # rows that are widened at a time; they stay in the processor's cache


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

    def add(self, items: Sequence[tuple[int, str]], vectors: NDArray[np.floating[Any]]) -> None:
        """Store the rows of `vectors` under (chunk number, hash of its text); a number that is there is replaced."""

    def remove(self, chunk_nos: Collection[int]) -> None:
        """Forget these; unknown numbers are no error."""

    def search(
        self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None = None, *, feedback: float = 0.0
    ) -> Near:
        """The `k` nearest, best first; `allowed` are the chunk numbers to choose from, None is all.

        With `feedback` the question is `moved` by the nearest first.
        """

    def similarities(self, vector: NDArray[np.float32], *, feedback: float = 0.0) -> Near | None:
        """All chunks in no order, when that is cheap (built in, up to `EXACT_ROWS`); otherwise None: use `search`."""

    def clear(self) -> None:
        """Forget everything, also what is kept beyond closing."""

    def close(self) -> None:
        """Free what is held. Idempotent."""

    def __len__(self) -> int:
        """The number of vectors."""


class BuiltinVectors:
    """Vectors in memory, compared exactly; forgotten when closed.

    Numbers are kept as 16-bit fractions: half of float32 and, unlike float16, widened by the processor at full speed.
    Above `EXACT_ROWS` the rows with the most signs in common with the question (Charikar 2002) are compared.
    """

    _count: int
    _nos: NDArray[np.int64]
    _rows: NDArray[np.int16]
    _signs: NDArray[np.uint64]

    def __init__(self, dimensions: int, *, exact_rows: int = EXACT_ROWS, candidates: int = CANDIDATES) -> None:
        one_blas_thread()
        self._dimensions = dimensions
        self._exact_rows = exact_rows
        self._candidates = candidates
        self._lock = threading.Lock()
        self._empty()

    def stored(self) -> Mapping[int, str]:
        return {}

    def add(self, items: Sequence[tuple[int, str]], vectors: NDArray[np.floating[Any]]) -> None:
        nos = np.fromiter((no for no, _ in items), np.int64, len(items))
        rows = np.asarray(vectors, np.float32).reshape(len(items), self._dimensions)
        fractions = np.rint(np.clip(rows, -1.0, 1.0) * _SCALE).astype(np.int16)
        with self._lock:
            self._remove(nos)
            end = self._count + len(nos)
            self._make_room(end)
            self._nos[self._count : end] = nos
            self._rows[self._count : end] = fractions
            self._signs[:, self._count : end] = _signs(rows)
            self._count = end

    def remove(self, chunk_nos: Collection[int]) -> None:
        with self._lock:
            self._remove(np.fromiter(chunk_nos, np.int64, len(chunk_nos)))

    def search(
        self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None = None, *, feedback: float = 0.0
    ) -> Near:
        with self._lock:
            places = None if allowed is None else np.flatnonzero(np.isin(self._nos[: self._count], allowed))
            if (self._count if places is None else len(places)) > self._exact_rows:
                places = self._likely(vector, places, max(self._candidates, k))
            similarities = self._compare(vector, places, feedback)
            best = _largest(similarities, k)
            nos = self._nos[: self._count] if places is None else self._nos[places]
            return Near(nos[best], similarities[best])

    def similarities(self, vector: NDArray[np.float32], *, feedback: float = 0.0) -> Near | None:
        with self._lock:
            if self._count > self._exact_rows:
                return None
            return Near(self._nos[: self._count].copy(), self._compare(vector, None, feedback))

    def clear(self) -> None:
        with self._lock:
            self._empty()

    def close(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._count

    def _empty(self) -> None:
        self._count = 0
        self._nos = np.empty(0, np.int64)
        self._rows = np.empty((0, self._dimensions), np.int16)
        self._signs = np.empty((-(-self._dimensions // 64), 0), np.uint64)

    def _make_room(self, count: int) -> None:
        if count <= len(self._nos):
            return
        room = max(count, _FIRST_ROWS, len(self._nos) * 3 // 2)
        kept = slice(0, self._count)
        nos, rows, signs = self._nos, self._rows, self._signs
        self._nos = np.empty(room, np.int64)
        self._rows = np.empty((room, self._dimensions), np.int16)  # pages that nothing is written to take no memory
        self._signs = np.empty((len(signs), room), np.uint64)
        self._nos[kept], self._rows[kept], self._signs[:, kept] = nos[kept], rows[kept], signs[:, kept]

    def _remove(self, nos: NDArray[np.int64]) -> None:
        """Rows from the end take the places of those that go."""
        gone = np.flatnonzero(np.isin(self._nos[: self._count], nos)) if len(nos) else nos
        end = self._count - len(gone)
        holes = gone[gone < end]
        movers = np.setdiff1d(np.arange(end, self._count), gone, assume_unique=True)
        self._nos[holes] = self._nos[movers]
        self._rows[holes] = self._rows[movers]
        self._signs[:, holes] = self._signs[:, movers]
        self._count = end

    def _likely(self, vector: NDArray[np.float32], places: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
        """The places whose signs differ least from the question's: `count`, and all that tie with the last."""
        wanted = _signs(vector[None, :])[:, 0]
        differ = np.zeros(self._count if places is None else len(places), np.uint16)
        for stored, word in zip(self._signs[:, : self._count], wanted, strict=True):
            differ += np.bitwise_count((stored if places is None else stored[places]) ^ word)
        limit = np.searchsorted(np.cumsum(np.bincount(differ)), count)
        close = np.flatnonzero(differ <= limit)
        return close if places is None else places[close]

    def _compare(
        self, vector: NDArray[np.float32], places: NDArray[np.int64] | None, feedback: float
    ) -> NDArray[np.float32]:
        similarities = self._cosines(vector, places)
        if not feedback:
            return similarities
        best = _largest(similarities, _AGAIN)
        again = best if places is None else places[best]
        nearest = self._rows[again[:NEAREST]].astype(np.float32) / np.float32(_SCALE)
        similarities[best] = self._cosines(moved(vector, nearest, feedback), again)
        return similarities

    def _cosines(self, vector: NDArray[np.float32], places: NDArray[np.int64] | None) -> NDArray[np.float32]:
        count = self._count if places is None else len(places)
        question = np.asarray(vector, np.float32) / np.float32(_SCALE)
        similarities = np.empty(count, np.float32)
        wide = np.empty((_STEP, self._dimensions), np.float32)
        for start in range(0, count, _STEP):
            end = min(start + _STEP, count)
            block = wide[: end - start]
            np.copyto(block, self._rows[start:end] if places is None else self._rows[places[start:end]])
            np.dot(block, question, out=similarities[start:end])
        return similarities


def moved(vector: NDArray[np.float32], nearest: NDArray[np.float32], feedback: float) -> NDArray[np.float32]:
    """The question, moved towards the vectors nearest to it (Rocchio 1971, with the best results taken as relevant).

    With .3 and three of them 1 % more questions of the Chinese and Japanese set find their note, 3 % more of those
    across languages, and LoCoMo's r@5 is .790 rather than .783.
    """
    if not len(nearest):
        return vector
    aim = vector + np.float32(feedback) * nearest[:NEAREST].mean(axis=0)
    return np.asarray(aim / (np.linalg.norm(aim) or 1.0), np.float32)


def one_blas_thread() -> None:
    """Keep numpy's linear algebra to the calling thread.

    Its own threads spin while they wait for each other; beside other work on few processors that makes it several
    times slower, and nothing here is large enough to gain from them.
    """
    threadpool_limits(limits=1, user_api="blas")


def _signs(rows: NDArray[np.float32]) -> NDArray[np.uint64]:
    """A bit for the sign of each number, in words of 64 for each row; the words of a row stand in a column."""
    bits = np.packbits(rows > 0, axis=1)
    padded = np.zeros((len(rows), -(-bits.shape[1] // 8) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _largest(similarities: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Places of the `k` largest, largest first; equal ones in their order."""
    some = np.arange(len(similarities))
    if k < len(some):
        some = np.sort(np.argpartition(-similarities, k)[:k])
    best: NDArray[np.int64] = some[np.argsort(-similarities[some], kind="stable")]
    return best
