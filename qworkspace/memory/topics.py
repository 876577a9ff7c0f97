"""Topic notes in the digest directory: what dream adds to them, with links to where it comes from. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import dirname, relpath

from qworkspace.memory.dream_guard import normal
from qworkspace.memory.marks import is_struck
from qworkspace.memory.slugs import slug

SOURCES = {"en": "## Sources", "zh": "## 来源"}
_HEADING = re.compile(r"^## (?:Sources|来源)\s*$", re.MULTILINE)
_SPECIAL = re.compile(r"[\s()<>\[\]]")


def topic_note(directory: str, title: str) -> str:
    """The name of the note about a topic: `digest/<slug>.md`."""
    return f"{directory}/{slug(title)}.md"


def link(note: str, target: str) -> str:
    """A markdown link from one note to another, relative: `[2026-01-02](../memory/2026-01-02.md)`."""
    path = relpath(target, dirname(note) or ".")
    label = target.rpartition("/")[2].removesuffix(".md").replace("[", "(").replace("]", ")")
    return f"[{label}](<{path}>)" if _SPECIAL.search(path) else f"[{label}]({path})"


def with_topic(text: str, note: str, title: str, added: str, sources: Sequence[str], language: str) -> str:
    """The note with lines and sources that it does not have yet; a new one when `text` is blank.

    What is there stays, a person's lines too; what is struck there may hold again.
    """
    body, listed = _split(text if text.strip() else f"# {' '.join(title.split())}\n")
    known = {normal(line) for line in body.splitlines() if not is_struck(line)}
    lines = [line.rstrip() for line in added.splitlines() if line.strip() and normal(line) not in known]
    lines = [line for line in lines if not line.startswith("# ")]
    links = [f"- {link(note, source)}" for source in sources]
    links = [line for line in links if line not in listed.splitlines()]
    if not lines and not links:
        return text
    heading = "" if _HEADING.match(listed) else SOURCES["zh" if language.startswith("zh") else "en"] + "\n\n"
    block = _joined(body, lines)
    return f"{block}\n\n{heading}{_with_links(listed, links)}".rstrip() + "\n"


def _split(text: str) -> tuple[str, str]:
    """What stands before the list of sources, and that list with all that follows."""
    found = _HEADING.search(text)
    return (text[: found.start()].rstrip(), text[found.start() :]) if found else (text.rstrip(), "")


def _joined(body: str, lines: Sequence[str]) -> str:
    if not lines:
        return body
    last = body.splitlines()[-1] if body else ""
    is_list = last.lstrip().startswith("- ") and lines[0].lstrip().startswith("- ")
    return body + ("\n" if is_list else "\n\n") + "\n".join(lines)


def _with_links(listed: str, links: Sequence[str]) -> str:
    """The new links after the last link of the list; what a person wrote below stays below."""
    lines = listed.rstrip().splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("- [")]
    place = places[-1] + 1 if places else len(lines)
    gap = [""] if lines and not places else []
    return "\n".join([*lines[:place], *gap, *links, *lines[place:]])
