"""A turn's event log: what a follower who comes, leaves and comes back sees of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.ids import AgentId, SessionId
from qworkspace.chat.live import LiveTurn, StopReason, ended_live
from qworkspace.sessions.models import Turn, TurnRequest, TurnState, Usage, user_message


def a_turn(state: TurnState = TurnState.RUNNING, *, text: str = "", error: dict[str, object] | None = None) -> Turn:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Turn("turn_1", SessionId("s"), state, "chat", "", "", now, now, None, text, Usage(), error, {}, [])


def a_request() -> TurnRequest:
    return TurnRequest(AgentId("a"), SessionId("s"), user_message("hello"))


def texts(live: LiveTurn) -> list[str]:
    return [event.data["text"] for event in live.log.since(0) if event.type == "text.delta"]


async def test_first_piece_is_sent_at_once_and_a_burst_in_one() -> None:
    live = LiveTurn(a_turn(), a_request(), SimulatedClock())
    for piece in ("a", "b", "c"):
        live.say(piece)
    assert texts(live) == ["a"]
    live.finish(a_turn(TurnState.COMPLETED, text="abc"), "turn.completed", {"text": "abc"})
    assert texts(live) == ["a", "bc"]
    assert [event.type for event in live.log.since(0)][-1] == "turn.completed"


async def test_text_stands_before_the_event_that_came_after_it() -> None:
    live = LiveTurn(a_turn(), a_request(), SimulatedClock())
    live.say("one ")
    live.say("two")
    live.emit("tool.call", {"name": "x"})
    assert [event.type for event in live.log.since(0)] == ["text.delta", "text.delta", "tool.call"]
    live.finish(a_turn(TurnState.FAILED), "turn.failed", {})


async def test_a_later_step_begins_a_paragraph_and_the_pieces_make_up_the_text() -> None:
    live = LiveTurn(a_turn(), a_request(), SimulatedClock())
    live.say("Let me look.")
    live.end_step()
    assert live.step_text == ""
    live.say("It is ")
    live.say("there.")
    assert live.text == "Let me look.\n\nIt is there."
    assert live.step_text == "It is there."
    live.emit("usage", {})
    assert "".join(texts(live)) == live.text
    live.finish(a_turn(TurnState.CANCELLED), "turn.cancelled", {})


async def test_the_log_ends_once() -> None:
    live = LiveTurn(a_turn(), a_request(), SimulatedClock())
    live.finish(a_turn(TurnState.COMPLETED, text="x"), "turn.completed", {"text": "x"})
    live.finish(a_turn(TurnState.FAILED), "turn.failed", {})
    assert [event.type for event in live.log.since(0)] == ["turn.completed"]
    assert (await live.done).state is TurnState.COMPLETED


async def test_only_the_first_reason_to_stop_counts() -> None:
    live = LiveTurn(a_turn(), a_request(), SimulatedClock())
    live.cancel(StopReason.USER)
    live.cancel(StopReason.SHUTDOWN)
    assert live.stop_reason is StopReason.USER
    live.finish(a_turn(TurnState.CANCELLED), "turn.cancelled", {})


@pytest.mark.parametrize(
    ("turn", "last"),
    [
        (a_turn(TurnState.COMPLETED, text="said"), "turn.completed"),
        (a_turn(TurnState.CANCELLED, text="sa"), "turn.cancelled"),
        (a_turn(TurnState.FAILED, error={"code": "model_error", "message": "no"}), "turn.failed"),
        (a_turn(TurnState.INTERRUPTED), "turn.failed"),
    ],
)
async def test_who_comes_after_the_end_gets_the_last_event_only(turn: Turn, last: str) -> None:
    live = ended_live(turn, a_request(), SimulatedClock())
    events = [event async for event in live.log.follow(0)]
    assert [event.type for event in events] == [last]
    assert events[0].data["text"] == turn.text


async def test_an_interrupted_turn_says_that_it_can_be_resumed() -> None:
    live = ended_live(a_turn(TurnState.INTERRUPTED), a_request(), SimulatedClock())
    data = live.log.since(0)[0].data
    assert (data["code"], data["retryable"]) == ("interrupted", True)
