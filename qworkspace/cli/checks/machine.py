"""Checks of the machine: the daemon and its port, limits of the kernel, the clock."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from qworkspace.base.lock import HomeLock, is_held, read_holder
from qworkspace.cli.checks.finding import Finding, Subject, ok, warning, wrong
from qworkspace.config.home import HomeConfig
from qworkspace.errors import QworkspaceError
from qworkspace.server import bind

WATCHES_PER_AGENT = 12
WATCHES_SPARE = 200
FILES_WANTED = 4096
SKEW = timedelta(seconds=60)


def daemon(subject: Subject) -> Iterator[Finding]:
    """Who serves the home, and whether it answers; what a killed daemon left behind."""
    lock = subject.home / ".daemon" / "lock"
    left = read_holder(lock)
    if subject.holder is None:
        if left is not None:
            yield warning(
                "daemon",
                f"no daemon runs; {left} ended without saying so (killed, or the power went)",
                "nothing is lost: the next start marks its turns as interrupted, each can be resumed",
                lambda: _forget(lock),
            )
        else:
            yield ok("daemon", f"no daemon runs; start it with: qworkspace up --home {subject.home}")
        return
    status = _health(subject.holder.address)
    if status:
        yield ok("daemon", f"running ({status}): {subject.holder}; a second one for this home would be refused")
    else:
        yield wrong(
            "daemon",
            f"{subject.holder} holds the home and does not answer",
            f"look at its log (qworkspace logs), then end it: kill {subject.holder.pid}",
        )


def port(subject: Subject) -> Iterator[Finding]:
    """The port is free for the daemon, unless the daemon has it."""
    if subject.holder is not None or (subject.config is None and subject.store.home_file.exists()):
        return
    server = (subject.config or HomeConfig()).server
    try:
        bind(server.host, server.port).close()
    except QworkspaceError as error:
        advice = f"end what holds it, set server.port in {subject.store.home_file}, or use: qworkspace up --port N"
        yield wrong("port", error.message, advice)
        return
    yield ok("port", f"port {server.port} on {server.host} is free")


def watches(subject: Subject) -> Iterator[Finding]:
    """Enough kernel watches are left to notice edits at once."""
    if not sys.platform.startswith("linux"):
        return
    count = len(subject.config.agents.profiles) if subject.config is not None else 1
    needed = WATCHES_SPARE + WATCHES_PER_AGENT * count
    allowed = _kernel("max_user_watches")
    advice = "edits are then noticed by polling every 2 s. More: sysctl fs.inotify.{}={}"
    if not _can_watch():
        now = _kernel("max_user_instances")
        message = f"no further inotify instance can be made ({now} per user, all in use)"
        yield warning("watches", message, advice.format("max_user_instances", 2 * (now or 128)))
    elif allowed is not None and allowed < needed:
        message = f"{allowed} files and directories may be watched, {needed} may be needed for {count} agents"
        yield warning("watches", message, advice.format("max_user_watches", max(65_536, 2 * needed)))
    elif allowed is not None:
        yield ok("watches", f"{allowed} kernel watches allowed, about {needed} needed")


def open_files(subject: Subject) -> Iterator[Finding]:
    """Enough files may be open at once."""
    if os.name != "posix":
        return
    import resource  # POSIX only

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= FILES_WANTED:
        yield ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}")
        return
    yield warning(
        "open files",
        f"at most {hard} files may be open at once; about {hard // 4} agents can run together",
        f"raise the hard limit to {FILES_WANTED} or more (ulimit -Hn, LimitNOFILE= of a service)",
    )


def clock(subject: Subject) -> Iterator[Finding]:
    """The clock has not gone back behind what the home's files know. A provider's clock is compared elsewhere."""
    ahead = max((_modified(path) for path in _newest(subject.home)), default=0.0) - time.time()
    if ahead > SKEW.total_seconds():
        yield wrong(
            "clock",
            f"files in {subject.home} are {timedelta(seconds=round(ahead))} newer than now: the clock went back",
            "set the clock (timedatectl set-ntp true); sessions and jobs are ordered by it",
        )
    if datetime.now(UTC).year < 2025:
        yield wrong("clock", f"the clock says {datetime.now(UTC):%Y-%m-%d}", "set it: timedatectl set-ntp true")


def _newest(home: Path) -> list[Path]:
    names = (".daemon", ".daemon/home.db", ".daemon/home.db-wal", ".daemon/log/qworkspace.log", "config.json")
    return [home / name for name in names]


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _health(address: str) -> str:
    """What /healthz says, empty when it does not."""
    if not address:
        return ""
    try:
        return str(httpx.get(f"{address}/healthz", timeout=5, trust_env=False).json()["status"])
    except (httpx.HTTPError, ValueError, KeyError):
        return ""


def _forget(lock: Path) -> str:
    if not is_held(lock):
        held = HomeLock(lock)
        held.acquire("")
        held.release()
    return "forgot the daemon that ended"


def _kernel(name: str) -> int | None:
    try:
        return int(Path(f"/proc/sys/fs/inotify/{name}").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _can_watch() -> bool:
    """Whether the kernel gives this user one more inotify instance."""
    try:
        made = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    except (OSError, AttributeError):
        return True
    if made < 0:
        return ctypes.get_errno() not in (errno.EMFILE, errno.ENFILE)
    os.close(made)
    return True
