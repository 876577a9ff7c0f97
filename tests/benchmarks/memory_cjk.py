"""How well notes in Chinese, Japanese and Korean are found, through the product's own vault and index.

`tests/data/memory_cjk.json` is a personal vault of 122 notes (a few are English) and 350 questions, each with the
notes that answer it. A question is found when one of them is among the first five passages.

    python -m tests.benchmarks.memory_cjk [--misses] [--words] [--rrf]

`--misses` prints the questions that are not found, `--words` searches without vectors, `--rrf` fuses by rank.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventBus
from qworkspace.config.memory import MemoryConfig
from qworkspace.config.values import EmbeddingConfig
from qworkspace.memory.contract import Query
from qworkspace.memory.embeddings import Embedders
from qworkspace.memory.index import MemoryIndex
from qworkspace.memory.vector_stores import VectorStores
from tests.benchmarks.harness import ROOT, Figure, scratch
from tests.support.vaults import PERSON, Opened, opened

DATA = ROOT / "tests" / "data" / "memory_cjk.json"
GOAL = 0.95
FIRST = 5
TODAY = datetime(2026, 5, 20, 12, tzinfo=UTC)
_SCRIPTS = (("ja", "[\u3040-\u30ff]"), ("ko", "[\uac00-\ud7ff]"), ("zh", "[\u4e00-\u9fff]"))


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the notes that answer it, and those that the first passages come from."""

    question: str
    kind: str
    answers: frozenset[str]
    found: tuple[str, ...]

    @property
    def hit(self) -> bool:
        return not self.answers.isdisjoint(self.found[:FIRST])


def run() -> list[Figure]:
    """Hit@5 overall and by kind of question."""
    return figures(asyncio.run(asked()))


def figures(answers: Sequence[Asked]) -> list[Figure]:
    """One for all questions, with the goal, and one for each kind."""
    kinds: dict[str, list[Asked]] = defaultdict(list)
    for one in answers:
        kinds[one.kind].append(one)
    every = [Figure(f"Chinese, Japanese, Korean: hit@{FIRST} of {len(answers)}", _share(answers), "", at_least=GOAL)]
    return every + [Figure(f"  {kind} ({len(ones)})", _share(ones), "") for kind, ones in sorted(kinds.items())]


async def asked(embedder: str = "builtin", **settings: Any) -> list[Asked]:
    """All questions of the set, asked of a new vault that is indexed to the end."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    languages = {note["path"]: language(note["text"]) for note in data["notes"]}
    with scratch() as folder:
        async with opened(folder, clock=SimulatedClock(TODAY), **settings) as vault:
            for note in data["notes"]:
                await vault.vault.write(note["path"], note["text"], by=PERSON)
            stores, embedders = VectorStores(folder / "chroma"), Embedders(vault.threads, vault.clock)
            await embedders.of(EmbeddingConfig(provider=embedder), None).embed_query("") if embedder != "none" else None
            index = index_of(vault, embedders, stores, embedder, MemoryConfig(**settings))
            await index.open()
            index.refresh()
            await index.settled()
            answers = [await _ask(index, one, languages) for one in data["questions"]]
            await index.close()
            await embedders.close()
            stores.close()
    return answers


def language(text: str) -> str:
    """Of a note or a question, by its script."""
    return next((name for name, script in _SCRIPTS if re.search(script, text)), "en")


def index_of(
    vault: Opened, embedders: Embedders, stores: VectorStores, embedder: str, settings: MemoryConfig
) -> MemoryIndex:
    return MemoryIndex(
        vault.root,
        vault.vault.sources,
        state_dir=vault.root / ".state",
        embedder=embedders.of(EmbeddingConfig(provider=embedder), None),
        vectors=lambda id, size: stores.open(settings, agent_id="a", embedder_id=id, dimensions=size),
        settings=settings,
        clock=vault.clock,
        threads=vault.threads,
        problems=vault.problems,
        bus=EventBus(vault.clock),
        agent_id="a",
        turns=asyncio.Semaphore(1),
    )


async def _ask(index: MemoryIndex, one: dict[str, Any], languages: dict[str, str]) -> Asked:
    found = await index.search(Query(one["question"], max_results=FIRST), timeout=30)
    assert not found.partial, found.partial
    kind = one["kind"]
    if kind == "cross":
        kind = f"across languages, {language(one['question'])} to {languages[one['paths'][0]]}"
    return Asked(one["question"], kind, frozenset(one["paths"]), tuple(hit.path for hit in found.hits))


def _share(answers: Sequence[Asked]) -> float:
    return sum(one.hit for one in answers) / len(answers)


def main(arguments: list[str]) -> int:
    """Print the figures; 1 when the goal is missed."""
    settings = {"fusion": "rrf"} if "--rrf" in arguments else {}
    answers = asyncio.run(asked("none" if "--words" in arguments else "builtin", **settings))
    show: Callable[[Any], None] = print
    if "--misses" in arguments:
        for one in answers:
            if not one.hit:
                show(f"{one.kind}: {one.question} {sorted(one.answers)} <- {list(one.found)}")
    measured = figures(answers)
    for figure in measured:
        show(figure.row())
    return 0 if all(figure.met for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
