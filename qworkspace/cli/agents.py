"""`qworkspace agents …`: with the daemon when it runs, on the files otherwise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from qworkspace.cli import reloads
from qworkspace.cli.client import DaemonClient, daemon_address
from qworkspace.cli.output import HomeOption, JsonOption, print_json, print_table, print_text
from qworkspace.cli.up import home_directory
from qworkspace.config.store import ConfigStore
from qworkspace.errors import Conflict, QworkspaceError

AgentArgument = Annotated[str, typer.Argument(metavar="ID", help="The agent's id.")]
PAGE = 200


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="The agents.", no_args_is_help=True)
    group.command("list")(list_agents)
    group.command("show")(show)
    group.command("create")(create)
    group.command("enable")(enable)
    group.command("disable")(disable)
    group.command("delete")(delete)
    reloads.add_to(group)
    app.add_typer(group, name="agents")


def list_agents(home: HomeOption = "", as_json: JsonOption = False) -> None:
    """All agents, with their state when the daemon runs."""
    directory = home_directory(home)
    agents = _from_files(directory) if daemon_address(directory) is None else _from_daemon(directory)
    if as_json:
        print_json({"agents": agents})
        return
    headings = ("id", "name", "state", "model", "active", "description")
    print_table(headings, ([agent.get(key) for key in headings] for agent in agents))


def show(agent: AgentArgument, home: HomeOption = "", as_json: JsonOption = False) -> None:
    """One agent: where it lives, its state, and its agent.json."""
    directory = home_directory(home)
    store = _store(directory)
    raw, version = store.raw_agent(agent)
    running = daemon_address(directory) is not None
    facts = _of_daemon(directory, agent) if running else _facts(store, agent)
    if as_json:
        print_json({**facts, "version": version, "config": raw})
        return
    for key in ("id", "name", "state", "model", "workspace_dir"):
        print_text(f"{key:<14} {facts.get(key) or ''}")
    print_json(raw)


def create(
    agent: AgentArgument,
    template: Annotated[str, typer.Option(help="The template to begin with.")] = "default",
    copy: Annotated[str, typer.Option(metavar="ID", help="Begin with another agent's persona and settings.")] = "",
    name: Annotated[str, typer.Option(help="Its name for people.")] = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make an agent from a template or as a copy."""
    directory = home_directory(home)
    if daemon_address(directory) is None:
        _store(directory).create_agent(agent, template, name=name or None, copy_of=copy or None)
    else:
        origin = {"copy": copy} if copy else {"template": template}
        with DaemonClient(directory) as client:
            client.post("/api/agents", {"id": agent, "name": name, **origin})
    place = str(_store(directory).agent_dir(agent))
    print_json({"id": agent, "workspace_dir": place}) if as_json else print(f"made {agent}: {place}")


def enable(agent: AgentArgument, home: HomeOption = "") -> None:
    """Let the agent work again."""
    _set_enabled(home, agent, True)


def disable(agent: AgentArgument, home: HomeOption = "") -> None:
    """Refuse new turns of the agent; running ones finish."""
    _set_enabled(home, agent, False)


def delete(
    agent: AgentArgument,
    files: Annotated[bool, typer.Option("--files", help="Remove its directory too, with all it remembers.")] = False,
    home: HomeOption = "",
) -> None:
    """Take the agent out of the configuration; its directory stays unless asked."""
    directory = home_directory(home)
    store = _store(directory)
    place = store.agent_dir(agent)
    if daemon_address(directory) is None:
        if files and not place.is_relative_to(directory):
            raise Conflict(f"{place} lies outside of the home; remove it yourself")
        store.delete_agent(agent)
        if files and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
    else:
        with DaemonClient(directory) as client:
            client.request("DELETE", f"/api/agents/{agent}", query={"files": "true"} if files else None)
    print(f"deleted {agent}" + ("" if files else f"; its files stay in {place}"))


def _set_enabled(home: str, agent: str, enabled: bool) -> None:
    directory = home_directory(home)
    if daemon_address(directory) is None:
        _store(directory).set_enabled(agent, enabled)
    else:
        with DaemonClient(directory) as client:
            client.request("PATCH", f"/api/agents/{agent}", body={"enabled": enabled})
    print(f"{agent} is {'enabled' if enabled else 'disabled'}")


def _from_daemon(home: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with DaemonClient(home) as client:
        cursor = None
        while True:
            page = client.get("/api/agents", limit=PAGE, cursor=cursor)
            found += page["agents"]
            cursor = page.get("next_cursor")
            if not cursor:
                return found


def _of_daemon(home: Path, agent: str) -> dict[str, Any]:
    with DaemonClient(home) as client:
        return dict(client.get(f"/api/agents/{agent}"))


def _from_files(home: Path) -> list[dict[str, Any]]:
    store = _store(home)
    return [_facts(store, agent) for agent in store.agent_ids(disabled=True)]


def _facts(store: ConfigStore, agent: str) -> dict[str, Any]:
    """What the files say; a broken agent.json is part of it, not the end of the list."""
    profile = store.profile(agent)
    home = store.load_home()
    facts: dict[str, Any] = {
        "id": agent,
        "enabled": profile.enabled,
        "state": "not running" if profile.enabled else "disabled",
        "active": agent == home.agents.active_agent,
        "workspace_dir": str(store.agent_dir(agent)),
    }
    try:
        config = store.load_agent(agent, disabled=True)
    except QworkspaceError as error:
        return facts | {"state": "invalid", "description": error.message}
    model = config.model or home.default_model
    return facts | {"name": config.name, "description": config.description, "model": str(model) if model else None}


def _store(home: Path) -> ConfigStore:
    return ConfigStore(home, environ=os.environ)
