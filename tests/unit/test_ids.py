"""Ids: what is accepted from outside, and what the daemon makes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.base.ids import agent_id, new_id, session_id
from qworkspace.errors import InvalidInput

MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize("good", ["a", "0", "default-zh", "a_b", "x" * 64])
def test_good_agent_ids(good: str) -> None:
    assert agent_id(good) == good


@pytest.mark.parametrize("bad", ["", "A", "-a", "_a", "a b", "a/b", "..", "a.b", "x" * 65, "a\n", "ä", "a\0", "\uff41"])
def test_bad_agent_ids_are_refused_with_the_rule(bad: str) -> None:
    with pytest.raises(InvalidInput, match="is not an agent id: use") as caught:
        agent_id(bad)
    assert caught.value.code == "invalid_agent_id"


@pytest.mark.parametrize("good", ["a", "A.b:c@d-e_f", "proactive_mode:default", "x" * 128, ".hidden"])
def test_good_session_ids(good: str) -> None:
    assert session_id(good) == good


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a b", "x" * 129, "a\n", "é", "a\\b", "%2e"])
def test_bad_session_ids_are_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match="is not a session id"):
        session_id(bad)


@given(st.text(max_size=140))
def test_no_accepted_id_can_be_a_path(text: str) -> None:
    for check in (agent_id, session_id):
        try:
            accepted = check(text)
        except InvalidInput:
            continue
        assert "/" not in accepted
        assert "\\" not in accepted
        assert accepted not in (".", "..")


@given(MOMENTS, st.timedeltas(timedelta(microseconds=10), timedelta(days=3000)))
def test_made_ids_sort_by_time_and_are_valid_session_ids(moment: datetime, later: timedelta) -> None:
    first, second = new_id("chat", moment), new_id("chat", moment + later)
    assert first < second
    assert session_id(first) == first


def test_ids_of_one_moment_differ() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert len({new_id("turn", now) for _ in range(1000)}) == 1000
