"""Facts as a model gives them: read tolerantly, made harmless, compared with what is known. Pure functions."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qworkspace.base.text import clean_text
from qworkspace.errors import ModelError

MOST_FACTS = 20
LONGEST_FACT = 300
LONGEST_ANSWER = 60_000
MOST_TRIES = 200
"""Places of an answer at which JSON is looked for: an answer of brackets alone must not take seconds."""

DEEPEST = 4
_THOUGHTS = ("</think>", "</thinking>")
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|,(?=\s*[\]}])', re.DOTALL)
_OPENING = re.compile(r"[\[{]")
_NOTHING = re.compile(r"\W*(?:none|nothing|n/a|no (?:new |relevant )*facts?|无|没有|無し|なし)\b.{0,80}", re.I | re.S)
_WHEN = re.compile(r"\d{4}(?:-\d{2}(?:-\d{2})?)?")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]+")
_LEADING = re.compile(r"(?:[#>=|`~\s]|[-*+•]\s|\d{1,3}[.)]\s)+")
_DATED = re.compile(r"\s*\((\d{4}(?:-\d{2}){0,2})\)\s*\Z")
_HARMLESS = (("<!", "‹!"), ("-->", "–›"), ("```", "'''"))

HIDDEN = "••••"
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|glpat|hf|xox[abprs]|npm|dop_v1|shpat)[-_][A-Za-z0-9_-]{12,}"),
    re.compile(r"\bgithub_pat_\w{20,}|\bA(?:KIA|SIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}"),
    re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)?"),
    re.compile(r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"),
    re.compile(r"(?<![\w/+=-])(?=[\w+/=-]*\d)(?=[\w+/=-]*[a-z])(?=[\w+/=-]*[A-Z])[\w+/=-]{32,}"),
    re.compile(r"(?<!commit )(?<!\w)[0-9a-f]{32,}(?!\w)", re.I),
)
_NAMED = re.compile(
    r"(\b(?:pass(?:word|phrase|code)|passwd|pwd|pin(?: code)?|secret|(?:api|access|private|secret)[ _-]?(?:key|token)"
    r"|token)s?\b[^.:=：;\n]{0,40}?(?:\bis\b|\bwas\b|[:=：])|(?:密码|口令|密钥|令牌|パスワード|暗証番号)[^。\n]{0,12}?"
    r"(?:是|为|は|[:=：]))(\s*[\"'“「『]?)([^\s\"'”」』，。;,]+)",
    re.I,
)

_WORD = re.compile(r"[^\W_]+")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
_FILLERS = frozenset({"a", "an", "the", "s"})
_CLAUSE = re.compile(r"[,;:.!?](?=\s)|\s[(–—-]|[，；：、。（]")
_NAMES = ("fact", "text", "content", "事实")
_LISTS = ("facts", "memories", "事实")
_THE_USER = frozenset({"user", "the user", "用户"})
_DENIALS = re.compile(
    r"not|no|never|none|without|nor|neither|longer|former|formerly|stopped|quit|until|cannot|t|ex|only|if|might|may"
    r"|[不没沒無无未别非否前曾只但]"
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact as the model gave it, and whom or what it is about.

    `turn` is the number it named, 0 for none; `supersedes` quotes a known line.
    """

    fact: str
    about: str = ""
    when: str = ""
    turn: int = 0
    supersedes: str = ""


def parse_facts(answer: str) -> list[Draft]:
    """The facts of an answer, with or without fences, prose, commas too many; `ModelError` when it holds no JSON."""
    text = clean_text(answer)
    for end in _THOUGHTS:
        text = text.rpartition(end)[2]
    text = text[:LONGEST_ANSWER]
    values = list(_values(_without_commas(text)))
    if not values and not _NOTHING.fullmatch(text.strip()):
        raise ModelError(f"the model gave no JSON but {text.strip()[:80]!r}", code="unreadable_answer")
    return [draft for value in values for draft in _drafts(value, DEEPEST)]


def _without_commas(text: str) -> str:
    return _STRING_OR_COMMA.sub(lambda found: found[0] if found[0] != "," else "", text)


