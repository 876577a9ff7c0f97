"""The memory index at 1,000 and 10,000 notes (ten passages each), beside plain rank_bm25 over the same passages.

Each part runs in a process of its own, so that memory is that part's alone. Vectors are synthetic (512 numbers from
the text's hash): what is measured is the index, not the encoder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import getpid
from pathlib import Path
from typing import Any

from qworkspace.memory.contract import Query
from qworkspace.memory.index import MemoryIndex
from tests.benchmarks.harness import ROOT, Figure, cpu_seconds, environ, rss_mib, scratch
from tests.support.indexes import Notes

SIZES = (1_000, 10_000)
WORDS = 40_000
PASSAGE_WORDS = 72  # some 550 characters: one passage each
PASSAGES = 10
QUERIES = 300
DIMENSIONS = 512
REWRITES = 500


def run() -> list[Figure]:
    """Write the notes, then build, ask, change and open again."""
    figures = []
    for size in SIZES:
        with scratch() as folder:
            write_notes(folder, size)
            plain = part("plain", folder)
            figures += _words(size, part("build", folder), part("open", folder), plain)
            figures += _vectors(size, part("vectors", folder), part("open-vectors", folder))
    with scratch() as folder:
        figures += _rewritten(part("rewrite", folder))
    with scratch() as folder:
        figures += _large(part("large", folder))
    return figures


def _words(size: int, built: dict[str, float], opened: dict[str, float], plain: dict[str, float]) -> list[Figure]:
    large = size == max(SIZES)
    name = f"memory, {size:,} notes"
    return [
        Figure(f"{name}: passages", built["chunks"], ""),
        Figure(f"{name}: build by words", built["build"], "s", at_most=60 if large else None, baseline=plain["build"]),
        Figure(f"{name}: CPU time of that", built["cpu"], "s"),
        Figure(f"{name}: first results after", built["first"], "s", at_most=1),
        Figure(f"{name}: lag of the event loop meanwhile, p99", built["lag99"], "ms", at_most=50),
        Figure(f"{name}: lag of the event loop meanwhile, longest", built["lag"], "ms"),
        Figure(f"{name}: query, p50", opened["p50"], "ms", at_most=10, baseline=plain["p50"]),
        Figure(f"{name}: query, p95", opened["p95"], "ms", at_most=30, baseline=plain["p95"]),
        Figure(f"{name}: a changed note is found after, worst of 10", built["change"], "s", at_most=1),
        Figure(f"{name}: open and first answer", opened["open"], "s", at_most=1),
        Figure(f"{name}: memory, opened and asked", opened["rss"], "MiB", at_most=180, baseline=plain["rss"]),
        Figure(f"{name}: memory, just built and asked", built["rss"], "MiB", at_most=180, baseline=plain["rss"]),
        Figure(f"{name}: memory, at most while building", built["peak"], "MiB"),
        Figure(f"{name}: index to notes on disk", built["disk"], "x"),
    ]


def _vectors(size: int, built: dict[str, float], opened: dict[str, float]) -> list[Figure]:
    name = f"memory, {size:,} notes with vectors"
    return [
        Figure(f"{name}: to embed and store them", built["build"], "s"),
        Figure(f"{name}: open and first answer", opened["open"], "s"),
        Figure(f"{name}: open, all vectors in memory", opened["whole"], "s"),
        Figure(f"{name}: query, p50", opened["p50"], "ms", at_most=10),
        Figure(f"{name}: query, p95", opened["p95"], "ms", at_most=30),
        Figure(f"{name}: memory, opened and asked", opened["rss"], "MiB", at_most=400),
    ]


def _rewritten(result: dict[str, float]) -> list[Figure]:
    name = f"memory, {REWRITES} rewrites of a 100 kB note"
    return [
        Figure(f"{name}: index size to that after the first", result["growth"], "x", at_most=1.5),
        Figure(f"{name}: each found after, p95", result["p95"], "ms", at_most=1000),
    ]


def _large(result: dict[str, float]) -> list[Figure]:
    return [
        Figure("memory, 5 MB of Chinese without spaces: found after", result["cjk"], "s"),
        Figure("memory, 100,000 headings: found after", result["headings"], "s"),
        Figure("memory, such notes: lag of the event loop, p99", result["lag99"], "ms", at_most=50),
        Figure("memory, such notes: slowest search meanwhile", result["search"], "s", at_most=2.1),
    ]


def part(what: str, folder: Path) -> dict[str, float]:
    """The figures of one part, measured in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.memory_scale", what, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environ(), stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@dataclass
