"""Provenance in notes: `- fact <!-- src: session/turn -->`, and facts that are struck because newer ones hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_MARK = re.compile(r"[ \t]*<!--\s*src:\s*([^\s/<>]+)/([^\s<>]+?)\s*-->")
_LEAD = re.compile(r"\s*(?:(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?|#{1,6}\s+|>\s*)*")
_COMMENT = re.compile(r"<!--|-->")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The turn that a line comes from."""

    session: str
    turn: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A line with a mark: `text` is without bullet, strike and mark; `line_no` counts from 1."""

    line_no: int
    text: str
    session: str
    turn: str
    struck: bool


def mark(session: str, turn: str) -> str:
    """`<!-- src: session/turn -->`, which readers of markdown do not show."""
    return f"<!-- src: {_word(session)}/{_word(turn)} -->"


def fact_line(text: str, session: str, turn: str) -> str:
    """One list item with its mark. Line breaks become spaces; what looks like a comment cannot pass for a mark."""
    plain = " ".join(_CONTROL.sub(" ", _COMMENT.sub(" ", text)).split())
    return f"- {plain} {mark(session, turn)}"


def parse(line: str) -> Provenance | None:
    """Where the line comes from, by its last mark; None when it has none."""
    found = list(_MARK.finditer(line))
    return Provenance(found[-1][1], found[-1][2]) if found else None


def plain(line: str) -> str:
    """What the line says: without bullet, strike and marks."""
    _, body, _ = _parts(line)
    return _inside(body) if _is_struck(body) else body


def strike(line: str) -> str:
    """`- ~~fact~~ <!-- src: … -->`: no longer true, still to be read. Blank and struck lines stay as they are."""
    lead, body, tail = _parts(line)
    if not body or _is_struck(body):
        return line
    if "~~" in body or "\\~" in body or body.startswith("~") or body.endswith("~"):
        body = body.replace("~", "\\~")
    return f"{lead}~~{body}~~{tail}"


def unstrike(line: str) -> str:
    """What `strike` has been given."""
    lead, body, tail = _parts(line)
    return f"{lead}{_inside(body)}{tail}" if _is_struck(body) else line


def is_struck(line: str) -> bool:
    """Whether the line as a whole is struck."""
    return _is_struck(_parts(line)[1])


def facts_in(text: str) -> list[Fact]:
    """The lines with marks, in their order."""
    return list(_facts(text))


def _facts(text: str) -> Iterator[Fact]:
    for number, line in enumerate(text.split("\n"), 1):
        source = parse(line) if "src:" in line else None
        if source is not None:
            yield Fact(number, plain(line), source.session, source.turn, is_struck(line))


def _parts(line: str) -> tuple[str, str, str]:
    """(bullet, what it says, marks and the line's end)"""
    lead = _LEAD.match(line)
    start = lead.end() if lead else 0
    marked = _MARK.search(line, start)
    end = marked.start() if marked else len(line.rstrip())
    end = max(end, start)
    return line[:start], line[start:end], line[end:]


def _is_struck(body: str) -> bool:
    inner = body[2:-2].replace("\\~", "x")
    framed = len(body) > 4 and body.startswith("~~") and body.endswith("~~")
    return framed and "~~" not in inner and not inner.startswith("~") and not inner.endswith("~")


def _inside(body: str) -> str:
    """What is struck there; `strike` has escaped the tildes where they could be taken for the end."""
    return body[2:-2].replace("\\~", "~")


def _word(text: str) -> str:
    return re.sub(r"[\s/<>]+", "_", text) or "-"
