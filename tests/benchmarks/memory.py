"""Memory as a whole: LoCoMo through the product's own vault and index with its baselines, other languages, scale.

    QWORKSPACE_LOCOMO=locomo-dev.json python -m tests.benchmarks memory

LoCoMo is the work of its authors (`adymaharana/locomo`, CC BY-NC 4.0) and not part of this repository.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from qworkspace.base.clock import SystemClock
from qworkspace.config.memory import MemoryConfig
from qworkspace.memory.chunks import Chunk
from qworkspace.memory.contract import Hit, Query
from qworkspace.memory.embeddings import Embedders
from qworkspace.memory.vector_stores import VectorStores
from tests.benchmarks import memory_cjk, memory_quality, memory_scale
from tests.benchmarks.harness import Figure, scratch
from tests.support.vaults import PERSON, opened

DEPTH = 40  # passages: more than fit into 4,000 characters


def run() -> list[Figure]:
    """Everything that memory must show; LoCoMo only where its data is."""
    data = memory_quality.conversations()
    figures = _locomo(data) + memory_quality.run() if data else []
    return figures + memory_cjk.run() + memory_scale.run()


def _locomo(conversations: list[dict[str, Any]]) -> list[Figure]:
    rows = [row for one in conversations for row in asyncio.run(_asked(one))]
    return [
        Figure(f"LoCoMo through vault and index, {name}", sum(r[name] for r in rows) / len(rows), "", at_least=goal)
        for name, goal in memory_quality.GOALS.items()
    ]


async def _asked(conversation: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """The metrics of each question of one conversation, whose sessions are the daily notes of a new vault."""
    diary = memory_quality.diary(conversation)
    with scratch() as folder:
        async with opened(folder, clock=SystemClock()) as vault:
            for path, (lines, _) in diary.items():
                await vault.vault.write(path, "\n".join(lines), by=PERSON)
            stores, embedders = VectorStores(folder / "chroma"), Embedders(vault.threads, vault.clock)
            index = memory_cjk.index_of(vault, embedders, stores, "builtin", MemoryConfig())
            await index.open()
            index.refresh()
            await index.settled()
            rows = []
            for question in memory_quality.questions(conversation):
                found = await index.search(Query(question.text, max_results=DEPTH), timeout=30)
                assert not found.partial, found.partial
                pieces = [_piece(hit, diary[hit.path][1]) for hit in found.hits]
                rows.append(memory_quality.metrics(pieces, question.evidence))
            await index.close()
            await embedders.close()
            stores.close()
    return rows


def _piece(hit: Hit, turns: Mapping[int, str]) -> memory_quality.Piece:
    covered = range(hit.start_line, hit.end_line + 1)
    chunk = Chunk(hit.start_line, hit.end_line, hit.heading, hit.date, hit.text)
    return memory_quality.Piece(hit.path, chunk, frozenset(turns[line] for line in covered if line in turns))
