"""What dream accepts from a model: a `MEMORY.md` that keeps what was known and invents no sources. Pure functions."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from posixpath import normpath

from qworkspace.memory import marks
from qworkspace.memory.stopwords import STOPWORDS

SMALL = 500
"""Characters; a shorter MEMORY.md may shrink as it likes, as long as its facts stay."""
KEPT_SIZE = 0.6
LOST_FACTS = 0.2
STRUCK_FACTS = 0.5  # of at least MANY_FACTS: what strikes more at once is a misunderstanding
MANY_FACTS = 10
SAME_LINE = 0.5  # of a line's terms in one line of the other text: it says the same in other words
SAME_TEXT = 0.85  # of a line's terms anywhere: it was split or joined with others
RELATED = 0.25  # of a line's terms in a note's line: that line may supersede it
POLITE_CHARS = 200

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_RUNS = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_MARK = re.compile(r"<!--\s*src:\s*(.*?)\s*-->")
_STRUCK = re.compile(r"~~.+?~~")
_LEAD = re.compile(r"^\s*(?:>\s*)*(?:[-*+]|\d+[.)])?\s*(?:\[[ xX]\]\s*)?")
_LINK = re.compile(r"\]\(\s*<?([^)<>\s]+)>?")
_FENCED = re.compile(r"\A\s*```[A-Za-z]*[ \t]*\n(.*)\n```\s*\Z", re.DOTALL)
_POLITE = re.compile(
    r"(?:(?:sure|certainly|of course|okay|ok|absolutely|great)[,.!:]"
    r"|(?:here|below)(?:'s|’s| is| are) (?:the|your|an?)\b"
    r"|i(?:'ve|’ve| have) (?:updated|consolidated|merged|rewritten)\b|the following is\b|let me know\b|i hope this\b"
    r"|feel free to\b|if you(?:'d|’d| would) like\b"
    r"|(?:好的|当然|没问题)[,，。!！:：]|(?:以下|下面|这)是|希望(?:这|对)|如果?您?需要)",
    re.IGNORECASE,
)
_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget)\b[^.\n]{0,30}\b(?:previous|prior|above|earlier|all)\b[^.\n]{0,20}"
    r"\b(?:instructions?|prompts?|rules?|messages?)\b"
    r"|^\W*(?:system|assistant|developer)(?: prompt| message)?\W{0,3}:|<\|im_(?:start|end)\|>|\[/?INST\]|</?system>"
    r"|\byou are (?:now )?(?:an? )?(?:helpful |large )?(?:ai|language model|assistant|chatgpt)\b"
    r"|\bas an? (?:ai|large language|language) (?:language )?(?:model|assistant)\b"
    r"|\bi(?:'m| am) sorry,? (?:but )?i (?:can(?:no|')t|am unable)|\bi cannot (?:help|assist|fulfil|comply)"
    r"|忽略(?:以上|之前|前面|先前|上述|所有)[^。\n]{0,8}(?:指令|指示|提示|要求|规则)"
    r"|作为(?:一个|一名)?(?:AI|人工智能|语言模型|大模型)|(?:对不起|抱歉)[,，]?\s*我(?:不能|无法)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Given:
    """What the model was shown, which notes there are or will be, and what it says is superseded."""

    notes: Sequence[str]
    names: Collection[str]
    superseded: Sequence[str] = ()


class Lines:
    """A text by its lines of facts, each as the terms it is made of."""

    def __init__(self, text: str) -> None:
        self.whole = text
        self.text = _without_comments(text)
        self.facts = [line for line in self.text.splitlines() if is_fact(line)]

    @cached_property
    def terms(self) -> list[frozenset[str]]:
        return [terms(line) for line in self.facts]

    @cached_property
    def all_terms(self) -> frozenset[str]:
        return terms(_STRUCK.sub("", self.text))

    @cached_property
    def size(self) -> int:
        """Characters without struck and blank lines, which may go."""
        return sum(len(line) + 1 for line in self.whole.splitlines() if line.strip() and not _is_struck(line))


def cleaned(text: str, old: str = "") -> str:
    """The answer without the fence around it and without what a model says to a person before and after it."""
    known = {line.strip() for line in old.splitlines()}
    fenced = _FENCED.match(text)
    lines = (fenced.group(1) if fenced else text).strip().splitlines()
    for end in (0, -1):
        if len(lines) > 1 and _is_polite(lines[end]) and lines[end].strip() not in known:
            del lines[end]
    rest = "\n".join(lines).strip()
    inner = _FENCED.match(rest)
    return (inner.group(1).strip() if inner else rest) + "\n" if rest else ""


def refusal(old: str, new: str, given: Given) -> str:
    """Why `new` may not take the place of `old`; empty when it may."""
    return (
        _no_markdown(new)
        or _too_large(old, new, given)
        or _orders(old, new)
        or _invented(old, new, given)
        or _too_small(old, new)
        or _lost(Lines(old), Lines(new), given)
    )


def invented_links(text: str, names: Collection[str], *, allowed: Collection[str] = ()) -> list[str]:
    """Links of `text` to notes that do not exist; `names` and links are relative to the workspace."""
    unknown = [link for link in links_in(text) if link not in names and link not in allowed]
    return list(dict.fromkeys(unknown))


def links_in(text: str) -> list[str]:
    """The notes that `text` links to; links to other places are left out."""
    found = [link.partition("#")[0] for link in _LINK.findall(_without_comments(text))]
    notes = [link for link in found if link.endswith(".md") and ":" not in link and not link.startswith("/")]
    return [normpath(link).removeprefix("../") for link in notes]


def terms(text: str) -> frozenset[str]:
    """What a text speaks of: its words but for "the" and the like, pairs of Chinese, Japanese and Korean characters."""
    found = frozenset(_terms(text))
    return found - STOPWORDS or found


def normal(line: str) -> str:
    """What a line says, for comparison: without bullet, strike, marks, case and width."""
    return " ".join(unicodedata.normalize("NFKC", marks.plain(line)).casefold().split()).rstrip(".。")


def is_fact(line: str) -> bool:
    """Whether a line says something that is not struck and no heading."""
    return not line.lstrip().startswith("#") and bool(terms(_STRUCK.sub("", line)))


def _terms(text: str) -> Iterable[str]:
    for run in _RUNS.findall(unicodedata.normalize("NFKC", text).casefold()):
        if len(run) > 1 and re.match(rf"[{_CJK}]", run):
            yield from (run[index : index + 2] for index in range(len(run) - 1))
        else:
            yield run.lstrip("0") or "0" if run.isdecimal() else run


def _without_comments(text: str) -> str:
    """One pass: an expression would look for the end of every comment that has none."""
    parts, place = [], 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        parts.append(text[place:start])
        place = end + 3
    return "".join([*parts, text[place:]])


def _is_struck(line: str) -> bool:
    return bool(_STRUCK.search(line)) and not terms(_STRUCK.sub("", _without_comments(line)))


def _is_polite(line: str) -> bool:
    text = line.strip()
    return len(text) <= POLITE_CHARS and bool(_POLITE.match(text)) and not _ORDERS.search(text)


def _no_markdown(new: str) -> str:
    text = new.strip()
    if not text:
        return "the answer is empty"
    if any(unicodedata.category(char) == "Cc" and char not in "\n\t\r" for char in text):
        return "the answer is no text: it holds control characters"
    if re.match(r"<(?:!doctype|html|\?xml)", text, re.IGNORECASE):
        return "the answer is a web page, not markdown"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return "the answer is JSON, not markdown"


def _orders(old: str, new: str) -> str:
    known = {line.strip() for line in old.splitlines()}
    for line in new.splitlines():
        if line.strip() not in known and _ORDERS.search(line):
            return f"it holds what reads as an instruction to a model: {line.strip()[:120]!r}"
    return ""


def _invented(old: str, new: str, given: Given) -> str:
    shown = [link for text in (old, *given.notes) for link in links_in(text)]
    links = invented_links(new, given.names, allowed=shown)
    if links:
        return f"it links to notes that do not exist: {', '.join(links[:5])}"
    known = {mark for text in (old, *given.notes) for mark in _MARK.findall(text)}
    marks = [mark for mark in _MARK.findall(new) if mark not in known]
    return f"it invents sources: {', '.join(dict.fromkeys(marks[:5]))}" if marks else ""


def _too_small(old: str, new: str) -> str:
    before, after = Lines(old).size, Lines(new).size
    if before > SMALL and after < before * KEPT_SIZE:
        return f"it would shrink MEMORY.md from {before:,} to {after:,} characters, below {KEPT_SIZE:.0%}"
    return ""


def _too_large(old: str, new: str, given: Given) -> str:
    most = len(old) * 2 + sum(map(len, given.notes)) + 2_000
    return f"it is longer ({len(new):,} characters) than all that it was made from" if len(new) > most else ""


def _lost(old: Lines, new: Lines, given: Given) -> str:
    """More facts missing than may be, or more struck at once than anybody changes in a day."""
    notes = Lines("\n".join(given.notes))
    claimed = [terms(line) for line in (*given.superseded, *_struck_parts(new.text), *_struck_parts(notes.text))]
    lost, struck = list[str](), 0
    for line, parts in zip(old.facts, old.terms, strict=True):
        if _survives(line, parts, new):
            continue
        if any(_overlap(parts, claim) >= SAME_LINE for claim in claimed) and _is_touched(parts, notes, claimed):
            struck += 1
        else:
            lost.append(line.strip())
    if len(lost) > len(old.facts) * LOST_FACTS:
        return f"it would lose {len(lost)} of {len(old.facts)} facts, such as {lost[0][:120]!r}"
    if len(old.facts) >= MANY_FACTS and struck > len(old.facts) * STRUCK_FACTS:
        return f"it would strike {struck} of {len(old.facts)} facts at once"
    return ""


def _survives(line: str, parts: frozenset[str], new: Lines) -> bool:
    """Whether the new text still says it: its numbers and names, and most of its words in one line."""
    if not _names(line) | {part for part in parts if _is_number(part)} <= new.all_terms:
        return False
    if _overlap(parts, new.all_terms) >= SAME_TEXT and len(parts) > 2:
        return True
    return any(_overlap(parts, other) >= SAME_LINE for other in new.terms)


def _is_touched(parts: frozenset[str], notes: Lines, struck: Sequence[frozenset[str]]) -> bool:
    """Whether the notes speak of the same thing: only they can supersede a fact."""
    texts = [*notes.terms, *(part for part in struck if part <= notes.all_terms)]
    return any(_overlap(parts, other) >= RELATED for other in texts) or _overlap(parts, terms(notes.text)) >= SAME_LINE


def _struck_parts(text: str) -> list[str]:
    return [part.strip("~") for part in _STRUCK.findall(text)]


def _names(line: str) -> set[str]:
    """Words with a capital that do not begin the line."""
    words = _LEAD.sub("", _STRUCK.sub("", line)).split()
    found = [word.strip(".,;:!?()[]*_`\"'") for word in words[1:]]
    capitals = [word for word in found if len(word) > 1 and word[:1].isupper() and word.isalpha()]
    return {word.casefold() for word in capitals if not re.search(rf"[{_CJK}]", word)} - STOPWORDS


def _is_number(term: str) -> bool:
    return any(char.isdecimal() for char in term)


def _overlap(parts: frozenset[str], other: frozenset[str]) -> float:
    return len(parts & other) / len(parts) if parts else 1.0
