"""Dream: every undreamt day is worked in once, guarded, undoable, over crashes and a person's edits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.memory import dream
from qworkspace.memory.asking import NoModel
from qworkspace.memory.dream_writing import KEPT_BACKUPS
from qworkspace.memory.interests import load_interests
from tests.support.dreaming import Fuse, Killed, Night, Script

MEMORY = "# Long-term memory\n\n## People\n\n- Anna is the sister, lives in Oslo <!-- src: s1/t1 -->\n"
BERLIN = "- The trip to Berlin is on 2026-02-11 <!-- src: s2/t4 -->"
NEW = MEMORY + f"\n## Plans\n\n{BERLIN}\n"
TRIP = {
    "title": "Trip to Berlin",
    "text": "- Leaves on 2026-02-11\n- Wants a hotel near the station",
    "reason": "it is soon",
    "evidence": "asked for hotels twice",
    "keywords": ["Berlin", "hotel"],
    "paths": ["memory/2026-01-03.md"],
}
ANSWER = {"memory": NEW, "topics": [TRIP]}
NOTHING: dict[str, Any] = {"memory": None, "topics": []}


@pytest.fixture
async def night(tmp_path: Path) -> AsyncIterator[Night]:
    night = Night(tmp_path, Script(ANSWER))
    fill(night)
    async with night:
        yield night


def fill(night: Night) -> None:
    night.put("MEMORY.md", MEMORY)
    night.put("memory/2026-01-02.md", "- Asked for hotels in Berlin <!-- src: s2/t3 -->\n")
    night.put("memory/2026-01-03.md", f"{BERLIN}\n- Wants a hotel near the station <!-- src: s2/t5 -->\n")


def script(night: Night) -> Script:
    assert isinstance(night.ask, Script)
    return night.ask


async def test_days_become_memory_topics_and_interests_and_a_readable_diff(night: Night) -> None:
    outcome = await night.dreamer.dream()
    assert (outcome.changed, outcome.days) == (True, ("memory/2026-01-02.md", "memory/2026-01-03.md"))
    assert night.text("MEMORY.md") == NEW
    assert night.text("digest/trip-to-berlin.md") == (
        "# Trip to Berlin\n\n- Leaves on 2026-02-11\n- Wants a hotel near the station\n\n"
        "## Sources\n\n- [2026-01-03](../memory/2026-01-03.md)\n"
    )
    interests = load_interests(night.path / "interests.yaml")
    assert str(interests.date) == "2026-01-05"
    assert [(topic.title, topic.keywords, topic.paths) for topic in interests.topics] == [
        ("Trip to Berlin", ("Berlin", "hotel"), ("memory/2026-01-03.md",))
    ]
    ((title, body, group),) = night.tellings
    assert "MEMORY.md" in title and f"+{BERLIN}" in body and group == outcome.group
    assert (night.path / ".state/backups" / group / "MEMORY.md").read_text() == MEMORY


async def test_undo_brings_back_the_bytes_of_before(night: Night) -> None:
    outcome = await night.dreamer.dream()
    await night.vault.undo(outcome.group)
    assert night.text("MEMORY.md") == MEMORY
    assert not (night.path / "digest/trip-to-berlin.md").exists()
    assert not (night.path / "interests.yaml").exists()


async def test_what_was_worked_in_is_not_asked_about_again_until_it_changes(night: Night) -> None:
    await night.dreamer.dream()
    script(night).answers = [NOTHING]
    outcome = await night.dreamer.dream()
    assert (outcome.changed, outcome.reason) == (False, "no note has changed since the last dream")
    night.put("memory/2026-01-02.md", "- Berlin was cancelled\n")
    assert await night.dreamer.catch_up_due()
    await night.dreamer.dream()
    assert len(script(night).questions) == 2
    assert 'path="memory/2026-01-02.md"' in script(night).questions[1]
    assert 'path="memory/2026-01-03.md"' not in script(night).questions[1]
    assert not await night.dreamer.catch_up_due()
    assert len(night.tellings) == 1, "what changes nothing is silent"


async def test_a_month_that_was_missed_is_caught_up_oldest_first_in_batches(night: Night) -> None:
    for day in range(1, 31):
        night.put(f"memory/2025-11-{day:02}.md", f"- Day {day} of November\n" + "- filling words here\n" * 100)
    script(night).answers = [NOTHING]
    outcome = await night.dreamer.dream()
    shown = [line for question in script(night).questions for line in question.splitlines() if "<note" in line]
    assert len(shown) == len(set(shown)) == 32 and shown == sorted(shown)
    assert 2 <= len(script(night).questions) <= 8
    assert all(len(question) < dream.BUDGET * 1.2 for question in script(night).questions)
    assert outcome.reason == "the notes hold nothing new"
    assert not await night.dreamer.catch_up_due()


async def test_a_note_longer_than_a_question_is_shown_whole_in_pieces(night: Night) -> None:
    lines = [f"- line {number} of a very long day" for number in range(2_000)]
    night.put("memory/2026-01-02.md", "\n".join(lines) + "\n")
    script(night).answers = [NOTHING]
    await night.dreamer.dream()
    shown = "\n".join(script(night).questions)
    assert all(f"{line}\n" in shown for line in lines)
    await night.again()
    assert not await night.dreamer.catch_up_due()


async def test_a_window_that_is_too_small_gets_smaller_questions(night: Night) -> None:
    night.put("memory/2026-01-02.md", "- a line of a long day\n" * 900)

    def small(question: str) -> Any:
        return ContextTooLong("too long") if len(question) > 8_000 else NOTHING

    script(night).answers = [small]
    await night.dreamer.dream()
    assert not await night.dreamer.catch_up_due()


async def test_without_a_model_nothing_happens_and_it_says_why(night: Night) -> None:
    script(night).answers = [NoModel("only the offline provider is there")]
    outcome = await night.dreamer.dream()
    assert not outcome.changed and "no model is connected" in outcome.reason
    assert (night.text("MEMORY.md"), night.tellings, night.wrong()) == (MEMORY, [], [])
    assert await night.dreamer.catch_up_due()


async def test_a_failing_model_is_a_problem_until_it_answers(night: Night) -> None:
    script(night).answers = [ModelError("the key is wrong"), ANSWER]
    assert "the key is wrong" in (await night.dreamer.dream()).reason
    assert any("the key is wrong" in message for message in night.wrong())
    assert (await night.dreamer.dream()).changed
    assert night.wrong() == []


async def test_a_refused_answer_leaves_memory_as_it_was_and_is_told_once(night: Night) -> None:
    script(night).answers = [{"memory": "# Long-term memory\n", "topics": []}]
    outcome = await night.dreamer.dream()
    assert "it would lose 1 of 1 facts" in outcome.reason
    assert "not accepted: it would lose" in script(night).questions[1], "the model may do better with the reason"
    assert night.text("MEMORY.md") == MEMORY
    assert any("it would lose" in message for message in night.wrong())
    await night.dreamer.dream()
    assert [(title, group) for title, _, group in night.tellings] == [("Dream refused what the model answered", "")]
    assert "it would lose 1 of 1 facts" in night.tellings[0][1]
    await night.again()
    assert any("it would lose" in message for message in night.wrong()), "shown after a restart too"
    script(night).answers = [lambda question: ANSWER if "2026-01-03" in question else NOTHING]
    assert (await night.dreamer.dream()).changed
    assert night.wrong() == []


async def test_a_refused_note_that_a_person_removes_is_no_problem_any_more(night: Night) -> None:
    script(night).answers = [{"memory": "# Long-term memory\n", "topics": []}]
    await night.dreamer.dream()
    assert any("2026-01-02.md" in message for message in night.wrong())
    for name in ("memory/2026-01-02.md", "memory/2026-01-03.md"):
        (night.path / name).unlink()
    await night.dreamer.dream()
    assert night.wrong() == []


async def test_a_stored_answer_of_another_version_is_dreamt_again(night: Night) -> None:
    row = ("dream_0", '{"group": "dream_0", "pieces": [{"note": "memory/2026-01-02.md"}]}')
    await night.db.write(lambda db: db.execute("INSERT INTO dream_answer VALUES (?, ?)", row).rowcount)
    await night.again()
    assert (await night.dreamer.dream()).changed
    assert night.text("MEMORY.md") == NEW


async def test_a_day_that_spoils_the_answer_does_not_hold_up_the_others(night: Night) -> None:
    def spoilt(question: str) -> Any:
        return {"memory": "nonsense", "topics": []} if "2026-01-02" in question else ANSWER

    script(night).answers = [spoilt]
    for _ in range(4):
        await night.dreamer.dream()
    assert night.text("MEMORY.md") == NEW
    asked = len(script(night).questions)
    await night.dreamer.dream()
    assert len(script(night).questions) == asked, "set aside after three refusals"
    assert not await night.dreamer.catch_up_due()


async def test_a_persons_edit_during_the_call_is_kept(night: Night) -> None:
    edited = MEMORY.replace("# Long-term memory\n", "# Long-term memory\n\nWritten by hand.\n")

    def during(question: str) -> Any:
        night.put("MEMORY.md", edited)
        return ANSWER

    script(night).answers = [during]
    await night.dreamer.dream()
    assert "Written by hand." in night.text("MEMORY.md") and BERLIN in night.text("MEMORY.md")


async def test_an_edit_of_the_same_lines_is_dreamt_again(night: Night) -> None:
    edited = MEMORY.replace("Oslo", "Bergen")

    def during(question: str) -> Any:
        night.put("MEMORY.md", edited)
        return {"memory": NEW.replace("lives in Oslo", "lives in Oslo, Norway"), "topics": []}

    script(night).answers = [during, {"memory": NEW.replace("Oslo", "Bergen"), "topics": []}]
    await night.dreamer.dream()
    assert night.text("MEMORY.md") == NEW.replace("Oslo", "Bergen")


async def test_a_topic_that_is_known_gets_what_is_new_and_keeps_a_persons_lines(night: Night) -> None:
    night.put(
        "digest/trip-to-berlin.md",
        "# Trip to Berlin\n\nMy own remark.\n- Leaves on 2026-02-11\n\n## Sources\n\n- [old](../memory/old.md)\n",
    )
    await night.dreamer.dream()
    assert night.text("digest/trip-to-berlin.md") == (
        "# Trip to Berlin\n\nMy own remark.\n- Leaves on 2026-02-11\n- Wants a hotel near the station\n\n"
        "## Sources\n\n- [old](../memory/old.md)\n- [2026-01-03](../memory/2026-01-03.md)\n"
    )


async def test_a_broken_list_of_topics_is_left_for_the_person_to_mend(night: Night) -> None:
    night.put("interests.yaml", "topics: [unclosed")
    await night.dreamer.dream()
    assert night.text("interests.yaml") == "topics: [unclosed"
    assert any("interests.yaml cannot be read" in message for message in night.wrong())
    assert night.text("MEMORY.md") == NEW


async def test_a_memory_that_is_too_long_to_rewrite_stays_and_topics_are_found(night: Night) -> None:
    large = MEMORY + "".join(f"- fact {number} of many\n" for number in range(3_000))
    night.put("MEMORY.md", large)
    await night.dreamer.dream()
    assert night.text("MEMORY.md") == large and "of many" not in script(night).questions[0]
    assert "Leaves on" in night.text("digest/trip-to-berlin.md")
    assert any("until you shorten it" in message for message in night.wrong())


async def test_line_ends_and_broken_bytes_of_memory_are_no_obstacle(night: Night) -> None:
    night.put("MEMORY.md", b"\xef\xbb\xbf" + MEMORY.replace("\n", "\r\n").encode())
    await night.dreamer.dream()
    assert (night.path / "MEMORY.md").read_bytes().decode("utf-8-sig").replace("\r\n", "\n") == NEW
    broken = f"{MEMORY}- \udcff broken\n".encode("utf-8", "surrogateescape")
    night.put("MEMORY.md", broken)
    night.put("memory/2026-01-03.md", f"{BERLIN}\n- once more\n")
    script(night).answers = [{"memory": f"{NEW}- \ufffd broken\n", "topics": []}]
    outcome = await night.dreamer.dream()
    assert outcome.changed
    assert (night.path / "MEMORY.md").read_bytes() == NEW.encode() + b"- \xff broken\n"


async def test_topics_alone_change_no_note_and_are_silent(night: Night) -> None:
    script(night).answers = [{"memory": None, "topics": [{"title": "Hotels", "reason": "asked twice"}]}]
    outcome = await night.dreamer.dream()
    assert (outcome.changed, night.tellings) == (False, [])
    (topic,) = load_interests(night.path / "interests.yaml").topics
    assert topic.paths == ("memory/2026-01-02.md",), "the note that speaks of it"
    night.put("memory/2026-01-04.md", "- and more\n")
    await night.dreamer.dream()
    assert "<topics>\n- Hotels\n</topics>" in script(night).questions[1]


async def test_the_last_backups_stay(night: Night) -> None:
    for number in range(KEPT_BACKUPS + 3):
        night.put(f".state/backups/dream_0{number:02}/MEMORY.md", "of an earlier night\n")
    outcome = await night.dreamer.dream()
    kept = sorted(path.name for path in (night.path / ".state/backups").iterdir())
    assert len(kept) == KEPT_BACKUPS and kept[0] == "dream_004" and kept[-1] == outcome.group


async def test_chinese_notes_are_asked_about_and_told_in_chinese(night: Night) -> None:
    night.put("MEMORY.md", "# 长期记忆\n\n- 姐姐住在上海\n")
    night.put("memory/2026-01-02.md", "- 用户习惯用 zsh\n")
    night.put("memory/2026-01-03.md", "- 周三去北京出差\n")
    memory = "# 长期记忆\n\n- 姐姐住在上海\n- 用户习惯用 zsh\n"
    topic = {"title": "北京出差", "text": "- 周三出发", "paths": ["memory/2026-01-03.md"]}
    script(night).answers = [{"memory": memory, "topics": [topic]}]
    await night.dreamer.dream()
    assert "只回答一个 JSON 对象" in script(night).systems[0]
    assert "## 来源\n\n- [2026-01-03](../memory/2026-01-03.md)" in night.text("digest/北京出差.md")
    assert "夜间整理" in night.tellings[0][0]


async def test_a_crash_at_any_step_leads_to_exactly_one_dream(tmp_path: Path) -> None:
    """The process ends after every call of database, vault, threads, model and inbox, one after the other."""
    step, died = 0, True
    while died:
        step += 1
        fuse = Fuse(step)
        night = Night(tmp_path / str(step), Script(ANSWER), fuse=fuse)
        night.path.mkdir()
        fill(night)
        async with night:
            died = await _killed(night)
            before = night.text("MEMORY.md")
            assert before in (MEMORY, NEW)
            await night.again()
            await night.dreamer.dream()
            assert night.text("MEMORY.md") == NEW
            assert night.text("digest/trip-to-berlin.md").count("Leaves on") == 1
            groups = {group for _, _, group in night.tellings}
            assert len(groups) == 1, f"step {step}: told as {len(groups)} dreams"
            applied = (await night.vault.history.list("MEMORY.md")).changes
            assert len(applied) == 1
            await night.vault.undo(groups.pop())
            assert night.text("MEMORY.md") == MEMORY
    assert step > 10


async def _killed(night: Night) -> bool:
    try:
        await night.dreamer.dream()
    except Killed:
        return True
    return False