class Language:
    """Made-up words with the frequencies of a real language (Zipf)."""

    chance: random.Random

    def __post_init__(self) -> None:
        syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "ing")]
        same = random.Random(0)
        self.words = ["".join(same.choices(syllables, k=same.randint(1, 4))) for _ in range(WORDS)]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(WORDS)))

    def text(self, count: int) -> str:
        return " ".join(self.chance.choices(self.words, cum_weights=self._weights, k=count))

    def question(self) -> str:
        """Five words, none of the most frequent."""
        return " ".join(self.words[int(self.chance.triangular(50, WORDS, 200))] for _ in range(5))


def write_notes(folder: Path, count: int) -> None:
    """Daily notes, ten passages each."""
    language = Language(random.Random(count))
    (folder / "memory").mkdir(parents=True)
    for number in range(count):
        year, rest = 2000 + number // 336, number % 336
        name = f"{year}-{rest // 28 + 1:02}-{rest % 28 + 1:02}"
        passages = (f"## Part {part}\n\n{_lines(language.text(PASSAGE_WORDS))}\n" for part in range(PASSAGES))
        (folder / "memory" / f"{name}.md").write_text(f"# {name}\n\n" + "\n".join(passages), encoding="utf-8")


def _lines(text: str) -> str:
    words = text.split()
    return "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12))


def questions() -> list[str]:
    language = Language(random.Random(7))
    return [language.question() for _ in range(QUERIES)]


def plain(folder: Path) -> dict[str, float]:
    """rank_bm25 as its page shows it: lower-cased words, all in memory, the ten best."""
    before = rss_mib(getpid())
    import numpy as np  # heavy
    from rank_bm25 import BM25Okapi

    began = time.perf_counter()
    texts = [path.read_text(encoding="utf-8") for path in sorted((folder / "memory").glob("*.md"))]
    passages = [passage for text in texts for passage in text.split("\n## ")[1:]]
    index = BM25Okapi([passage.lower().split() for passage in passages])
    built = time.perf_counter() - began
    times = []
    for question in questions()[: QUERIES if len(texts) <= min(SIZES) else 40]:
        asked = time.perf_counter()
        np.argsort(index.get_scores(question.lower().split()))[-10:]
        times.append(time.perf_counter() - asked)
    return {"build": built, **_spread(times), "rss": rss_mib(getpid()) - before}


async def build(folder: Path) -> dict[str, float]:
    """By words, from nothing; then changes."""
    notes, before = Notes(folder), rss_mib(getpid())
    index = notes.index()
    lags: list[float] = []
    watching = asyncio.create_task(_lag(lags))
    began, used = time.perf_counter(), cpu_seconds(getpid())
    await index.open()
    index.refresh()
    first = await _first(index, began)
    await index.settled()
    built, used = time.perf_counter() - began, cpu_seconds(getpid()) - used
    watching.cancel()
    await _ask(index)
    change = max([await _changed(notes, index, number) for number in range(10)])
    result = {"chunks": float(index.status().chunks), "build": built, "cpu": used, "first": first}
    result |= {"lag": max(lags) * 1000, "lag99": sorted(lags)[int(len(lags) * 0.99)] * 1000}
    result |= {"change": change, "rss": rss_mib(getpid()) - before, "peak": _peak_mib() - before}
    await notes.close()
    wrote = sum(path.stat().st_size for path in (folder / "memory").glob("*.md"))
    return result | {"disk": notes.file.stat().st_size / wrote}


def _peak_mib() -> float:
    """The most resident memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _first(index: MemoryIndex, began: float) -> float:
    question = questions()[0]
    while not (await index.search(Query(question))).hits:
        await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def _lag(lags: list[float]) -> None:
    """How much later than asked for a sleeper wakes."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        lags.append(time.perf_counter() - began - 0.005)


async def _changed(notes: Notes, index: MemoryIndex, number: int) -> float:
    """Seconds from a note's change to its being found."""
    path = sorted((notes.folder / "memory").glob("*.md"))[number * 7]
    word = f"quokka{number}x"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n- the {word} was here\n")
    began = time.perf_counter()
    index.refresh([path.relative_to(notes.folder).as_posix()])
    while word not in "".join(hit.text for hit in (await index.search(Query(word))).hits):
        await asyncio.sleep(0.001)
    return time.perf_counter() - began


async def _ask(index: MemoryIndex) -> dict[str, float]:
    times = []
    for question in questions():
        asked = time.perf_counter()
        found = await index.search(Query(question, max_results=10))
        times.append(time.perf_counter() - asked)
        assert found.hits, found.partial
    return _spread(times)


