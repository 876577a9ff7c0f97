"""`qworkspace approvals …`: what agents ask before they do it."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from qworkspace.cli.client import DaemonClient
from qworkspace.cli.conversation import whole
from qworkspace.cli.output import HomeOption, JsonOption, local, print_json, print_table, print_text

LISTED = 80


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="What agents ask before they do it.", no_args_is_help=True)
    group.command("list")(list_approvals)
    group.command("show")(show)
    group.command("answer")(answer)
    app.add_typer(group, name="approvals")


def list_approvals(
    every: Annotated[bool, typer.Option("--all", help="Answered and expired ones too.")] = False,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """What waits for an answer."""
    with DaemonClient(home) as client:
        page = client.get("/api/approvals", state="all" if every else "pending")
    if as_json:
        print_json(page)
        return
    rows = (
        (
            one["id"],
            one["agent_id"],
            one["tool"],
            shortened(json.dumps(one["args"], ensure_ascii=False)),
            one["state"],
            local(one.get("expires_at")),
        )
        for one in page["approvals"]
    )
    print_table(("id", "agent", "tool", "arguments", "state", "until"), rows)


def show(
    approval: Annotated[str, typer.Argument(metavar="ID", help="As `approvals list` shows it.")],
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """What is asked, in full."""
    with DaemonClient(home) as client:
        one = client.get(f"/api/approvals/{approval}")
    if as_json:
        print_json(one)
        return
    came = f"{one['source']} {one['user_id']}".strip()
    print_text(f"{one['agent_id']} asks for {one['tool']} in session {one['session_id']} (from {came}): {one['state']}")
    print_text(f"because: {one['reason']}")
    for line in whole(one["args"]):
        print_text(line)


def shortened(text: str) -> str:
    """The beginning of a long text, marked as such."""
    return text if len(text) <= LISTED else f"{text[:LISTED]}…"


def answer(
    approval: Annotated[str, typer.Argument(metavar="ID", help="As `approvals list` shows it.")],
    decision: Annotated[Literal["allow", "deny"], typer.Argument(help="allow or deny.")],
    remember: Annotated[bool, typer.Option("--remember", help="Allow this from now on without asking.")] = False,
    home: HomeOption = "",
) -> None:
    """Allow or refuse; an interrupted turn goes on with the answer."""
    with DaemonClient(home) as client:
        client.post(f"/api/approvals/{approval}", {"decision": decision, "remember": remember})
    print("done")
