"""What a model's answer to dream says, read as far as it can be understood."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from qworkspace.base.text import clean_text
from qworkspace.memory import marks
from qworkspace.memory.dream_guard import Given, cleaned, invented_links, is_fact, normal, refusal, terms
from qworkspace.memory.interests import MOST_TOPICS, Topic, one_line, topic_of

LONGEST_TEXT = 8_000  # characters of one topic's text
MOST_STARTS = 30  # braces at which the answer's object may begin
_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[A-Za-z]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_TRAILING = re.compile(r",(\s*[}\]])")


@dataclass(frozen=True, slots=True)
class Finding:
    """A topic, and what the notes add about it, as markdown lines."""

    topic: Topic
    text: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`memory` is the whole new MEMORY.md, None when it stays as it is."""

    memory: str | None
    findings: tuple[Finding, ...] = ()
    superseded: tuple[str, ...] = ()


class Refused(Exception):
    """The answer may not be used; its text says why."""


def read_answer(text: str) -> Answer:
    """The parts of an answer, in a fence or with prose around it. A bare markdown document is a new MEMORY.md.

    `Refused` when it is neither, or breaks off.
    """
    text = _THOUGHTS.sub(" ", clean_text(text)).strip()
    bare = _FENCE.sub(r"\1", text).lstrip()
    if "{" not in text or bare.startswith("#"):
        if not re.search(r"^#{1,6} ", text, re.MULTILINE):
            raise Refused("the answer is neither the JSON that was asked for nor a markdown document")
        return Answer(text)
    value = _object(text)
    memory = value.get("memory")
    if memory is not None and not isinstance(memory, str):
        raise Refused('"memory" in the answer is no text')
    return Answer(memory, _findings(value.get("topics")), _texts(value.get("superseded")))


def checked(answer: Answer, old: str, notes: Mapping[str, str], names: Collection[str]) -> Answer:
    """The answer as it may be written: cleaned, with sources that exist; `Refused` with the reason otherwise.

    `notes` are those that the model was shown, `names` all that exist.
    """
    findings = tuple(_grounded(finding, notes, names) for finding in answer.findings)
    if answer.memory is None:
        return replace(answer, findings=findings)
    memory = with_sources(cleaned(answer.memory, old), [old, *notes.values()])
    reason = refusal(old, memory, Given(tuple(notes.values()), names, answer.superseded))
    if reason:
        raise Refused(reason)
    return Answer(memory, findings, answer.superseded)


def with_sources(text: str, texts: Sequence[str]) -> str:
    """`text` with the marks of provenance that facts had in one of `texts` and have lost on the way."""
    marked = [line for known in texts for line in known.splitlines() if marks.parse(line) is not None]
    known = {normal(line): marks.parse(line) for line in marked}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        source = known.get(normal(line)) if is_fact(line) and "<!--" not in line else None
        if source is not None:
            lines[number] = f"{line.rstrip()} {marks.mark(source.session, source.turn)}"
    return "\n".join(lines)


def _object(text: str) -> Mapping[str, Any]:
    """The first object that is an answer; slips that do not change its meaning are overlooked."""
    decoder = json.JSONDecoder(strict=False)  # line ends inside of strings are a common slip
    for candidate in (text, _TRAILING.sub(r"\1", text)):
        starts = [found.start() for found in islice(re.finditer(r"\{", candidate), MOST_STARTS)]
        for start in starts:
            try:
                value, _ = decoder.raw_decode(candidate, start)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, Mapping) and value.keys() & {"memory", "topics"}:
                return value
    ending = "it holds no" if text.rstrip("` \n").endswith("}") else "it breaks off, or holds no"
    raise Refused(f'the answer cannot be used: {ending} JSON object with "memory" and "topics"')


def _findings(value: Any) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for item in value if isinstance(value, list) else []:
        topic = topic_of(item)
        if topic is not None:
            found.append(Finding(topic, _text(item.get("text")) if isinstance(item, Mapping) else ""))
    return tuple(found[:MOST_TOPICS])


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = "\n".join(f"- {line}" for line in map(one_line, value) if line)
    return cleaned(value)[:LONGEST_TEXT].strip() if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(filter(None, map(one_line, value))) if isinstance(value, list) else ()


def _grounded(finding: Finding, notes: Mapping[str, str], names: Collection[str]) -> Finding:
    """Only sources that exist; where the model names none, the notes that speak of it, else all it was shown."""
    invented = invented_links(finding.text, names)
    if invented:
        raise Refused(f"the topic {finding.topic.title!r} links to notes that do not exist: {', '.join(invented[:5])}")
    told = tuple(path for path in finding.topic.paths if path in names)
    if not told and finding.topic.paths:
        raise Refused(f"the topic {finding.topic.title!r} has sources that do not exist: {finding.topic.paths[0]}")
    paths = told or _speaking(finding, notes) or tuple(notes)
    return Finding(replace(finding.topic, paths=paths), finding.text)


def _speaking(finding: Finding, notes: Mapping[str, str]) -> tuple[str, ...]:
    words = terms(f"{finding.topic.title} {' '.join(finding.topic.keywords)}")
    return tuple(name for name, text in notes.items() if words & terms(text))
