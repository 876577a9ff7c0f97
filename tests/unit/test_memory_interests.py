"""interests.yaml: written whole, read as far as it goes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from qworkspace.memory.interests import (
    MOST_TOPICS,
    Interests,
    Topic,
    dump_interests,
    load_interests,
    merged_topics,
    read_interests,
)

TODAY = date(2026, 1, 5)
TRIP = Topic("北京出差: plan", "soon", 'asked "twice"', ("Berlin", "10:30"), ("memory/2026-01-03.md",))


def test_what_is_written_is_read_again() -> None:
    interests = Interests(TODAY, (TRIP, Topic("- [ ] odd: # title"), Topic("null")))
    text = dump_interests(interests)
    assert read_interests(text.encode()) == interests
    assert "北京出差" in text and text.startswith("date: '2026-01-05'\ntopics:\n- title:")


@pytest.mark.parametrize(
    ("text", "titles", "problem"),
    [
        ("", [], ""),
        ("date: 2026-01-05\ntopics:\n- title: A\n  keywords: x, y\n", ["A"], ""),
        ("topics: [A, {title: B, paths: memory/2026-01-02.md}]\n", ["A", "B"], ""),
        ("topics: [{title: A}, {reason: none}, 5, [x]]\n", ["A"], "3 topics have no title"),
        ("topics: [unclosed", [], "cannot be read"),
        ("- just\n- a list\n", [], 'must hold "date"'),
        ("topics: 5\n", [], 'must hold "date"'),
        ("date: never\ntopics: null\n", [], ""),
        ("a: &x [1]\nb: !!python/object/apply:os.system [x]\n", [], "cannot be read"),
        (f"topics: [{', '.join(f't{n}' for n in range(40))}]\n", [f"t{n}" for n in range(MOST_TOPICS)], ""),
    ],
)
def test_broken_files_give_what_can_be_used_and_name_their_fault(
    tmp_path: Path, text: str, titles: list[str], problem: str
) -> None:
    path = tmp_path / "interests.yaml"
    path.write_text(text)
    found = load_interests(path)
    assert [topic.title for topic in found.topics] == titles
    assert problem in found.problem and bool(problem) == bool(found.problem)


def test_a_file_that_is_missing_binary_or_a_directory_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "interests.yaml"
    assert load_interests(path) == Interests() and not load_interests(path).problem
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "cannot be read" in load_interests(path).problem
    path.unlink()
    path.mkdir()
    assert "cannot be read" in load_interests(path).problem


def test_new_topics_come_first_old_ones_stay_while_they_are_fresh() -> None:
    old = Interests(
        date(2026, 1, 4),
        (
            Topic("trip to berlin", paths=("memory/2026-01-01.md",)),
            Topic("Rent", paths=("memory/2025-12-20.md",)),
            Topic("Forgotten", paths=("memory/2025-09-01.md",)),
            Topic("Written by hand"),
        ),
    )
    merged = merged_topics(old, [Topic("Trip to Berlin!", reason="new")], TODAY)
    assert [topic.title for topic in merged.topics] == ["Trip to Berlin!", "Rent", "Written by hand"]
    assert merged.date == TODAY and merged.topics[0].reason == "new"
    assert len(merged_topics(old, [Topic(f"topic {n}") for n in range(20)], TODAY).topics) == MOST_TOPICS
