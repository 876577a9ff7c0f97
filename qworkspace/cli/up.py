"""`qworkspace up`: the daemon in the foreground."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "QWORKSPACE_HOME"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the command line may say about a start; empty means what the configuration says."""

    home: str = ""
    host: str = ""
    port: int | None = None
    open_browser: bool = False
    log_json: bool = False


def home_directory(given: str | Path | None) -> Path:
    """`--home`, else $QWORKSPACE_HOME, else ~/.qworkspace; absolute."""
    named = str(given or "") or os.environ.get(HOME_VARIABLE, "")
    return Path(named or "~/.qworkspace").expanduser().absolute()


def run_up(options: UpOptions) -> int:
    """Run the daemon until it is told to stop; its exit code."""
    from qworkspace.daemon import Daemon, DaemonOptions  # the other commands do without the server

    daemon = Daemon(
        DaemonOptions(
            home=home_directory(options.home),
            host=options.host,
            port=options.port,
            open_browser=options.open_browser,
            log_json=options.log_json,
        ),
        environ=os.environ,
        terminal=sys.stderr,
    )
    return daemon.run()
