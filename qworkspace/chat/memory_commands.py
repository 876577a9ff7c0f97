"""The slash commands of memory: /memory looks something up or says how memory is, /dream consolidates now."""

from __future__ import annotations

from typing import Any

from qworkspace.memory.contract import BaseMemoryManager, Found, Hit, Query
from qworkspace.memory.prompts import words_of
from qworkspace.plugins.extensions import SlashCommand, TurnContext

SHOWN = 5
SHOWN_CHARS = 400


def memory_commands(memory: BaseMemoryManager) -> list[SlashCommand]:
    """Both commands, over that memory."""

    async def look(context: TurnContext, rest: str) -> str:
        texts = words_of(context.config.language).commands
        if not rest:
            return status_text(memory, texts)
        return found_text(await memory.search(Query(rest, max_results=SHOWN)), texts)

    async def dream(context: TurnContext, rest: str) -> str:
        return dream_text(await memory.dream(), words_of(context.config.language).commands)

    return [
        SlashCommand("memory", "Search the notes, or show the state of memory.", look, usage="[question]"),
        SlashCommand("dream", "Consolidate the daily notes into MEMORY.md and topics now.", dream),
    ]


def status_text(memory: BaseMemoryManager, texts: dict[str, str]) -> str:
    """How memory is, for people."""
    status = memory.status()
    facts: dict[str, Any] = {
        "backend": status.backend,
        "state": status.state,
        "files": status.files,
        "chunks": status.chunks,
        "pending": status.pending,
        "embedder": status.embedder,
    }
    lines = [f"- {texts[name]}: {value}" for name, value in facts.items()]
    return "\n".join([*lines, *(f"- {texts['problem']}: {problem}" for problem in status.problems)])


def found_text(found: Found, texts: dict[str, str]) -> str:
    """Passages with where a person finds them again."""
    partial = [f"{texts['partial']}: {found.partial}"] if found.partial else []
    if not found.hits:
        return "\n\n".join([texts["nothing"], *partial])
    return "\n\n".join([*(_shown(hit) for hit in found.hits), *partial])


def _shown(hit: Hit) -> str:
    text = hit.text if len(hit.text) <= SHOWN_CHARS else f"{hit.text[:SHOWN_CHARS]} …"
    quoted = "\n".join(f"> {line}" for line in text.split("\n"))
    return f"`{hit.path}:{hit.start_line}-{hit.end_line}`\n\n{quoted}"


def dream_text(outcome: Any, texts: dict[str, str]) -> str:
    """What a dream has come to."""
    if not outcome.get("changed"):
        return f"{texts['unchanged']}: {outcome['reason']}" if outcome.get("reason") else texts["unchanged"]
    reason = [outcome["reason"]] if outcome.get("reason") else []
    return "\n\n".join([texts["dreamt"], f"```diff\n{outcome.get('diff', '').rstrip()}\n```", *reason])
