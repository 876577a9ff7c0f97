"""The sections of a note: what stands under a heading, up to the next one of its level or above."""

from __future__ import annotations

import re

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*\Z")
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")


def replace_section(note: str, heading: str, text: str) -> str:
    """The note with `text` under that heading; a heading that is not there is added at the end.

    `heading` may be written with or without `#`; the first heading of that name counts, in any case. A `text` that
    begins with the heading itself does not repeat it.
    """
    title, level = _title(heading), _level(heading)
    lines = note.split("\n")
    start, end, found = _place(lines, title)
    body = _body(text, title)
    if start < 0:
        head = f"{'#' * (level or 2)} {heading.lstrip('#').strip()}"
        before = note.rstrip("\n") + "\n\n" if note.strip() else ""
        return f"{before}{head}\n\n{body}\n"
    after = lines[end:]
    kept = [*lines[: start + 1], "", *body.split("\n"), ""] if body else [*lines[: start + 1], ""]
    whole = "\n".join([*kept, *after])
    return whole if found and any(after) else whole.rstrip("\n") + "\n"


def _place(lines: list[str], title: str) -> tuple[int, int, bool]:
    """(line of the heading or -1, line after its section, whether it was found)"""
    start, level, fence = -1, 0, ""
    for number, line in enumerate(lines):
        fence = _fenced(line, fence)
        match = None if fence else _HEADING.match(line)
        if match is None:
            continue
        if start < 0 and _title(match[2]) == title:
            start, level = number, len(match[1])
        elif start >= 0 and len(match[1]) <= level:
            return start, number, True
    return start, len(lines), start >= 0


def _fenced(line: str, fence: str) -> str:
    match = _FENCE.match(line)
    if match is None:
        return fence
    if not fence:
        return match[1]
    return "" if match[1].startswith(fence) and not line.strip().strip(fence[0]) else fence


def _title(heading: str) -> str:
    return " ".join(heading.strip().strip("#").split()).casefold()


def _level(heading: str) -> int:
    return min(6, len(heading.strip()) - len(heading.strip().lstrip("#")))


def _body(text: str, title: str) -> str:
    lines = text.strip("\n").rstrip().split("\n")
    match = _HEADING.match(lines[0])
    return "\n".join(lines[1:] if match and _title(match[2]) == title else lines).strip("\n")
