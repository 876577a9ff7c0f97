"""The title of a session: the first words of its first message, no model asked."""

from __future__ import annotations

from qworkspace.sessions.models import FilePart, Message

LONGEST = 60


def title_of(message: Message) -> str:
    """The first words, 60 characters at most; the name of a file when there are no words."""
    for line in message.text.splitlines():
        words = " ".join(line.split()).lstrip("#>*- ")
        if words:
            return _shortened(words)
    files = [part.name or part.path.rpartition("/")[2] for part in message.parts if isinstance(part, FilePart)]
    return _shortened(files[0]) if files else ""


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    cut = text[: LONGEST - 1]
    at_word = cut.rpartition(" ")[0]
    return (at_word if len(at_word) > LONGEST // 2 else cut).rstrip(" ,.;:") + "…"
