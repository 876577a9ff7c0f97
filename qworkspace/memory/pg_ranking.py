"""How rows of the database are scored, and how they go together with passages of the notes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qworkspace.memory.contract import Found, Hit, Query

if TYPE_CHECKING:
    from qworkspace.memory.pg_store import Kept

PREFIX = "turns/"
"""What the path of a turn begins with; no note lies there."""
STRONG_VECTORS = 0.7
WEAK_VECTORS = 0.35
VAULT_WEIGHT = 1.0
DATABASE_WEIGHT = 0.8
"""Notes are what a person has looked over; what was merely said comes after a note that fits as well."""
LEAST = 0.05
LEAST_OF_BEST = 0.4
"""Turns that score less, or less than that share of the best one, have nothing to do with the question."""


def vector_share(configured: float | None, *, strong: bool) -> float:
    """The weight of the vectors by `memory.vector_weight`; the words have the rest."""
    if configured is not None:
        return configured
    return STRONG_VECTORS if strong else WEAK_VECTORS


def hits_of(rows: Sequence[Kept], vectors: float) -> list[Hit]:
    """One hit per turn, its best piece, best first: `vectors` x similarity + the rest x share of the words."""
    by_words = _ranks(rows, {at: row.words for at, row in enumerate(rows) if row.words > 0})
    by_vector = _ranks(rows, {at: row.similarity for at, row in enumerate(rows) if row.similarity is not None})
    share = vectors if by_vector else 0.0
    found: dict[str, Hit] = {}
    for at, row in enumerate(rows):
        parts = {"words": (1 - share) * row.words}
        if at in by_vector:
            parts["vectors"] = share * max(0.0, row.similarity or 0.0)
        hit = _hit(row, min(1.0, sum(parts.values())), parts)
        best = found.get(row.turn_id)
        if hit.score >= LEAST and (best is None or hit.score > best.score):
            found[row.turn_id] = replace(hit, vector_rank=by_vector.get(at), bm25_rank=by_words.get(at))
    least = LEAST_OF_BEST * max((hit.score for hit in found.values()), default=0.0)
    kept = [hit for hit in found.values() if hit.score >= least]
    return sorted(kept, key=lambda hit: (-hit.score, hit.path))


def merged(local: Found, database: Iterable[Hit], query: Query, *, partial: str = "") -> Found:
    """Both lists as one, weighted; what a note says in the same words is shown once, as the note."""
    known = {_normal(hit.text) for hit in local.hits}
    others = [hit for hit in database if _normal(hit.text) not in known]
    hits = [*_weighted(local.hits, VAULT_WEIGHT), *_weighted(_once(others), DATABASE_WEIGHT)]
    kept = sorted((hit for hit in hits if hit.score >= query.min_score), key=lambda hit: -hit.score)
    reasons = "; ".join(reason for reason in (local.partial, partial) if reason)
    return Found(tuple(kept[: query.max_results]), reasons)


def _hit(row: Kept, score: float, parts: dict[str, float]) -> Hit:
    role = row.part.partition(".")[0]
    lines = row.text.count("\n") + 1
    path = f"{PREFIX}{row.session_id}/{row.turn_id}"
    return Hit(path, 1, lines, row.text, score, parts=parts, heading=(role,), date=row.day, origin="database")


def _ranks(rows: Sequence[Kept], values: dict[int, float]) -> dict[int, int]:
    """Positions of `rows` by value, counted from 1; what is no number is left out."""
    sound = [at for at, value in values.items() if value == value]
    return {at: rank for rank, at in enumerate(sorted(sound, key=lambda at: -values[at]), 1)}


def _weighted(hits: Iterable[Hit], weight: float) -> list[Hit]:
    if weight == 1.0:
        return list(hits)
    return [
        replace(hit, score=hit.score * weight, parts={key: part * weight for key, part in hit.parts.items()})
        for hit in hits
    ]


def _once(hits: Sequence[Hit]) -> list[Hit]:
    """What was said several times in the same words, the best of them."""
    return list({_normal(hit.text): hit for hit in reversed(hits)}.values())


def _normal(text: str) -> str:
    return " ".join(text.casefold().split())
