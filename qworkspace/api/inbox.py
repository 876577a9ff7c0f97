"""What the person has yet to read."""

from __future__ import annotations

from starlette.types import ASGIApp

from qworkspace.api.admin_schemas import InboxCleared, InboxItemFacts, InboxList, InboxQuery, InboxRead
from qworkspace.api.operations import Call, Operation, no_content

ONE = "/api/inbox/{item_id}"


async def list_items(call: Call) -> InboxList:
    """The items, the newest first."""
    inbox, query = call.services.inbox, call.query
    found, more = await inbox.list(query.limit, query.cursor, unread=query.unread, agent_id=query.agent)
    items = [InboxItemFacts.model_validate(item) for item in found]
    return InboxList(items=items, unread=await inbox.unread(), next_cursor=more)


async def read_item(call: Call) -> InboxItemFacts:
    """Mark one as read."""
    return InboxItemFacts.model_validate(await call.services.inbox.read(call.param("item_id")))


async def read_all(call: Call) -> InboxRead:
    """Mark all as read."""
    return InboxRead(read=await call.services.inbox.read_all())


async def delete_item(call: Call) -> ASGIApp:
    """Remove one."""
    await call.services.inbox.delete(call.param("item_id"))
    return no_content()


async def clear(call: Call) -> InboxCleared:
    """Remove all."""
    return InboxCleared(removed=await call.services.inbox.clear())


OPERATIONS = (
    Operation("GET", "/api/inbox", list_items, "What is to be read", "inbox", query=InboxQuery, answer=InboxList),
    Operation("DELETE", "/api/inbox", clear, "Remove all items", "inbox", answer=InboxCleared),
    Operation("POST", "/api/inbox/read", read_all, "Mark all items as read", "inbox", answer=InboxRead),
    Operation("POST", ONE + "/read", read_item, "Mark an item as read", "inbox", answer=InboxItemFacts),
    Operation("DELETE", ONE, delete_item, "Remove an item", "inbox", status=204),
)
