"""Texts with bytes that are no UTF-8: as people and models see them, and merged without losing those bytes."""

from __future__ import annotations

from qworkspace.memory.merging import merge


def shown(text: str) -> str:
    """`text`, whose broken bytes are lone surrogates, as `Vault.read` shows it: with U+FFFD in their place."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def merge_texts(base: str, ours: str, theirs: str) -> str | None:
    """`ours` and `theirs`, both made from `base`, in one; None when they change the same lines differently.

    `base` and `ours` are as they are shown, `theirs` may hold broken bytes: lines that only lost those get them back.
    """
    broken = {shown(line): line for line in theirs.split("\n") if not _is_whole(line)}
    base, ours = ("\n".join(broken.get(line, line) for line in text.split("\n")) for text in (base, ours))
    result = merge(*(text.encode("utf-8", "surrogateescape") for text in (base, ours, theirs)))
    return None if result is None else result.decode("utf-8", "surrogateescape")


def _is_whole(line: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in line)
