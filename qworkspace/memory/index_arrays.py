"""What a search has in memory: the keyword index and the vectors, filled from the index file piece by piece.

Heavy (numpy): imported at the first search. One caller at a time; everything here blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qworkspace.errors import Unavailable
from qworkspace.memory.contract import Hit, Query
from qworkspace.memory.heap import keep_large_blocks_apart
from qworkspace.memory.index_rows import Passage, allowed, changed_since, passages, passages_of, snapshot
from qworkspace.memory.index_vectors import hashes, stored_vectors, vectors_of
from qworkspace.memory.keyword import KeywordIndex
from qworkspace.memory.search import Vectors, Weights, rank
from qworkspace.memory.tokens import terms
from qworkspace.memory.vectors import FEEDBACK, VectorStore

PIECE = 64
"""Chunks that are read and tokenised at once; a note that is larger takes several turns."""

TURN = 256
"""Chunks of one turn, some 40 ms of work: searches go in between."""

VECTORS_PIECE = 2000
T = TypeVar("T")
CANDIDATES = 2000
"""Nearest vectors that take part when there are too many to compare all."""


@dataclass
class Arrays:
    """The keyword index with the notes that it is behind with, and the vectors once they are loaded."""

    keyword: KeywordIndex
    weights: Weights
    make_store: Callable[[int], VectorStore]
    behind: dict[int, None] = field(default_factory=dict)
    vectors: VectorStore | None = None
    complete: bool = False
    trouble: str = ""
    _loaded_upto: int = 0
    _kept: Mapping[int, str] = field(default_factory=dict)
    _half: list[tuple[int, list[str]]] = field(default_factory=list)
    _half_file: int = 0
    _words: dict[str, str] = field(default_factory=dict)
    _ord: int = 0

    @classmethod
    def load(cls, db: sqlite3.Connection, weights: Weights, make_store: Callable[[int], VectorStore]) -> Arrays:
        """The keyword index as it was kept; it is behind with what has changed since.

        `make_store` makes a store for vectors of that length, once there are some.
        """
        keep_large_blocks_apart()
        data, rev = snapshot(db)
        try:
            keyword = KeywordIndex.load(data) if data else KeywordIndex()
        except ValueError:  # of another version, or damaged: all is tokenised again
            keyword, rev = KeywordIndex(), 0
        changed, gone = changed_since(db, rev)
        for file_no in gone:
            keyword.remove_file(file_no)
        return cls(keyword, weights, make_store, dict.fromkeys(changed))

    def dump(self) -> bytes:
        return self.keyword.dump()

    def changed(self, file_no: int, removed: Sequence[int]) -> None:
        """A note has other chunks than before."""
        self.behind[file_no] = None
        if file_no == self._half_file:
            self._half_file = 0
        if removed:
            self._with_store(lambda store: store.remove(removed))

    def catch_up(self, db: sqlite3.Connection) -> int:
        """Tokenise some of the notes that it is behind with; how many it still is behind with."""
        done = 0
        while self.behind and done < TURN:
            file_no = next(iter(self.behind))
            if file_no != self._half_file:
                self._half_file, self._half, self._ord = file_no, [], 0
            found = passages_of(db, file_no, self._ord, PIECE)
            self._half += [(passage.no, self._terms(passage)) for passage in found]
            self._ord += len(found)
            if len(found) < PIECE:
                self.keyword.replace_file(file_no, self._half)
                self._half_file, self._half, self._words = 0, [], {}
                self.behind.pop(file_no)
            done += max(len(found), 1)
        return len(self.behind)

    def _terms(self, passage: Passage) -> list[str]:
        """Of a large note each word is kept once: it would take many times its size otherwise."""
        words = terms(passage.indexed)
        return [self._words.setdefault(word, word) for word in words] if self._ord else words

    def load_vectors(self, db: sqlite3.Connection, embedder: str) -> bool:
        """Add the next few thousand vectors; whether there are more. `Unavailable` when the store is."""
        if self.vectors is None:
            self._loaded_upto = 0
        items, vectors, upto = stored_vectors(db, embedder, self._loaded_upto, VECTORS_PIECE)
        if vectors is None:
            self.complete, self.trouble, self._kept = True, "", {}
            return False
        store = self._store(db, vectors.shape[1])
        fresh = [row for row, (no, hash) in enumerate(items) if self._kept.get(no) != hash]
        if fresh:
            store.add([items[row] for row in fresh], vectors[fresh])
        self._loaded_upto = upto
        return True

    def _store(self, db: sqlite3.Connection, dimensions: int) -> VectorStore:
        """The store, opened on first need; what it has kept of chunks that are gone or changed goes."""
        if self.vectors is None:
            store = self.make_store(dimensions)
            self._kept = store.stored()
            if self._kept:
                wanted = hashes(db)
                store.remove([no for no, hash in self._kept.items() if wanted.get(no) != hash])
            self.vectors = store
        return self.vectors

    def add_vectors(
        self, db: sqlite3.Connection, items: Sequence[tuple[int, str]], vectors: NDArray[np.floating[Any]]
    ) -> None:
        """Make new vectors searchable, unless the store is to be loaded anew anyway."""
        if self.vectors is None and not self.complete:
            return
        try:
            self._store(db, vectors.shape[1]).add(items, vectors)
        except Unavailable as error:
            self._give_up(error)

    def add_known(self, db: sqlite3.Connection, embedder: str, nos: tuple[int, ...]) -> None:
        """Add the vectors of these chunks from the file."""
        items, vectors, _ = vectors_of(db, embedder, nos)
        if vectors is not None:
            self.add_vectors(db, items, vectors)

    def find(
        self, db: sqlite3.Connection, query: Query, vector: NDArray[np.float32] | None, today: date
    ) -> list[tuple[Hit, Passage]]:
        """The best passages, with what the index knows about them."""
        chosen = allowed(db, query)
        if chosen is not None and not chosen:
            return []
        mask = np.array(chosen, dtype=np.int64) if chosen is not None else None
        known: dict[int, Passage] = {}
        ranked = rank(
            self.keyword,
            query.text,
            dates=_asking(db, known),
            weights=self.weights,
            vectors=self._near(vector, mask),
            allowed=mask,
            limit=query.max_results,
            min_score=query.min_score,
            today=today,
        )
        missing = [one.chunk_no for one in ranked if one.chunk_no not in known]
        known |= passages(db, missing)
        return [
            (
                Hit(
                    (passage := known[one.chunk_no]).path,
                    passage.chunk.start_line,
                    passage.chunk.end_line,
                    passage.chunk.text,
                    one.score,
                    one.vector_rank,
                    one.bm25_rank,
                    one.parts,
                    passage.chunk.heading,
                    passage.chunk.date,
                ),
                passage,
            )
            for one in ranked
            if one.chunk_no in known
        ]

    def _near(self, vector: NDArray[np.float32] | None, mask: NDArray[np.int64] | None) -> Vectors | None:
        if vector is None:
            return None
        near = self._with_store(
            lambda store: (
                store.similarities(vector, feedback=FEEDBACK)
                or store.search(vector, CANDIDATES, mask, feedback=FEEDBACK)
            )
        )
        return Vectors(near.chunk_nos, near.similarities) if near is not None and len(near.chunk_nos) else None

    def _with_store(self, work: Callable[[VectorStore], T]) -> T | None:
        """What the store does, if there is one; one that cannot be reached is given up and later loaded anew."""
        if self.vectors is None:
            return None
        try:
            return work(self.vectors)
        except Unavailable as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Unavailable) -> None:
        self.vectors, self.complete, self.trouble = None, False, error.message

    def close(self) -> None:
        """Free the vectors; what the arrays hold goes with this object."""
        if self.vectors is not None:
            self.vectors.close()
            self.vectors = None


def _asking(db: sqlite3.Connection, known: dict[int, Passage]) -> Callable[[Sequence[int]], list[date | None]]:
    """Reads passages for ranking and remembers them; a chunk that went meanwhile has no date."""

    def ask(nos: Sequence[int]) -> list[date | None]:
        known.update(passages(db, [int(no) for no in nos if int(no) not in known]))
        found = [known.get(int(no)) for no in nos]
        return [passage.chunk.date if passage is not None else None for passage in found]

    return ask
