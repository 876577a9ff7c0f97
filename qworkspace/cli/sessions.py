"""`qworkspace sessions …`: conversations, through the daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from qworkspace.base.ids import agent_id, session_id
from qworkspace.cli.client import DaemonClient
from qworkspace.cli.output import HomeOption, JsonOption, local, note, print_json, print_table, print_text

AgentOption = Annotated[str, typer.Option("--agent", "-a", help="Default: the active agent.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
PAGE = 200


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="Conversations.", no_args_is_help=True)
    group.command("list")(list_sessions)
    group.command("show")(show)
    group.command("export")(export)
    group.command("delete")(delete)
    app.add_typer(group, name="sessions")


def list_sessions(
    agent: AgentOption = "",
    query: Annotated[str, typer.Option("--query", "-q", help="Words of the title or of what was said.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="How many, the newest first.")] = 50,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Conversations, the newest first."""
    with DaemonClient(home) as client:
        path = f"/api/agents/{_agent(client, agent)}/sessions"
        page = client.get(path, limit=limit, query=query or None)
    if as_json:
        print_json(page)
        return
    headings = ("id", "title", "messages", "last turn", "updated")
    rows = (
        (one["id"], one["title"], one["message_count"], one.get("last_state"), local(one["updated_at"]))
        for one in page["sessions"]
    )
    print_table(headings, rows)


def show(session: SessionArgument, agent: AgentOption = "", home: HomeOption = "", as_json: JsonOption = False) -> None:
    """What was said in a conversation."""
    with DaemonClient(home) as client:
        name = _agent(client, agent)
        messages = list(_messages(client, name, session))
        about = client.get(f"/api/agents/{name}/sessions/{session_id(session)}")
    if as_json:
        print_json({**about, "messages": messages})
        return
    print_text("\n".join(_readable(about, messages)))


def export(
    session: SessionArgument,
    form: Annotated[str, typer.Option("--format", help="md, or json with everything that is stored.")] = "md",
    agent: AgentOption = "",
    home: HomeOption = "",
) -> None:
    """Print a conversation as Markdown or JSON, to be redirected into a file."""
    if form not in ("md", "json"):
        raise typer.BadParameter("use md or json", param_hint="--format")
    with DaemonClient(home) as client:
        name = _agent(client, agent)
        messages = list(_messages(client, name, session))
        about = client.get(f"/api/agents/{name}/sessions/{session_id(session)}")
    if form == "json":
        print_json({"agent_id": name, "session": about, "messages": messages})
    else:
        print_text(f"# {about['title'] or about['id']}\n")
        print_text("\n".join(_readable(about, messages, heading="## ")))


def delete(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION…", help="The sessions' ids.")],
    agent: AgentOption = "",
    home: HomeOption = "",
) -> None:
    """Stop what runs in the conversations and remove them with all their messages."""
    with DaemonClient(home) as client:
        name = _agent(client, agent)
        for session in sessions:
            client.request("DELETE", f"/api/agents/{name}/sessions/{session_id(session)}")
            note(f"deleted {session}")


def _agent(client: DaemonClient, agent: str) -> str:
    return str(agent_id(agent)) if agent else str(client.get("/api/status")["active_agent"])


def _messages(client: DaemonClient, agent: str, session: str) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        path = f"/api/agents/{agent}/sessions/{session_id(session)}/messages"
        page = client.get(path, limit=PAGE, cursor=cursor)
        yield from page["messages"]
        cursor = page.get("next_cursor")
        if not cursor:
            return


def _readable(about: dict[str, Any], messages: list[dict[str, Any]], *, heading: str = "") -> Iterator[str]:
    for message in messages:
        who = {"user": about.get("user_id") or "you", "assistant": "agent"}.get(message["role"], message["role"])
        state = message.get("status") or ""
        mark = f" ({state})" if state not in ("", "complete", "completed", "ok") else ""
        yield f"{heading}{who}, {local(message['created_at'])}{mark}\n"
        if message["text"]:
            yield f"{message['text']}\n"
        for part in message.get("parts", ()):
            if part["type"] == "tool_call":
                yield f"→ {part['name']} {json.dumps(part['args'], ensure_ascii=False)}\n"
            elif part["type"] == "tool_result":
                yield f"← {part['name']}: {part['text'][:400]}\n"
