"""A turn as rows of the database: long texts in pieces, each with its terms. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qworkspace.memory.outbox import TurnRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIECE = 1_500  # characters; what an embedder takes in well
EMBEDDED_PIECES = 16  # of one text; the rest of a pasted book is found by its words
LONGEST_TERM = 200  # characters; an index entry of the server has its limits


@dataclass(frozen=True, slots=True)
class Row:
    """One piece; `facts` are the columns of `qworkspace_turn` but the namespace."""

    facts: dict[str, Any]


def rows_of(record: TurnRecord, terms: Callable[[str], list[str]]) -> list[Row]:
    """The rows of a turn: parts `user`, `user.2`, … and `assistant`, `assistant.2`, …"""
    found = []
    for role, text in (("user", record.message), ("assistant", record.reply)):
        for number, piece in enumerate(pieces(text), 1):
            facts = {
                "turn_id": record.turn_id,
                "part": role if number == 1 else f"{role}.{number}",
                "agent_id": record.agent_id,
                "session_id": record.session_id,
                "user_id": record.user_id,
                "at": record.at,
                "day": record.day,
                "text": piece,
                "terms": sorted({term[:LONGEST_TERM] for term in terms(piece) if term}),
                "embed": number <= EMBEDDED_PIECES,
            }
            found.append(Row(facts))
    return found


def as_query(term: str) -> str:
    """A term as the server's search reads it, whatever signs it has."""
    return "'" + term[:LONGEST_TERM].replace("\\", "\\\\").replace("'", "''") + "'"


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most `PIECE` characters, cut between lines or words where there are any."""
    start = 0
    while len(text) - start > PIECE:
        window = text[start : start + PIECE]
        cut = max(window.rfind("\n"), window.rfind(" ")) if window.rfind("\n") < PIECE // 2 else window.rfind("\n")
        end = start + (cut + 1 if cut >= PIECE // 2 else PIECE)
        yield from _piece(text[start:end])
        start = end
    yield from _piece(text[start:])


def _piece(text: str) -> Iterator[str]:
    if text.strip():
        yield text.strip("\n")


def written(vector: NDArray[np.float32] | None) -> str | None:
    """A vector as pgvector reads it."""
    return None if vector is None else "[" + ",".join(f"{value:.7g}" for value in vector.tolist()) + "]"
