"""`qworkspace status`: what is going on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import typer

from qworkspace.cli.client import DaemonClient, NoDaemon
from qworkspace.cli.output import HomeOption, JsonOption, print_json, print_table, print_text

AGENTS_SHOWN = 30


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(status)


def status(home: HomeOption = "", as_json: JsonOption = False) -> None:
    """What is going on: the daemon, its agents, and what is wrong. Exits 1 when no daemon runs."""
    with DaemonClient(home) as client:
        try:
            found = client.get("/api/status")
        except NoDaemon as error:
            if as_json:
                print_json({"status": "not running", "home": str(client.home), "message": error.message})
            else:
                print(f"not running: {error.message}")
            raise typer.Exit(1) from None
    if as_json:
        print_json(found)
        return
    _show(found)


def _show(found: dict[str, Any]) -> None:
    up = timedelta(seconds=round(found["uptime_seconds"]))
    print(f"qworkspace {found['version']}: {found['status']}, up {up}, home {found['home']}")
    print(f"edits are noticed by: {found.get('watch_mode') or 'unknown'}\n")
    agents = sorted(found["agents"], key=lambda agent: (agent["state"] == "dormant", agent["id"]))
    rows = (
        (one["id"], one["state"], one["active_turns"], one["queued_turns"], len(one["problems"]))
        for one in agents[:AGENTS_SHOWN]
    )
    print_table(("agent", "state", "running", "waiting", "problems"), rows)
    if len(agents) > AGENTS_SHOWN:
        print(f"… and {len(agents) - AGENTS_SHOWN} more")
    for one in agents:
        if one.get("edits_waiting"):
            print(
                f"\n! {one['id']}: edits wait until one of {len(one['retired'])} replaced instances has ended", end=""
            )
    for problem in found["problems"]:
        mark = "✗" if problem["severity"] == "error" else "!"
        print_text(f"\n{mark} {problem.get('message', '')}", end="")
    print()
