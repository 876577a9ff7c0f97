"""The entry point. `up` in its plain form goes straight to the daemon; everything else through the command tree."""

from __future__ import annotations

import sys

from qworkspace.cli.up import UpOptions, run_up

_VALUES = {"--home": "home", "--host": "host", "--port": "port"}
_FLAGS = {"--open": "open_browser", "--log-json": "log_json"}


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code: 0 done, 1 failed, 2 wrong usage."""
    given = sys.argv[1:] if arguments is None else arguments
    options = plain_up(given)
    if options is not None:
        sys.exit(run_up(options))

    from qworkspace.cli.app import run  # typer and rich cost 150 ms, which the daemon's start does not pay

    sys.exit(run(given))


def plain_up(arguments: list[str]) -> UpOptions | None:
    """The options of a well-formed `up …`; None for anything else, for help, and for what needs an explanation."""
    if arguments[:1] != ["up"]:
        return None
    found: dict[str, str | int | bool] = {}
    rest = arguments[1:]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in _FLAGS and not equals:
            found[_FLAGS[name]] = True
        elif name in _VALUES and (equals or rest):
            found[_VALUES[name]] = value if equals else rest.pop(0)
        else:
            return None
    port = found.get("port")
    if isinstance(port, str) and not (port.isdecimal() and int(port) < 65_536):
        return None
    return UpOptions(
        home=str(found.get("home", "")),
        host=str(found.get("host", "")),
        port=int(port) if port is not None else None,
        open_browser=bool(found.get("open_browser")),
        log_json=bool(found.get("log_json")),
    )
