"""`interests.yaml`: the topics that dream has found, which the proactive loop reads first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from qworkspace.base.text import clean_text
from qworkspace.memory.slugs import day_of, slug

INTERESTS = "interests.yaml"
MOST_TOPICS = 12
FRESH_DAYS = 60
"""A topic whose newest note is older than this leaves the list."""
MOST_BYTES = 1_000_000
LONGEST = 1_000  # characters of one text
MOST_ITEMS = 20  # keywords or paths of one topic


@dataclass(frozen=True, slots=True)
class Topic:
    """What a person is occupied with. `paths` are notes of the vault that show it."""

    title: str
    reason: str = ""
    evidence: str = ""
    keywords: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interests:
    """The topics, the most present first. `problem` says what of the file could not be used; empty when all could."""

    date: date | None = None
    topics: tuple[Topic, ...] = ()
    problem: str = field(default="", compare=False)


def load_interests(path: Path) -> Interests:
    """What the file holds, as far as it goes. Never fails: a missing file is empty, a broken one names its fault.

    Blocks: call it in a thread.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            return Interests(problem=f"{path.name} is larger than {MOST_BYTES:,} bytes")
        data = path.read_bytes()
    except FileNotFoundError:
        return Interests()
    except OSError as error:
        return Interests(problem=f"{path.name} cannot be read: {error.strerror or error}")
    return read_interests(data, path.name)


def read_interests(data: bytes, name: str = INTERESTS) -> Interests:
    """The topics in the bytes of such a file; see `load_interests`."""
    import yaml  # heavy, and only needed by who reads interests

    try:
        value = yaml.safe_load(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        return Interests(problem=f"{name} cannot be read: {' '.join(str(error).split())[:300]}")
    if value is None:
        return Interests()
    if not isinstance(value, Mapping) or not isinstance(value.get("topics", []), list | type(None)):
        return Interests(problem=f'{name} must hold "date" and a list of "topics"')
    topics, problem = _topics(value.get("topics") or [], name)
    return Interests(_date(value.get("date")), topics, problem)


def dump_interests(interests: Interests) -> str:
    """The file's content."""
    import yaml  # heavy, and only needed by who writes interests

    day = interests.date.isoformat() if interests.date else None
    topics = [{key: _plain(value) for key, value in asdict(topic).items()} for topic in interests.topics]
    return str(yaml.safe_dump({"date": day, "topics": topics}, allow_unicode=True, sort_keys=False, width=120))


def merged_topics(old: Interests, new: Sequence[Topic], today: date) -> Interests:
    """`new` first, then what was there and is still fresh; one topic per title, at most `MOST_TOPICS`."""
    found: dict[str, Topic] = {}
    for topic in new:
        found.setdefault(slug(topic.title), topic)
    for topic in old.topics:
        if _is_fresh(topic, today):
            found.setdefault(slug(topic.title), topic)
    return Interests(today, tuple(found.values())[:MOST_TOPICS])


def topic_of(value: Any) -> Topic | None:
    """A topic from parsed YAML or JSON; None when it has no title."""
    if isinstance(value, str):
        value = {"title": value}
    if not isinstance(value, Mapping):
        return None
    title = one_line(value.get("title"))
    if not title:
        return None
    return Topic(
        title=title[:200],
        reason=one_line(value.get("reason")),
        evidence=one_line(value.get("evidence")),
        keywords=_list(value.get("keywords")),
        paths=_list(value.get("paths")),
    )


def one_line(value: Any) -> str:
    """A text, number or list of them as one bounded line; empty for anything else."""
    if isinstance(value, list):
        return "; ".join(filter(None, map(one_line, value[:MOST_ITEMS])))[:LONGEST]
    if isinstance(value, bool) or not isinstance(value, str | int | float | date):
        return ""
    return " ".join(clean_text(str(value)).split())[:LONGEST]


def _topics(values: list[Any], name: str) -> tuple[tuple[Topic, ...], str]:
    read = [topic_of(value) for value in values]
    topics = tuple(topic for topic in read if topic is not None)
    problem = "" if len(topics) == len(read) else f"{name}: {len(read) - len(topics)} topics have no title"
    return topics[:MOST_TOPICS], problem


def _list(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else str(value).split(",") if isinstance(value, str) else []
    return tuple(dict.fromkeys(filter(None, map(one_line, values))))[:MOST_ITEMS]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _date(value: Any) -> date | None:
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError:
        return None


def _is_fresh(topic: Topic, today: date) -> bool:
    """Topics that name no dated note stay until others push them out."""
    days = [day for day in map(day_of, topic.paths) if day is not None]
    return not days or max(days) >= today - timedelta(days=FRESH_DAYS)
