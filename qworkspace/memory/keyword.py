"""BM25 over chunks that can be replaced file by file: rank-bm25's scores, made incremental.

Heavy (numpy): import this module where a search or an index begins, not at start.

New files gather until the next search, then become a segment of postings; segments of similar size are merged, so
that there are few of them and each chunk is moved a logarithmic number of times.
"""

from __future__ import annotations

import io
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from qworkspace.memory.postings import COUNT_MAX, FileTerms, Segment, merged, sealed
from qworkspace.memory.scoring import Scores
from qworkspace.memory.statistics import Idf, Okapi, Signals, View, wide_idf

FORMAT = 1
GATHERED = 512
"""Chunks of new files that are made a segment without waiting for a search."""


class KeywordIndex(BM25Okapi):  # type: ignore[misc]  # rank_bm25 has no types
    """Chunks by number, grouped in files. Not thread-safe: one caller at a time (a search changes caches too).

    `k1`, `b`, `epsilon`, `idf`, `average_idf`, `avgdl`, `corpus_size`, `doc_len` and the methods are the parent's.
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25) -> None:
        self.k1, self.b, self.epsilon = k1, b, epsilon
        self._numbers = _Numbers()
        self._segments: list[Segment] = []
        self._files: set[int] = set()
        self._fresh: dict[int, FileTerms] = {}
        self._gathered = 0
        self._gone: set[int] = set()
        self._frequencies = np.zeros(0, np.int64)
        self._view: View | None = None

    def __len__(self) -> int:
        """The number of chunks."""
        if not self._gone:
            return sum(segment.alive for segment in self._segments) + self._gathered
        return len(self._settled().lengths)

    def replace_file(self, file_no: int, chunks: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Put (chunk number, terms) in the file's place, in the file's order; no chunks remove the file. Cheap."""
        self.remove_file(file_no)
        if not chunks:
            return
        self._fresh[file_no] = self._file_terms(chunks)
        self._gathered += len(chunks)
        self._view = None
        if self._gathered >= GATHERED:
            self._seal()

    def remove_file(self, file_no: int) -> None:
        """Take a file out; one that is not there is none."""
        fresh = self._fresh.pop(file_no, None)
        if fresh is not None:
            self._gathered -= len(fresh.chunk_nos)
            self._view = None
        elif file_no in self._files:
            self._files.discard(file_no)
            self._gone.add(file_no)
            self._view = None

    def scores(self, terms: Sequence[str] | Mapping[str, float]) -> Signals:
        """BM25 of every chunk, of the chunk with its two neighbours, and of its file; a mapping weighs the terms.

        The chunk's own are rank-bm25's (`get_scores`), but where its idf is not above 0, as in a vault of two notes;
        there, and for the wider ones, it is Lucene's, which always is.
        """
        view = self._settled()
        weighted = terms if isinstance(terms, Mapping) else Counter(terms)
        parts = [Scores(segment) for segment in self._segments]
        for term, weight in weighted.items():
            number = self._numbers.get(term)
            if number is not None and number < len(view.idf) and self._frequencies[number]:
                self._add(parts, number, float(weight), view)
        return view.signals(parts)

    def chunk_scores(self, weighted: Mapping[str, float]) -> NDArray[np.float64]:
        """Only BM25 of every chunk, by position: a fraction of the work of `scores`."""
        view = self._settled()
        parts = [np.zeros(len(segment)) for segment in self._segments]
        for term, weight in weighted.items():
            number = self._numbers.get(term, len(view.idf))
            for segment, part, norms in zip(self._segments, parts, view.norms, strict=True):
                if number < len(view.idf):
                    segment.add(part, number, weight * float(view.idf[number]) * (self.k1 + 1), norms.chunk)
        scores: NDArray[np.float64] = view.living(parts)
        return scores

    def get_scores(self, query: Iterable[str]) -> NDArray[np.float64]:
        """As in the parent: the chunks' scores, by position."""
        return self.chunk_scores(Counter(query))

    def get_batch_scores(self, query: Iterable[str], doc_ids: Sequence[int]) -> list[float]:
        """As in the parent: the scores of some positions."""
        scores: list[float] = self.get_scores(query)[np.array(doc_ids, np.int64)].tolist()
        return scores

    @property
    def chunk_nos(self) -> NDArray[np.int64]:
        """The chunk numbers by position."""
        return self._settled().layout.chunk_nos

    @property
    def corpus_size(self) -> int:
        return len(self)

    @property
    def doc_len(self) -> list[int]:
        lengths: list[int] = self._settled().lengths.tolist()
        return lengths

    @property
    def avgdl(self) -> float:
        return self._settled().average_length

    @property
    def average_idf(self) -> float:
        return self._settled().average_idf

    @property
    def idf(self) -> Mapping[str, float]:
        """By term, as the parent computes it."""
        return Idf(self._numbers, self._settled().idf, self._frequencies)

    def dump(self) -> bytes:
        """All of it as bytes, compact; `load` takes only what the same version has written."""
        self._settled()
        self._segments = [merged(self._segments)] if self._segments else []
        self._view = None  # its norms are those of the segments before
        kept = np.flatnonzero(self._frequencies)
        words = list(self._numbers)  # some of them may be of files that were gone before a search
        renumbered = np.cumsum(self._frequencies > 0, dtype=np.int32) - np.int32(1)
        arrays = dict[str, NDArray[np.generic]](
            format=np.array([FORMAT]),
            parameters=np.array([self.k1, self.b, self.epsilon]),
            words=np.frombuffer("\n".join(words[number] for number in kept).encode(errors="surrogatepass"), np.uint8),
        )
        for segment in self._segments:
            for name in _SAVED:
                arrays[name] = getattr(segment, name)
            arrays["terms"] = renumbered[segment.terms]
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def load(cls, data: bytes) -> KeywordIndex:
        """The index again; ValueError when the bytes are damaged or of another version."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                if int(arrays["format"][0]) != FORMAT:
                    raise ValueError("a keyword index of another version")
                return cls._restored(arrays)
        except (KeyError, IndexError, OSError, EOFError, zipfile.BadZipFile, UnicodeDecodeError) as error:
            raise ValueError(f"a damaged keyword index: {error}") from error

    @classmethod
    def _restored(cls, arrays: Mapping[str, NDArray[np.generic]]) -> KeywordIndex:
        index = cls(*(float(value) for value in arrays["parameters"]))
        words = arrays["words"].tobytes().decode(errors="surrogatepass")
        index._numbers = _Numbers((word, number) for number, word in enumerate(words.split("\n")) if words)
        index._frequencies = np.zeros(len(index._numbers), np.int64)
        if "terms" in arrays:
            index._append(Segment(*(arrays[name] for name in _SAVED)))  # type: ignore[arg-type]
        return index

    def _file_terms(self, chunks: Sequence[tuple[int, Sequence[str]]]) -> FileTerms:
        numbers = self._numbers
        terms, counts, sizes = array("i"), array("i"), []
        for _, words in chunks:
            counted = Counter(words)
            terms.extend(map(numbers.__getitem__, counted))
            counts.extend(counted.values())
            sizes.append(len(counted))
        return FileTerms(
            np.array([number for number, _ in chunks], np.int64),
            np.array([len(words) for _, words in chunks], np.int32),
            np.array(terms, np.int32),
            np.repeat(np.arange(len(chunks), dtype=np.int32), sizes),
            np.minimum(np.array(counts, np.int32), COUNT_MAX).astype(np.uint16),
        )

    def _settled(self) -> View:
        """The state that scores are computed from, after all changes so far."""
        if self._view is None:
            self._bury()
            self._seal()
            self._view = View(self._segments, self._frequencies, Okapi(self.k1, self.b, self.epsilon))
        return self._view

    def _bury(self) -> None:
        gone = list(self._gone)
        for segment in self._segments if gone else ():
            self._frequencies[segment.terms] -= segment.bury(gone)
        self._gone.clear()
        if any(segment.alive * 2 < len(segment) for segment in self._segments):
            self._segments = [merged([segment]) for segment in self._segments if segment.alive]

    def _seal(self) -> None:
        """New files become a segment; one that is at least half as large as the one before it is merged with it."""
        if not self._fresh:
            return
        self._bury()  # a file that was replaced is in the old segments too
        fresh, self._fresh, self._gathered = self._fresh, {}, 0
        self._append(sealed(fresh))
        while len(self._segments) > 1 and 2 * len(self._segments[-1]) >= len(self._segments[-2]):
            self._segments[-2:] = [merged(self._segments[-2:])]

    def _append(self, segment: Segment) -> None:
        missing = len(self._numbers) - len(self._frequencies)
        self._frequencies = np.concatenate([self._frequencies, np.zeros(max(missing, 0), np.int64)])
        self._frequencies[segment.terms] += segment.frequencies
        self._files.update(np.unique(segment.file_nos).tolist())
        self._segments.append(segment)

    def _add(self, parts: Sequence[Scores], number: int, weight: float, view: View) -> None:
        """Add one term's scores."""
        k1 = self.k1
        near_size = file_size = 0
        for part in parts:
            part.gather(number)
            near_size += part.near_size
            file_size += part.file_size
        idf = float(view.idf[number])
        if idf <= 0:
            idf = wide_idf(view.size, int(self._frequencies[number]))
        near = weight * wide_idf(view.size, near_size) * (k1 + 1)
        file = weight * wide_idf(view.files, file_size) * (k1 + 1)
        for part, norms in zip(parts, view.norms, strict=True):
            if len(part.places):
                part.add(weight * idf * (k1 + 1), near, file, norms)


class _Numbers(dict[str, int]):
    """Terms with their numbers, in this order; a new one gets the next."""

    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        return number


_SAVED = ("chunk_nos", "file_nos", "lengths", "terms", "starts", "places", "counts")