async def opened(folder: Path, embedder: Any = None) -> dict[str, float]:
    """An index that is there: the first answer, then many."""
    notes, before = Notes(folder), rss_mib(getpid())
    import numpy  # noqa: F401  # heavy: read from the disk before the time counts, like the rest of the program
    import rank_bm25  # noqa: F401

    from qworkspace.memory import index_arrays, vectors  # noqa: F401

    began = time.perf_counter()
    index = notes.index(embedder)
    await index.open()
    while not (await index.search(Query(questions()[0], max_results=10))).hits:
        pass
    took = time.perf_counter() - began
    while (await index.search(Query(questions()[0], max_results=10))).partial:
        await asyncio.sleep(0.01)
    whole = time.perf_counter() - began
    times = await _ask(index)
    result = {"open": took, "whole": whole, **times, "rss": rss_mib(getpid()) - before}
    await notes.close()
    return result


class Synthetic:
    """Vectors from the hash of a text."""

    id = "synthetic/512"
    strong = False
    ready = True
    dimensions = DIMENSIONS

    async def embed(self, texts: Sequence[str]) -> Any:
        return await asyncio.to_thread(_hashed, texts)

    async def embed_query(self, text: str) -> Any:
        return (await self.embed([text]))[0]


def _hashed(texts: Sequence[str]) -> Any:
    import numpy as np  # heavy

    seeds = (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) for text in texts)
    rows = np.stack([np.random.default_rng(seed).standard_normal(DIMENSIONS, np.float32) for seed in seeds])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def vectors(folder: Path) -> dict[str, float]:
    """Give an index that has words its vectors."""
    notes = Notes(folder)
    index = notes.index(Synthetic())
    began = time.perf_counter()
    await index.open()
    index.refresh()
    await index.settled()
    took = time.perf_counter() - began
    assert index.status().embedded == index.status().chunks
    await notes.close()
    return {"build": took}


async def rewrite(folder: Path) -> dict[str, float]:
    """One large note again and again, each time with other words."""
    notes, language = Notes(folder), Language(random.Random(1))
    index, sizes, times = notes.index(), [], []
    await index.open()
    for number in range(REWRITES):
        notes.put("big.md", f"# Round {number}\n\n" + _lines(language.text(16_000)))
        began = time.perf_counter()
        index.refresh(["big.md"])
        await index.settled()
        times.append(time.perf_counter() - began)
        sizes.append(sum(path.stat().st_size for path in notes.file.parent.iterdir()))
    await notes.close()
    return {"growth": sizes[-1] / sizes[0], "p95": _spread(times)["p95"]}


async def large(folder: Path) -> dict[str, float]:
    """Notes that nobody writes by hand, and whether others can still search meanwhile."""
    notes, chance = Notes(folder), random.Random(3)
    notes.put("small.md", "a walrus\n")
    index = await notes.ready()
    await index.search(Query("walrus"))
    lags: list[float] = []
    watching = asyncio.create_task(_lag(lags))
    text = "".join(chr(chance.randint(0x4E00, 0x6FFF)) for _ in range(5_000_000 // 3))
    headings = "\n".join(f"# Heading {number}" for number in range(100_000))
    cjk, slow = await _found(notes, index, "cjk.md", text, text[1000:1006])
    many, slower = await _found(notes, index, "headings.md", headings, "heading 77777")
    watching.cancel()
    await notes.close()
    return {
        "cjk": cjk,
        "headings": many,
        "lag99": sorted(lags)[int(len(lags) * 0.99)] * 1000,
        "search": max(slow, slower),
    }


async def _found(notes: Notes, index: MemoryIndex, name: str, text: str, words: str) -> tuple[float, float]:
    """(seconds until those words are found in the note, the longest search until then)."""
    await notes.threads.run(notes.put, name, text)
    began, longest = time.perf_counter(), 0.0
    index.refresh([name])
    while True:
        asked = time.perf_counter()
        found = await index.search(Query(words))
        longest = max(longest, time.perf_counter() - asked)
        if any(hit.path == name for hit in found.hits):
            return time.perf_counter() - began, longest
        await asyncio.sleep(0.01)


def _spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"p50": ordered[len(ordered) // 2] * 1000, "p95": ordered[int(len(ordered) * 0.95)] * 1000}


PARTS: dict[str, Callable[[Path], Any]] = {
    "plain": plain,
    "build": lambda folder: asyncio.run(build(folder)),
    "open": lambda folder: asyncio.run(opened(folder)),
    "vectors": lambda folder: asyncio.run(vectors(folder)),
    "open-vectors": lambda folder: asyncio.run(opened(folder, Synthetic())),
    "large": lambda folder: asyncio.run(large(folder)),
    "rewrite": lambda folder: asyncio.run(rewrite(folder)),
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](Path(sys.argv[2]))))