def _values(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(strict=False)
    place = 0
    for _ in range(MOST_TRIES):
        opening = _OPENING.search(text, place)
        if opening is None:
            return
        try:
            value, place = decoder.raw_decode(text, opening.start())
        except RecursionError:  # nothing but brackets
            return
        except ValueError:
            place = opening.end()
        else:
            yield value


def _drafts(value: Any, depth: int) -> Iterator[Draft]:
    if depth == 0:
        return
    if isinstance(value, list):
        for item in value:
            yield from _drafts(item, depth - 1)
    elif isinstance(value, dict) and (draft := _draft(value)) is not None:
        yield draft
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, list | dict):
                yield from _drafts(item if isinstance(item, dict) else [_named(e, name) for e in item], depth - 1)


def _named(entry: Any, name: str) -> Any:
    """A plain text in the list of facts as a fact."""
    return {"fact": entry} if isinstance(entry, str) and name in _LISTS else entry


def _draft(value: dict[str, Any]) -> Draft | None:
    fact = next((text for name in _NAMES if (text := _text(value.get(name)))), "")
    if not fact:
        return None
    when = _WHEN.fullmatch(_text(value.get("when")))
    return Draft(
        fact=fact,
        about=_text(value.get("about")),
        when=when[0] if when else "",
        turn=_number(value.get("turn")),
        supersedes=_text(value.get("supersedes")),
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _number(value: Any) -> int:
    digits = re.search(r"\d{1,6}", value) if isinstance(value, str) else None
    if digits:
        return int(digits[0])
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def harmless(text: str) -> str:
    """`text` as one line that is no heading, comment, mark or strike, without secrets, `LONGEST_FACT` at most.

    Empty when it has no word.
    """
    line = _INVISIBLE.sub(" ", clean_text(text)[: LONGEST_FACT * 10])
    for risky, shown in _HARMLESS:
        line = line.replace(risky, shown)
    line = re.sub(r"~{2,}", "~", line)
    line = mask(" ".join(line.split()))
    lead = _LEADING.match(line)
    line = line[lead.end() :] if lead else line
    if not _WORD.search(line):
        return ""
    if len(line) <= LONGEST_FACT:
        return line
    return line[: LONGEST_FACT - 1].rsplit(" ", 1)[0][: LONGEST_FACT - 1] + "…"


def whole(draft: Draft) -> str:
    """The fact as a harmless line that names whom it is about."""
    fact, about = harmless(draft.fact), harmless(draft.about)
    if not fact or not about or about.casefold() in _THE_USER or overlap(about, fact) > 0:
        return fact
    return harmless(f"{about}: {fact}")


def mask(text: str) -> str:
    """`text` with keys, tokens and passwords hidden."""
    for pattern in _SECRETS:
        text = pattern.sub(HIDDEN, text)
    return _NAMED.sub(lambda found: f"{found[1]}{found[2]}{HIDDEN}", text)


def dated(fact: str, when: str) -> str:
    """The fact with its date behind it, unless it says it itself."""
    return f"{fact} ({when})" if when and when not in fact else fact


def undated(text: str) -> str:
    """`text` without the date that `dated` has put behind it."""
    return _DATED.sub("", text)


def words(text: str) -> list[str]:
    """The words that count in a comparison: case and width folded, articles out, each CJK character by itself."""
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        found += _WIDE.sub(lambda character: f" {character[0]} ", word).split()
    return [word for word in found if word not in _FILLERS]


def same(one: str, other: str) -> bool:
    """Whether two texts say the same in the same words: case, punctuation and articles aside."""
    return words(one) == words(other) and bool(words(one))


def says(known: str, fact: str, when: str = "") -> bool:
    """Whether a known line says the fact: in the same words, or the words of its beginning up to a comma or stop.

    Nothing less will do, because what is dropped here is lost: in a sentence of twelve words one other name, number
    or verb is another fact, and "Ann's mother lives in Paris" has all the words of "Ann lives in Paris".
    """
    if when and when not in known:
        return False
    ours, known = words(undated(fact)), undated(known)
    theirs = words(known)
    if not ours or _denials(ours) != _denials(theirs):
        return False
    return ours == theirs or any(ours == words(known[: clause.start()]) for clause in _CLAUSE.finditer(known))


def _denials(text: Sequence[str]) -> list[str]:
    return sorted(word for word in text if _DENIALS.fullmatch(word))


def overlap(fact: str, text: str) -> float:
    """The share of the fact's words that the text has."""
    ours = set(words(fact))
    return len(ours & set(words(text))) / len(ours) if ours else 0.0
