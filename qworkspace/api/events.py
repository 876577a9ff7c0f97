"""The daemon's own event stream: turns, agents, approvals, problems, as they happen."""

from __future__ import annotations

from qworkspace.api.admin_schemas import EventsQuery
from qworkspace.api.chat import stream_log
from qworkspace.api.operations import Call, Operation
from qworkspace.api.sse import EventStream, Frame, split_id, to_json
from qworkspace.base.events import Event


async def follow(call: Call) -> EventStream:
    """Events from now on, or later than `Last-Event-ID`; those of an earlier process are gone."""
    log = call.services.bus.log
    epoch = epoch_of(call)
    last_seen = call.request.headers.get("last-event-id", "").strip()
    after = log.last
    if last_seen:
        their_epoch, seen = split_id(last_seen)
        after = min(seen, log.last) if their_epoch == epoch else 0
    return stream_log(call, log, bus_frame(epoch, call.query.agent_id), after=after)


def epoch_of(call: Call) -> str:
    """Names this process in event ids, which count from 1 in each."""
    return format(int(call.api.info.started_at.timestamp() * 1000), "x")


def bus_frame(epoch: str, agent_id: str | None) -> Frame:
    """Events of the bus, of one agent if named; their id is `<epoch>.<seq>`."""

    def frame(event: Event) -> bytes:
        if agent_id is not None and event.data.get("agent_id") != agent_id:
            return b""
        id = f"{epoch}.{event.seq}"
        data = to_json({"id": id, "type": event.type, "ts": event.at.isoformat(), **event.data})
        return f"id: {id}\nevent: {event.type}\ndata: {data}\n\n".encode("utf-8", "replace")

    return frame


OPERATIONS = (
    Operation(
        "GET",
        "/api/events",
        follow,
        "The daemon's events from now on, or from the event after Last-Event-ID on",
        "daemon",
        query=EventsQuery,
        media_types=("text/event-stream",),
        headers=("Last-Event-ID",),
    ),
)
