"""`qworkspace up`: the daemon in the foreground."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from qworkspace.base.lock import HomeLock
from qworkspace.errors import QworkspaceError

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
    """Run the daemon until it is told to stop; its exit code. To restart, this process becomes the next one."""
    lock = HomeLock(home_directory(options.home) / ".daemon" / "lock")
    try:
        lock.acquire(datetime.now(UTC).isoformat(timespec="milliseconds"))
    except QworkspaceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    from qworkspace.daemon import Daemon, DaemonOptions, Way  # half a second, which a refused start does not wait for

    daemon = Daemon(
        DaemonOptions(
            home=home_directory(options.home),
            host=options.host,
            port=options.port,
            open_browser=options.open_browser,
            log_json=options.log_json,
        ),
        lock,
        environ=os.environ,
        terminal=sys.stderr,
    )
    code = daemon.run()
    if code == 0 and daemon.way is Way.RESTART:
        os.execv(sys.executable, again(sys.executable, sys.orig_argv, daemon.port))
    return code


def again(python: str, given: list[str], port: int) -> list[str]:
    """How this process was started, on the port that it has now: the last `--port` counts."""
    same = ["--port", str(port)]
    return [python, *given[1:], *([] if given[-2:] == same else same)]
