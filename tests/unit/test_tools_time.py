"""`current_time` in the zones that people live in."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.chat.tools.builtin import builtin_tools
from qworkspace.chat.tools.time import told
from tests.support.tools import call, make_workspace, tool_context

MOMENT = datetime(2026, 7, 3, 22, 30, 5, tzinfo=UTC)


async def test_the_named_zone_and_the_users(tmp_path: Path):
    context = tool_context(make_workspace(tmp_path), clock=SimulatedClock(MOMENT))
    berlin = await call(context, "current_time", timezone="Europe/Berlin")
    assert berlin.text == "2026-07-04T00:30:05+02:00 (Saturday, week 27, Europe/Berlin); UTC 2026-07-03 22:30:05"
    tool = next(tool for tool in builtin_tools(lambda: "Asia/Kolkata") if tool.name == "current_time")
    assert "2026-07-04T04:00:05+05:30" in (await tool.run(context, tool.args())).text


def test_without_a_zone_the_system_decides():
    assert datetime.fromisoformat(told(MOMENT, None).split()[0]) == MOMENT.replace(microsecond=0)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "/etc/passwd", "Europe", "x\0", "", "posix"])
async def test_a_zone_that_is_none_is_an_answer(tmp_path: Path, zone: str):
    context = tool_context(make_workspace(tmp_path), clock=SimulatedClock(MOMENT))
    output = await call(context, "current_time", timezone=zone)
    assert (output.outcome == "error" and "IANA" in output.text) or not zone
