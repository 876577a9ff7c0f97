"""`qworkspace memory …`: what an agent remembers: search, read, write, take back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from qworkspace.cli.client import DaemonClient
from qworkspace.cli.output import HomeOption, JsonOption, local, note, print_json, print_table, print_text
from qworkspace.errors import InvalidInput

AgentOption = Annotated[
    str, typer.Option("--agent", "-a", metavar="ID", help="The agent; default the active one of config.json.")
]
PAGE = 200
SNIPPET = 300


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="What an agent remembers: notes, search, history.", no_args_is_help=True)
    group.command("search")(search)
    group.command("show")(show)
    group.command("write")(write)
    group.command("status")(status)
    group.command("reindex")(reindex)
    group.command("retry")(retry)
    group.command("history")(history)
    group.command("undo")(undo)
    group.command("dream")(dream)
    group.command("import")(import_notes)
    app.add_typer(group, name="memory")


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question, or words.")],
    agent: AgentOption = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="Passages at most.")] = 5,
    prefix: Annotated[str, typer.Option("--prefix", metavar="PATH", help="Only notes that begin so: memory/")] = "",
    since: Annotated[str, typer.Option("--since", metavar="DAY", help="From that day on, YYYY-MM-DD.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="DAY", help="Up to that day.")] = "",
    why: Annotated[bool, typer.Option("--why", help="Show ranks and the parts of each score.")] = False,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """The best passages of the notes, with their places."""
    body = {"query": query, "max_results": limit, "path_prefix": prefix, "since": since or None, "until": until or None}
    with DaemonClient(home) as client:
        found = client.post(f"{_address(client, agent)}/search", body)
    if as_json:
        print_json(found)
        return
    if found["partial"]:
        note(f"not everything was searched: {found['partial']}")
    print_text("\n".join(_passage(hit, why) for hit in found["results"]) if found["results"] else "nothing found")


def show(
    path: Annotated[str, typer.Argument(metavar="[NOTE]", help="A note; without one they are listed.")] = "",
    agent: AgentOption = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """A note, or the list of all."""
    with DaemonClient(home) as client:
        address = _address(client, agent)
        if path:
            found = client.get(f"{address}/files/{quote(path, errors='replace')}")
            print_json(found) if as_json else print_text(found["text"], end="")
            return
        notes = _all(client, f"{address}/files", "files")
    if as_json:
        print_json({"files": notes})
    else:
        rows = ((one["path"], one["section"], one["size"], local(one["modified"])) for one in notes)
        print_table(("note", "section", "bytes", "modified"), rows)


def write(
    text: Annotated[
        str,
        typer.Argument(metavar="[TEXT]", help="What to add, after -- if it begins with a dash; stdin when left out."),
    ] = "",
    path: Annotated[str, typer.Option("--note", metavar="NOTE", help="The note; default the one of today.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the whole note instead of adding.")] = False,
    agent: AgentOption = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add lines to a note, or replace it."""
    text = text or _stdin()
    if replace and not path:
        raise InvalidInput("--replace needs --note: which note is to be replaced?", field="note")
    with DaemonClient(home) as client:
        address = _address(client, agent)
        if replace:
            done = client.request("PUT", f"{address}/files/{quote(path, errors='replace')}", body={"text": text})
        else:
            done = client.post(f"{address}/append", {"text": text, "path": path or None})
    if as_json:
        print_json(done)
        return
    change = done["change"]
    print(f"{done['path']}: " + (f"+{change['added']} -{change['removed']} lines" if change else "nothing to change"))


def reindex(agent: AgentOption = "", home: HomeOption = "", as_json: JsonOption = False) -> None:
    """Build the search index anew, in the background."""
    with DaemonClient(home) as client:
        done = client.post(f"{_address(client, agent)}/reindex")
    print_json(done) if as_json else print(
        f"{done['state']}: {done['pending']} notes wait; see: qworkspace memory status"
    )


def status(agent: AgentOption = "", home: HomeOption = "", as_json: JsonOption = False) -> None:
    """How memory is: notes, passages, what waits, what is wrong."""
    with DaemonClient(home) as client:
        found = client.get(f"{_address(client, agent)}/status")
    if as_json:
        print_json(found)
        return
    for key in ("backend", "state", "files", "chunks", "pending", "embedder"):
        print(f"{key}: {found[key]}")
    for problem in found["problems"]:
        print_text(f"! {problem}")


