"""`qworkspace inbox …`: what is to be read, through the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from qworkspace.cli.client import DaemonClient
from qworkspace.cli.output import HomeOption, JsonOption, local, print_json, print_table, print_text
from qworkspace.errors import InvalidInput

PAGE = 200
MARKS = {"error": "✗", "warning": "!", "info": ""}
ItemsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="As `inbox list` shows them.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="What is to be read: results of background work, problems.", no_args_is_help=True)
    group.command("list")(list_items)
    group.command("read")(read)
    group.command("clear")(clear)
    app.add_typer(group, name="inbox")


def list_items(
    unread: Annotated[bool, typer.Option("--unread", "-u", help="Only what nobody has read.")] = False,
    agent: Annotated[str, typer.Option("--agent", "-a", help="Only of this agent.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="How many, the newest first.")] = 50,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """The items, the newest first."""
    with DaemonClient(home) as client:
        page = client.get("/api/inbox", limit=limit, unread="true" if unread else None, agent=agent or None)
    if as_json:
        print_json(page)
        return
    rows = (
        (one["id"], local(one["created_at"]), one["agent_id"], one["kind"], _mark(one), one["title"])
        for one in page["items"]
    )
    print_table(("id", "at", "agent", "kind", "", "title"), rows)


def read(
    items: ItemsArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Mark all as read, and print nothing of them.")] = False,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print items and mark them as read; without ids all that nobody has read."""
    if every and items:
        raise InvalidInput("give ids or --all, not both")
    with DaemonClient(home) as client:
        if every:
            done = client.post("/api/inbox/read")
            print_json(done) if as_json else print(f"{done['read']} marked as read")
            return
        names = items if items else [one["id"] for one in _unread(client)]
        found = [client.post(f"/api/inbox/{name}/read") for name in names]
    if as_json:
        print_json({"items": found})
        return
    print_text("\n".join(_readable(one) for one in found) if found else "nothing new")


def clear(
    items: ItemsArgument = None,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove items; without ids all of them."""
    removed = 0
    with DaemonClient(home) as client:
        if not items:
            removed = client.request("DELETE", "/api/inbox")["removed"]
        for name in items or ():
            client.request("DELETE", f"/api/inbox/{name}")
            removed += 1
    print_json({"removed": removed}) if as_json else print(f"{removed} removed")


def _unread(client: DaemonClient) -> Iterator[dict[str, Any]]:
    """All of them, the oldest first."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get("/api/inbox", limit=PAGE, cursor=cursor, unread="true")
        found += page["items"]
        cursor = page.get("next_cursor")
        if not cursor:
            yield from reversed(found)
            return


def _mark(one: dict[str, Any]) -> str:
    if one.get("settled_at"):
        return "mended"
    return "" if one["read"] else MARKS.get(one["severity"], "") or "new"


def _readable(one: dict[str, Any]) -> str:
    about = ", ".join(part for part in (local(one["created_at"]), one["agent_id"], one["kind"]) if part)
    over = f"\n(over since {local(one['settled_at'])})" if one.get("settled_at") else ""
    return f"{one['title']}\n{about}{over}\n\n{one['body']}\n"
