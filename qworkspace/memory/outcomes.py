"""What an extraction comes to: lines to add to a note, lines that no longer hold. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from qworkspace.memory.facts import MOST_FACTS, Draft, dated, overlap, same, says, undated, words
from qworkspace.memory.marks import fact_line, is_struck, plain, strike, unstrike
from qworkspace.memory.transcripts import SpokenTurn

STRIKABLE = ("MEMORY.md", "PROFILE.md")
"""Working files in which an extraction may strike a bullet; daily notes and digests it may in any case."""


@dataclass(frozen=True, slots=True)
class Known:
    """A line of a note; `text` is what it says. Only bullets can be struck."""

    path: str
    text: str
    bullet: bool

    @property
    def strikable(self) -> bool:
        """Whether an extraction may strike it: a bullet, and not of the files that say how the agent behaves."""
        return self.bullet and ("/" in self.path or self.path in STRIKABLE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task writes: lines at the end of `note`, and (path, text) of the lines that no longer hold."""

    note: str
    turn_id: str
    lines: tuple[str, ...] = ()
    struck: tuple[tuple[str, str], ...] = ()

    def dump(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def load(cls, text: str) -> Outcome:
        value = json.loads(text)
        struck = tuple((path, line) for path, line in value["struck"])
        return cls(value["note"], value["turn_id"], tuple(value["lines"]), struck)


class Kept:
    """The facts of one task."""

    def __init__(self, note: str, session_id: str, batch: Sequence[SpokenTurn]) -> None:
        self.facts: list[str] = []
        self._note = note
        self._session_id = session_id
        self._batch = batch
        self._lines: list[str] = []
        self._struck: dict[tuple[str, str], None] = {}

    @property
    def full(self) -> bool:
        return len(self.facts) >= MOST_FACTS

    def told_again(self, fact: str, draft: Draft) -> bool:
        """Whether one of these facts says it. One that another has superseded since holds again."""
        place = next((at for at, other in enumerate(self.facts) if says(other, fact, draft.when)), None)
        if place is None:
            return False
        if self._supersede(draft.supersedes):
            self._lines[place] = unstrike(self._lines[place])
        return True

    def keep(self, known: Iterable[Known], draft: Draft) -> None:
        """Known lines that say the fact. What another fact was about to strike holds again."""
        texts = {tuple(words(line.text)) for line in known}
        if self._supersede(draft.supersedes):
            self._struck = {old: None for old in self._struck if tuple(words(old[1])) not in texts}

    def add(self, fact: str, draft: Draft, old: Iterable[Known]) -> None:
        shown = dated(fact, draft.when)
        self._supersede(draft.supersedes)
        self.facts.append(shown)
        self._lines.append(fact_line(shown, self._session_id, self._turn_of(fact, draft.turn)))
        self._struck |= dict.fromkeys((line.path, line.text) for line in old)

    def _supersede(self, quoted: str) -> bool:
        """Strike what is quoted; whether it is one of these facts."""
        wanted = undated(plain(quoted))
        found = [place for place, fact in enumerate(self.facts) if same(undated(fact), wanted)]
        for place in found:
            self._lines[place] = strike(self._lines[place])
        return bool(found)

    def outcome(self) -> Outcome:
        return Outcome(self._note, self._batch[-1].turn_id, tuple(self._lines), tuple(self._struck))

    def _turn_of(self, fact: str, number: int) -> str:
        """The turn that the model has named, else the one that has most of the fact's words."""
        if 1 <= number <= len(self._batch):
            return self._batch[number - 1].turn_id
        return max(reversed(self._batch), key=lambda turn: overlap(fact, turn.asked)).turn_id


class Striking:
    """Strikes the bullets that say one of the texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = {tuple(words(text)) for text in texts}

    def __call__(self, note: str) -> str:
        return "\n".join(self._struck(line) for line in note.split("\n"))

    def _struck(self, line: str) -> str:
        if not _is_bullet(line) or is_struck(line):
            return line
        return strike(line) if tuple(words(plain(line))) in self._texts else line


def lines_of(path: str, text: str) -> Iterable[Known]:
    """What the lines of a note say, without headings, blank and struck ones."""
    for line in text.splitlines():
        said = plain(line).strip()
        if said and not line.lstrip().startswith(("#", "```", "---")) and not is_struck(line):
            yield Known(path, said, _is_bullet(line))


def _is_bullet(line: str) -> bool:
    return line.lstrip().startswith(("- ", "* ", "+ "))
