"""The command tree."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from qworkspace import __version__
from qworkspace.cli import admin, agents, approvals, inbox, memory, models, sessions, status
from qworkspace.cli.chat import chat
from qworkspace.cli.doctor import doctor
from qworkspace.cli.output import HomeOption, note
from qworkspace.cli.up import UpOptions, run_up
from qworkspace.errors import QworkspaceError


def run(arguments: list[str]) -> int:
    """Run one command; its exit code: 0 done, 1 failed, 2 wrong usage."""
    try:
        build()(args=arguments, prog_name="qworkspace")
    except QworkspaceError as error:
        note(f"error: {error.message}")
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has gone; nothing more to say
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def build() -> typer.Typer:
    """All commands. Each module adds its own."""
    app = typer.Typer(
        name="qworkspace",
        help="A personal-assistant daemon: agents that live in directories of plain files.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command()(up)
    admin.add_to(app)
    status.add_to(app)
    app.command()(doctor)
    app.command()(chat)
    agents.add_to(app)
    sessions.add_to(app)
    models.add_to(app)
    approvals.add_to(app)
    inbox.add_to(app)
    memory.add_to(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the program itself."""


def up(
    home: HomeOption = "",
    host: Annotated[str, typer.Option(help="Address to listen on; default from config.json.")] = "",
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the console in the browser.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON lines.")] = False,
) -> None:
    """Run the daemon in the foreground; the first run makes the home."""
    raise typer.Exit(run_up(UpOptions(home, host, port, open_browser, log_json)))