def retry(
    task: Annotated[str, typer.Argument(metavar="TASK", help="An extraction that was set aside.")],
    agent: AgentOption = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take up an extraction again that has failed too often."""
    with DaemonClient(home) as client:
        done = client.post(f"{_address(client, agent)}/tasks/{quote(task, errors='replace')}/retry")
    print_json(done) if as_json else print(f"{task} waits again; see: qworkspace memory status")


def history(
    path: Annotated[str, typer.Argument(metavar="[NOTE]", help="Only of this note.")] = "",
    change: Annotated[str, typer.Option("--show", metavar="ID", help="One change as a diff.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="How many, the newest first.")] = 20,
    agent: AgentOption = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """What was changed in the notes, and by whom."""
    with DaemonClient(home) as client:
        address = f"{_address(client, agent)}/history"
        if change:
            found = client.get(f"{address}/{quote(change, errors='replace')}")
            print_json(found) if as_json else print_text(found["diff"], end="")
            return
        found = client.request("GET", address, query={"limit": limit} | ({"path": path} if path else {}))
    print_json(found) if as_json else print_table(
        ("id", "at", "by", "note", "what", "lines"), map(_row, found["changes"])
    )


def undo(
    change: Annotated[str, typer.Argument(metavar="[ID]", help="A change or a group; without one the last.")] = "",
    agent: AgentOption = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a change of the notes back: a write, an extraction, a whole dream."""
    with DaemonClient(home) as client:
        done = client.post(f"{_address(client, agent)}/undo", {"id": change or None})
    print_json(done) if as_json else print_table(("note", "lines"), (_row(one)[3::2] for one in done["changes"]))


def dream(agent: AgentOption = "", home: HomeOption = "", as_json: JsonOption = False) -> None:
    """Consolidate the notes that were not consolidated yet, now."""
    with DaemonClient(home) as client:
        done = client.post(f"{_address(client, agent)}/dream")
    if as_json:
        print_json(done)
    elif done["changed"]:
        print_text(f"{done['diff']}\nto take it back: qworkspace memory undo {done['group']}")
    else:
        print_text(f"nothing changed: {done['reason']}")


def import_notes(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="A directory with MEMORY.md, memory/*.md.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    agent: AgentOption = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Merge the notes of another assistant into the agent's; nothing is overwritten."""
    body = {"path": str(source.expanduser().resolve()), "dry_run": dry_run}
    with DaemonClient(home) as client:
        done = client.post(f"{_address(client, agent)}/import", body)
    if as_json:
        print_json(done)
        return
    rows = ((one["source"], one["outcome"], one["target"], one["lines"], one["reason"]) for one in done["files"])
    print_table(("from", "what", "note", "lines", "why"), rows)
    if done["group"]:
        print(f"to take it back: qworkspace memory undo {done['group']}")


def _address(client: DaemonClient, agent: str) -> str:
    name = agent or client.get("/api/agents", limit=1)["active_agent"]
    if not name:
        raise InvalidInput("there is no active agent; name one with --agent", field="agent")
    return f"/api/agents/{quote(name, safe='')}/memory"


def _all(client: DaemonClient, address: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get(address, limit=PAGE, cursor=cursor)
        found += page[key]
        cursor = page["next_cursor"]
        if not cursor:
            return found


def _passage(hit: dict[str, Any], why: bool) -> str:
    text = hit["text"].strip()
    shown = text if len(text) <= SNIPPET else text[:SNIPPET].rstrip() + " …"
    parts = ", ".join(f"{name} {value:.3f}" for name, value in hit["parts"].items() if value)
    ranks = f"  (keywords {hit['bm25_rank'] or '-'}, vectors {hit['vector_rank'] or '-'}; {parts})" if why else ""
    return f"{hit['path']}:{hit['start_line']}-{hit['end_line']}  {hit['score']:.3f}{ranks}\n{shown}\n"


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    lines = f"+{one['added']} -{one['removed']}" + (" (undone)" if one["state"] == "undone" else "")
    return (one["id"], local(one["at"]), one["by"]["kind"], one["path"], one["operation"], lines)


def _stdin() -> str:
    if sys.stdin.isatty():
        raise InvalidInput("say what to add, or pipe it in: qworkspace memory write TEXT", field="text")
    return sys.stdin.buffer.read().decode("utf-8", "replace")
