"""How a memory takes part in turns: guidance, recall before the answer, what was said into the queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from qworkspace.base.text import estimate_text
from qworkspace.config.memory import AutoMemorySearch, MemoryConfig
from qworkspace.memory.contract import BaseMemoryManager, Found, Hit, MemoryTurn, Query

NOTE_TOKENS = 30
"""What a passage takes beside its text: its title and marks."""
QUERY_CHARS = 8_000


class RecallingMiddleware:
    """`MemoryMiddleware` of any backend that has `auto_memory_search`, a queue and a prompt."""

    def __init__(self, memory: BaseMemoryManager) -> None:
        self._memory = memory

    async def on_system_prompt(self, turn: MemoryTurn) -> str:
        return self._memory.get_memory_prompt()

    async def on_model_call(self, turn: MemoryTurn) -> Found:
        return await self._memory.auto_memory_search(turn)

    async def on_reply(self, turn: MemoryTurn) -> None:
        await self._memory.replied(turn)

    async def on_compress_context(self, turn: MemoryTurn) -> None:
        await self._memory.leaving(turn.scope.session_id, "compact")


def recall_query(turn: MemoryTurn, settings: MemoryConfig) -> Query:
    """The whole question; of a text as long as a document, its beginning and its end."""
    text = turn.message.text
    if len(text) > QUERY_CHARS:
        text = f"{text[: QUERY_CHARS // 2]}\n{text[-QUERY_CHARS // 2 :]}"
    return Query(text, max_results=settings.auto_memory_search.max_results, min_score=settings.min_score)


def within_tokens(found: Found, settings: AutoMemorySearch) -> Found:
    """The best passages that fit into `max_tokens` together; the first one is cut rather than left out."""
    return Found(tuple(_fitting(found.hits[: settings.max_results], settings.max_tokens)), found.partial)


def _fitting(hits: Iterable[Hit], room: int) -> Iterator[Hit]:
    for number, hit in enumerate(hits):
        size = estimate_text(hit.text) + NOTE_TOKENS
        if size <= room:
            room -= size
            yield hit
        elif number == 0 and (cut := beginning(hit, room - NOTE_TOKENS)) is not None:
            room = 0
            yield cut


def beginning(hit: Hit, tokens: int) -> Hit | None:
    """The first whole lines of a passage, that many tokens at most; None when that is next to nothing."""
    lines: list[str] = []
    for line in hit.text.split("\n"):
        tokens -= estimate_text(line) + 1
        if tokens < 0:
            break
        lines.append(line)
    text = "\n".join(lines)
    if not text.strip():
        return None
    return replace(hit, end_line=hit.start_line + len(lines) - 1, text=text)
