"""Turns in which a scripted model calls tools, and the person who is asked about them."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.support.daemon import DaemonProcess

SECONDS = 20.0

Call = tuple[str, dict[str, Any]]
Results = list[dict[str, Any]]


def play(daemon: DaemonProcess, *calls: Call, session: str, agent: str = "default") -> Results:
    """A turn in which the model makes these calls at once; their results in the same order."""
    wanted = " ".join(f"[[tool:{name} {json.dumps(args)}]]" for name, args in calls)
    answer = daemon.chat(f"[[parallel]] {wanted}", agent=agent, session=session)
    assert answer["status"] == "completed", answer
    return results(daemon, session=session, agent=agent)


def results(daemon: DaemonProcess, *, session: str, agent: str = "default") -> Results:
    parts = [part for message in daemon.messages(agent=agent, session=session) for part in message["parts"]]
    found = {part["id"]: part for part in parts if part["type"] == "tool_result"}
    return [found[part["id"]] for part in parts if part["type"] == "tool_call"]


def outcomes(calls: list[Call], found: Results) -> dict[str, str]:
    assert len(found) == len(calls)
    return {f"{name} {args}": one["outcome"] for (name, args), one in zip(calls, found, strict=True)}


def questions(daemon: DaemonProcess, count: int) -> list[dict[str, Any]]:
    """The open questions, once there are so many."""
    end = time.monotonic() + SECONDS
    while True:
        found = list(daemon.get("/api/approvals")["approvals"])
        if len(found) >= count:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.02)


def answer(daemon: DaemonProcess, approval_id: str, decision: str) -> dict[str, Any]:
    given = daemon.request("POST", f"/api/approvals/{approval_id}", json={"decision": decision})
    assert given.status_code == 200, given.text
    return dict(given.json())
