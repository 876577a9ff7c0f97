"""Terms for keyword search: words, identifiers, dates and runs of Chinese, Japanese and Korean."""

from __future__ import annotations


def terms(text: str) -> list[str]:
    """The terms of a text in its order, with repetitions: what is indexed and what is looked for alike."""
    raise NotImplementedError


def has_cjk(text: str) -> bool:
    """Whether any character is Chinese, Japanese or Korean."""
    raise NotImplementedError


def is_identifier_query(text: str) -> bool:
    """Whether the query is one exact identifier (`ERR-1042`, `foo.bar/baz`), for which recency must not count."""
    raise NotImplementedError
