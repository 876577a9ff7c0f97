"""Terms for keyword search: words, identifiers, dates and runs of Chinese, Japanese and Korean."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

import Stemmer  # C, loads in about 2 ms

from qworkspace.memory.stopwords import STOPWORDS

CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u3131-\u318e\u31a0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
UNSPACED = CJK + "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Scripts whose words are not parted by spaces: also Thai, Lao, Burmese and Khmer."""

MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff"
"""Signs inside words that `\\w` leaves out."""

_WORD = rf"(?:[^\W{UNSPACED}]+|[{MARKS}]+)+"
_TOKEN = re.compile(rf"[{UNSPACED}]+|{_WORD}(?:[-./:@#\\]{_WORD})*")
_TOKEN_ASCII = re.compile(r"[A-Za-z0-9_]+(?:[-./:@#\\][A-Za-z0-9_]+)*")
_CJK_CHARACTER = re.compile(f"[{CJK}]")
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_A-Za-z0-9]+")
_CAMEL = re.compile(r"[a-z][A-Z]")
_JOINED = re.compile(r"[0-9]|[./:@#\\_]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_LONGEST = 64
"""Longer words (base64, hashes) are cut: nobody types them, and each would be a term of its own."""


def terms(text: str) -> list[str]:
    """The terms of a text in its order, with repetitions: what is indexed and what is looked for alike."""
    found: list[str] = []
    for line in text.split("\n"):
        if line.isascii():  # by far the faster pattern, and a note in Chinese has such lines too
            for token in _TOKEN_ASCII.findall(line):
                found += _of_token(token)
        else:
            found += _of_any_script(line)
    return found


def _of_any_script(line: str) -> list[str]:
    found: list[str] = []
    for token in _TOKEN.findall(unicodedata.normalize("NFKC", line)):
        if not token.isascii() and _UNSPACED_CHARACTER.match(token):
            found += token
            found += map("".join, pairwise(token))
        else:
            found += _of_token(token)
    return found


def has_cjk(text: str) -> bool:
    """Whether any character is Chinese, Japanese or Korean."""
    return not text.isascii() and _CJK_CHARACTER.search(unicodedata.normalize("NFKC", text)) is not None


def is_identifier_query(text: str) -> bool:
    """Whether the query is one exact identifier (`ERR-1042`, `foo.bar/baz`), for which recency must not count."""
    token = text.strip().strip("`'\"")
    return _TOKEN.fullmatch(token) is not None and not has_cjk(token) and _is_identifier(token)


def fold(word: str) -> str:
    """Lower case without accents."""
    if word.isascii():
        return word.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", word.casefold()))


@lru_cache(maxsize=1 << 15)  # most words of a text are few words: this is what makes 50 MB tractable
def _of_token(token: str) -> tuple[str, ...]:
    whole = fold(token)[:_LONGEST] if _is_identifier(token) else ""
    found = [whole] if whole else []
    for part in _PARTS.findall(token) if token.isascii() else _words(token):
        term = _term(part)
        if term and term not in STOPWORDS and term != whole:
            found.append(_stem(term))
    return tuple(found)


def _words(token: str) -> list[str]:
    return [word for word in re.split(r"[-./:@#\\_]+", token) if word]


def _term(part: str) -> str:
    term = fold(part)[:_LONGEST]
    return (term.lstrip("0") or "0") if term.isdecimal() and len(term) <= 2 else term


def _stem(term: str) -> str:
    if not term.isascii() or not term.isalpha():
        return term
    stemmed: str = Stemmer.Stemmer("english", 0).stemWord(term)  # one object is not safe for many threads
    return stemmed


def _is_identifier(token: str) -> bool:
    """Digits with letters or joined, words joined by anything but a hyphen, or with a hump: worth a term as a whole."""
    if token.isdecimal():
        return False
    return _CAMEL.search(token) is not None or (not token.isalpha() and _JOINED.search(token) is not None)
