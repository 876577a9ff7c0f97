"""`qworkspace agents plan|reload|history`: what an edit would do, do it now, and what became of the earlier ones."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from qworkspace.cli.client import DaemonClient, daemon_address
from qworkspace.cli.output import HomeOption, JsonOption, local, note, print_json, print_table
from qworkspace.cli.up import home_directory
from qworkspace.config.effects import BUILT_IN
from qworkspace.config.models import AgentConfig
from qworkspace.config.plan import plan as plan_of
from qworkspace.config.store import ConfigStore
from qworkspace.errors import InvalidConfig, InvalidInput

AgentArgument = Annotated[str, typer.Argument(metavar="ID", help="The agent's id.")]
GOOD = frozenset({"applied", "live", "nothing", "waiting"})
WORDS = {
    "applied": "a new instance acts",
    "live": "it counts from the next turn on",
    "nothing": "nothing had to change",
    "waiting": "it waits: too many replaced instances still have turns",
    "failed": "nothing has changed",
    "rolled_back": "the earlier instance acts again",
}
PATCH_TYPE = "application/merge-patch+json"
PAGE = 200


def add_to(group: typer.Typer) -> None:
    """Add these commands to `agents`."""
    group.command("plan")(plan)
    group.command("reload")(reload)
    group.command("history")(history)


def plan(
    agent: AgentArgument,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="The new agent.json; - reads stdin.")],
    patch: Annotated[bool, typer.Option("--patch", help="FILE is a merge patch: it changes its keys only.")] = False,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """What a new agent.json would do; nothing is applied. Without the daemon it is compared with the file on disk."""
    directory = home_directory(home)
    text, name = _read(file)
    if daemon_address(directory) is None:
        note("no daemon is running: compared with the agent.json on disk")
        found = _of_files(directory, agent, text, patch=patch, name=name)
    else:
        kind = PATCH_TYPE if patch else "application/json"
        with DaemonClient(directory) as client:
            found = client.send_text("POST", f"/api/agents/{agent}/plan", text, kind=kind, query={"name": name})
    print_json(found) if as_json else _show_plan(found)


def reload(agent: AgentArgument, home: HomeOption = "", as_json: JsonOption = False) -> None:
    """Apply the agent's files now. Exits 1 when they cannot be applied; the agent then goes on as before."""
    with DaemonClient(home) as client:
        done = client.post(f"/api/agents/{agent}/reload")
    if as_json:
        print_json(done)
    else:
        print(f"{done['outcome']}: {WORDS.get(done['outcome'], '')}")
        _show_services(done)
        if done.get("error"):
            print(f"error: {done['error'].get('message', '')}")
    if done["outcome"] not in GOOD:
        raise typer.Exit(1)


def history(
    agent: AgentArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="How many, the newest first.")] = 20,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """The agent's reloads, the newest first."""
    with DaemonClient(home) as client:
        page = client.get(f"/api/agents/{agent}/reloads", limit=limit)
    if as_json:
        print_json(page)
        return
    headings = ("at", "generation", "outcome", "trigger", "changed", "rebuilt", "build ms", "swap ms", "error")
    print_table(headings, (_row(one) for one in page["reloads"]))


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    timings = one["timings"]
    return (
        local(one["at"]),
        one["generation"],
        one["outcome"],
        one["trigger"],
        _short(one["changed"]),
        _short(one["rebuilt"]),
        timings["build_ms"],
        timings["swap_ms"],
        (one.get("error") or {}).get("message"),
    )


def _short(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read(file: str) -> tuple[str, str]:
    """The text and what errors call it."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
        return data.decode("utf-8-sig"), "stdin" if file == "-" else Path(file).name
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", field="file") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 (byte {error.start})", field="file") from None


def _of_files(home: Path, agent: str, text: str, *, patch: bool, name: str) -> dict[str, Any]:
    store = ConfigStore(home, environ=os.environ)
    new = store.propose_agent(agent, text, patch=patch, name=name)
    change = plan_of(_present(store, agent).sections(), new.config.sections(), BUILT_IN, BUILT_IN)
    problems = [{"path": key.path, "message": key.message, "near": key.near} for key in new.unknown_keys()]
    return {"kind": change.kind, **asdict(change), "problems": problems}


def _present(store: ConfigStore, agent: str) -> AgentConfig:
    """What is on disk; the defaults while that is broken."""
    try:
        return store.load_agent(agent, disabled=True)
    except InvalidConfig:
        return AgentConfig(id=agent)


def _show_plan(found: dict[str, Any]) -> None:
    kinds = {
        "nothing": "nothing would change",
        "live": "it would count from the next turn on, without a new instance",
        "reload": "a new instance would be built and swapped in",
    }
    print(kinds.get(found["kind"], found["kind"]))
    _show_services(found)
    for problem in found["problems"]:
        print(f"! {problem['message']}")


def _show_services(found: dict[str, Any]) -> None:
    for key in ("changed", "rebuilt", "added", "removed", "moved", "live", "restart"):
        if found.get(key):
            print(f"{key:<9} {', '.join(found[key])}")
