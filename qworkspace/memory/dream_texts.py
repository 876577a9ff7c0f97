"""What a person reads of dreams, in English and Chinese. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qworkspace.memory.dream_store import Changed
from qworkspace.memory.merging import unified

LONGEST_DIFF = 60_000  # characters
SHOWN = 20  # names in a list
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_LATIN = re.compile(r"[A-Za-z]{2,}")


def language(configured: str, text: str) -> str:
    """`zh` or `en`: as configured, else what the text is written in."""
    if configured in ("en", "zh"):
        return configured
    sample = text[:100_000]
    return "zh" if len(_CHINESE.findall(sample)) > len(_LATIN.findall(sample)) else "en"


def readable_diff(changes: Sequence[Changed]) -> str:
    """A unified diff of all changes, bounded."""
    diffs = [unified(note, before.encode() or None, after.encode(), context=1) for note, before, after in changes]
    text = "".join(diffs).rstrip("\n")
    return text if len(text) <= LONGEST_DIFF else text[:LONGEST_DIFF].rpartition("\n")[0] + "\n…"


def told(group: str, days: Sequence[str], changes: Sequence[Changed], diff: str, language: str) -> tuple[str, str]:
    """(title, body) about a dream that has changed notes."""
    notes = [note for note, before, after in changes if before != after]
    if language == "zh":
        title = f"夜间整理：{_names(notes)} 已更新"
        body = f"整理了 {_names(days)}。\n\n```diff\n{diff}\n```\n\n可以撤销这次改动（编号 {group}）。"
    else:
        title = f"Dream brought {_names(notes)} up to date"
        body = f"Worked in: {_names(days)}.\n\n```diff\n{diff}\n```\n\nIt can be undone (id {group})."
    return title, body


def refused(notes: Sequence[str], reason: str, language: str) -> tuple[str, str]:
    """(title, body) about an answer that may not be used."""
    if language == "zh":
        title = "夜间整理：模型的结果未被采用"
        body = f"{_names(notes)} 的整理结果被拒绝：{reason}。MEMORY.md 没有改动，下次整理时会再试。"
    else:
        title = "Dream refused what the model answered"
        body = f"About {_names(notes)}: {reason}. MEMORY.md is as it was; the next dream tries again."
    return title, body


def _names(names: Sequence[str]) -> str:
    more = f" … (+{len(names) - SHOWN})" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
