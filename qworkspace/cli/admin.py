"""Commands about the daemon as a whole: init, stop, restart, console, token, logs."""

from __future__ import annotations

import json
import os
import signal
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from qworkspace.base.lock import Holder, is_held, read_holder
from qworkspace.cli.client import DaemonClient, NoDaemon, daemon_address
from qworkspace.cli.output import HomeOption, JsonOption, note, print_json, print_text
from qworkspace.cli.up import home_directory
from qworkspace.config.secrets import Secrets
from qworkspace.config.store import ConfigStore
from qworkspace.config.suggest import suggestions_for
from qworkspace.config.templates import template_names
from qworkspace.errors import Unavailable
from qworkspace.logs import as_text

STOP_SECONDS = 30.0
TAIL_BYTES = 200_000


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(init)
    app.command()(stop)
    app.command()(restart)
    app.command()(console)
    app.command()(logs)
    token = typer.Typer(help="The access token of the home.", no_args_is_help=True)
    token.command("show")(show_token)
    token.command("rotate")(rotate_token)
    app.add_typer(token, name="token")


def init(
    template: Annotated[str, typer.Option(help="The default agent's template.")] = "default",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make config.json and a default agent; never overwrites."""
    store = ConfigStore(home_directory(home), environ=os.environ)
    written = store.init_home(template)
    suggestions = suggestions_for(os.environ, store.load_home().providers)
    if as_json:
        found = [{"name": one.name, "title": one.title, "provider": one.provider()} for one in suggestions]
        print_json({"home": str(store.home), "written": written, "suggestions": found})
        return
    print(f"{'Made' if written else 'Already there:'} {store.home}")
    if written:
        print(f"Templates to choose from with --template: {', '.join(template_names())}")
    for one in suggestions:
        entry = {one.name: one.provider()}
        print(f"\n{one.title} can be used ({one.why}). Put this into `providers` of config.json:")
        print(json.dumps(entry, indent=2))
    print(f"\nNext: qworkspace up --home {store.home}")


def stop(home: HomeOption = "") -> None:
    """End the daemon: running turns get ten seconds."""
    directory = home_directory(home)
    holder = _holder(directory)
    os.kill(holder.pid, signal.SIGTERM)
    if not _ends_within(directory, STOP_SECONDS):
        raise Unavailable(f"the daemon ({holder}) is still ending after {STOP_SECONDS:.0f} s; see: qworkspace logs")
    print("stopped")


def restart(home: HomeOption = "") -> None:
    """End the daemon as `stop` does and start it again: same terminal, same address."""
    if not hasattr(signal, "SIGUSR1"):
        raise Unavailable("restarting needs POSIX signals; use `qworkspace stop`, then `qworkspace up`")
    directory = home_directory(home)
    before = _holder(directory)
    os.kill(before.pid, signal.SIGUSR1)
    end = time.monotonic() + STOP_SECONDS + 10
    while time.monotonic() < end:
        now = read_holder(directory / ".daemon" / "lock")
        if now is not None and now.since != before.since and now.address:
            print(f"restarted: {now}")
            return
        time.sleep(0.1)
    raise Unavailable("the daemon did not come back; see: qworkspace logs")


def console(
    home: HomeOption = "",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Open the console: prints a link that pairs one browser, once, within ten minutes."""
    with DaemonClient(home) as client:
        pairing = client.post("/api/pairing")
    if as_json:
        print_json(pairing)
        return
    print(pairing["link"])
    if open_browser and not webbrowser.open(pairing["link"]):
        note("no browser found here; open the link yourself")


def show_token(home: HomeOption = "", as_json: JsonOption = False) -> None:
    """Print the access token."""
    token = Secrets(home_directory(home) / "secrets.json", environ=os.environ).token()
    print_json({"token": token}) if as_json else print(token)


def rotate_token(
    home: HomeOption = "",
    browsers: Annotated[bool, typer.Option("--browsers", help="Unpair all browsers too.")] = False,
) -> None:
    """Make a new access token; the old one opens nothing from now on."""
    directory = home_directory(home)
    if daemon_address(directory) is None:
        Secrets(directory / "secrets.json", environ=os.environ).rotate_token()
    else:
        with DaemonClient(directory) as client:
            client.post("/api/token/rotate", {"revoke_browsers": browsers})
    print("done; see it with: qworkspace token show")


def logs(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many to begin with.")] = 50,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the daemon's log; works without the daemon."""
    path = home_directory(home) / ".daemon" / "log" / "qworkspace.log"
    for line in _tail(path, lines):
        _print_line(line, as_json=as_json)
    try:
        for line in _coming(path) if follow else ():
            _print_line(line, as_json=as_json)
    except KeyboardInterrupt:
        return


def _holder(home: Path) -> Holder:
    lock = home / ".daemon" / "lock"
    holder = read_holder(lock) if is_held(lock) else None
    if holder is None:
        raise NoDaemon(home)
    return holder


def _ends_within(home: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_held(home / ".daemon" / "lock"):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _tail(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            found = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        note(f"no log yet: {path}")
        return []
    return found[-lines:] if lines else []


def _coming(path: Path) -> Iterator[str]:
    """Lines as they are written, through rotations."""
    position = path.stat().st_size if path.exists() else 0
    rest = ""
    while True:
        size = path.stat().st_size if path.exists() else 0
        position = 0 if size < position else position
        if size > position:
            with path.open("rb") as file:
                file.seek(position)
                rest += file.read().decode("utf-8", "replace")
                position = file.tell()
            *whole, rest = rest.split("\n")
            yield from whole
        time.sleep(0.3)


def _print_line(line: str, *, as_json: bool) -> None:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    print_text(as_text(fields) if isinstance(fields, dict) and not as_json else line)
