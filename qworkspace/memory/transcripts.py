"""What was said, as a text that a model reads as data. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from qworkspace.base.text import estimate_text
from qworkspace.sessions.models import FilePart, Message, ToolResultPart

LONGEST_REPLY = 2_000
LONGEST_RESULT = 200
"""Characters of an assistant's message and of a tool's result; what the user says is kept up to LONGEST_SAID."""

LONGEST_SAID = 400_000
LONGEST_LINE = 1_000
_TAGS = re.compile(r"<(?=\s*/?\s*(?:conversation|known)\b)", re.IGNORECASE)
_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """A turn with its messages. `user` is empty where only one person speaks."""

    turn_id: str
    at: datetime
    messages: Sequence[Message]
    user: str = ""

    @property
    def asked(self) -> str:
        """What the user said, the first 20,000 characters."""
        return "\n".join(message.text[:20_000] for message in self.messages if message.role == "user")


def as_data(text: str) -> str:
    """`text` without what could end the block of data that it stands in."""
    return _TAGS.sub("‹", text)


def turn_text(number: int, turn: SpokenTurn, zone: tzinfo) -> str:
    """`[number] date`, then each message. Only such headers begin at the left, so that none can be forged."""
    return "\n".join([_header(number, turn, zone), *_said(turn)])


def pieces(number: int, turn: SpokenTurn, zone: tzinfo, room: int) -> list[str]:
    """One turn as texts of about `room` tokens, each with the turn's header."""
    header = _header(number, turn, zone)
    found: list[str] = []
    part: list[str] = []
    size = 0
    for line in _said(turn):
        cost = estimate_text(line) + 1
        if part and size + cost > room:
            found.append("\n".join([header, *part]))
            part, size = [], 0
        part.append(line)
        size += cost
    return [*found, "\n".join([header, *part])]


def clip(text: str, limit: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} […] {text[head - limit :]}"


def _header(number: int, turn: SpokenTurn, zone: tzinfo) -> str:
    return f"[{number}] {turn.at.astimezone(zone):%Y-%m-%d %H:%M (%A)}"


def _said(turn: SpokenTurn) -> Iterator[str]:
    speaker = f"user {_one_line(turn.user)}" if turn.user else "user"
    for message in turn.messages:
        if message.role == "user":
            yield from _lines(speaker, message.text[:LONGEST_SAID])
        elif message.role == "assistant":
            yield from _lines("assistant", clip(message.text, LONGEST_REPLY))
        yield from _others(message)


def _others(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            yield from _lines(f"tool {_one_line(part.name)} (not the user's words)", clip(part.text, LONGEST_RESULT))
        elif isinstance(part, FilePart):
            yield f"  file: {_one_line(part.name or part.path)}"


def _lines(speaker: str, text: str) -> Iterator[str]:
    lead = f"  {speaker}: "
    for line in _BREAKS.sub("\n", as_data(text)).strip().split("\n"):
        for start in range(0, len(line) or 1, LONGEST_LINE):
            if line.strip():
                yield lead + line[start : start + LONGEST_LINE].rstrip()
                lead = "    "


def _one_line(text: str) -> str:
    return as_data(" ".join(text.split()))[:80]
