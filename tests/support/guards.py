"""What the suite watches by itself: leftovers, a blocked event loop, the real network, the real home.

A test that leaves a task, thread, process, file or socket behind fails, as does one in which a callback of the event
loop uses more than 50 ms of CPU or calls `time.sleep`. What lives in a fixture of wider scope than one test (a daemon
shared by a module) is judged when that fixture has ended.
"""

from __future__ import annotations

import asyncio
import asyncio.runners
import gc
import ipaddress
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

BLOCKED_SECONDS = 0.05
SAMPLE_STEPS = 60_000
SAMPLE_SECONDS = 0.003  # that many steps take so long on a machine that has nothing else to do
GRACE_SECONDS = 10.0
HANGING_SECONDS = 60.0
_IGNORED_FILES = ("/dev/urandom", "/dev/null", "/proc/", "/sys/", "anon_inode:[pidfd]", "/memfd:")
_SECRETS = ("_API_KEY", "_TOKEN", "QWORKSPACE_", "OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_", "OLLAMA_")

_SETTINGS = (
    "QWORKSPACE_FRESH",
    "QWORKSPACE_KILLS",
    "QWORKSPACE_SECONDS",
    "QWORKSPACE_REQUIRE_POSTGRES",
)  # of the suite itself


class RealNetwork(RuntimeError):
    """A test tried to reach something that is not on the loopback."""


@dataclass
class Leftovers:
    """What a process holds at a moment, comparable with a later moment."""

    threads: set[int] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    files: Counter[str] = field(default_factory=Counter)

    @classmethod
    def now(cls) -> Leftovers:
        threads = {thread.ident or 0 for thread in threading.enumerate()}
        return cls(threads, {child.pid for child in _children()}, _open_files())

    def since(self, before: Leftovers) -> list[str]:
        """What is here now and was not then, as text."""
        found = [f"thread {t.name}" for t in threading.enumerate() if t.ident not in before.threads and _counts(t)]
        found += [f"process {_describe(child)}" for child in _children() if child.pid not in before.processes]
        found += [f"open {name} ({count} more)" for name, count in (_kinds(self.files) - _kinds(before.files)).items()]
        return found


def _counts(thread: threading.Thread) -> bool:
    return thread.is_alive() and not thread.name.startswith(("pytest_timeout", "Playwright"))


def _children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if _alive(p)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.ppid() == os.getpid()
    except psutil.NoSuchProcess:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]!r} ({process.status()})"
    except psutil.NoSuchProcess:
        return str(process.pid)


def _open_files() -> Counter[str]:
    """The targets of this process' descriptors; empty where the system does not tell."""
    found: Counter[str] = Counter()
    if not sys.platform.startswith("linux"):
        return found
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if not target.startswith(_IGNORED_FILES):
            found[target] += 1
    return found


def _kinds(files: Counter[str]) -> Counter[str]:
    """Sockets and pipes have a number in their names: only how many there are can be compared."""
    kinds: Counter[str] = Counter()
    for name, count in files.items():
        kinds[name.partition(":")[0] if name.startswith(("socket:", "pipe:")) else name] += count
    return kinds


class Guards:
    """The pytest plugin; `tests/conftest.py` registers one."""

    def __init__(self) -> None:
        self._before: Leftovers | None = None
        self._where = ""
        self._complaints: list[str] = []
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Watch this process until `stop`."""
        for name in [name for name in os.environ if name.startswith(_SECRETS) or name.endswith(_SECRETS)]:
            if name not in _SETTINGS:
                del os.environ[name]
        self._replace(asyncio.runners, "_cancel_all_tasks", self._report_tasks(asyncio.runners._cancel_all_tasks))  # type: ignore[attr-defined]
        self._replace(socket.socket, "connect", _loopback_only(socket.socket.connect, self._complaints))
        self._replace(socket.socket, "connect_ex", _loopback_only(socket.socket.connect_ex, self._complaints))
        self._replace(socket, "getaddrinfo", _loopback_names(socket.getaddrinfo))

    def stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, original))

    def _report_tasks(self, cancel_all: Callable[[asyncio.AbstractEventLoop], None]) -> Callable[..., None]:
        """A runner cancels what still runs when it closes; whatever that is was left behind."""

        def report(loop: asyncio.AbstractEventLoop) -> None:
            self._complaints.extend(f"task {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(loop))
            cancel_all(loop)

        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        where = item.nodeid.partition("::")[0]
        if self._before is None or not _shares_fixtures(item) or where != self._where:
            self._before = Leftovers.now()
            self._where = where
        self._complaints.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        if "/unit/" not in item.nodeid or item.get_closest_marker("may_block"):
            return (yield)
        with _watched_loop(self._complaints):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        if hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            # After a timeout of the call nothing else would end a fixture that hangs: pytest-timeout's handler does.
            signal.setitimer(signal.ITIMER_REAL, HANGING_SECONDS if _has_alarm() else 0)
        result = yield
        before = self._before or Leftovers.now()
        last = nextitem is None or nextitem.nodeid.partition("::")[0] != self._where
        found = self._complaints if _shares_fixtures(item) and not last else [*self._complaints, *_settled(before)]
        if found:
            self._before = None
            pytest.fail("left behind or not allowed:\n  " + "\n  ".join(dict.fromkeys(found)), pytrace=False)
        return result


def _has_alarm() -> bool:
    return callable(signal.getsignal(signal.SIGALRM))


def _shares_fixtures(item: pytest.Item) -> bool:
    """Whether one of the project's own fixtures outlives this test."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = [d for many in info.name2fixturedefs.values() for d in many] if info is not None else []
    return any(d.scope != "function" and str(d.baseid).startswith("tests") for d in definitions)


def _settled(before: Leftovers) -> list[str]:
    """What is left once everything that is ending has had the time to end."""
    deadline = time.monotonic() + GRACE_SECONDS
    found = Leftovers.now().since(before)
    if found:
        gc.collect()
    while found and time.monotonic() < deadline:
        time.sleep(0.02)
        found = Leftovers.now().since(before)
    return found


class _watched_loop:
    """While entered, each callback of any event loop is timed, and `time.sleep` inside of one is refused."""

    def __init__(self, complaints: list[str]) -> None:
        self._complaints = complaints
        self._collecting = _Collecting()
        self._run = asyncio.events.Handle._run
        self._sleep = time.sleep

    def __enter__(self) -> None:
        run, sleep, complaints, collecting = self._run, self._sleep, self._complaints, self._collecting
        gc.callbacks.append(collecting)

        def timed(handle: Any) -> None:
            modules, collected, began = len(sys.modules), collecting.seconds, time.thread_time()
            run(handle)
            used = time.thread_time() - began - (collecting.seconds - collected)
            # An import is paid once per process and would be blamed on whichever test comes first.
            if used > BLOCKED_SECONDS and len(sys.modules) == modules and used > BLOCKED_SECONDS * _slowness():
                complaints.append(f"the event loop was blocked for {used * 1000:.0f} ms of CPU by {handle!r}")

        def refused(seconds: float) -> None:
            if asyncio._get_running_loop() is not None:
                complaints.append(f"time.sleep({seconds!r}) inside the event loop")
            sleep(seconds)

        self._replace(timed, refused)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collecting)
        self._replace(self._run, self._sleep)

    @staticmethod
    def _replace(run: Any, sleep: Any) -> None:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        time.sleep = sleep


class _Collecting:
    """CPU seconds of the garbage collector, which comes when it likes and is nobody's callback."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


def _slowness() -> float:
    """How much longer computing takes at the moment than on an idle machine: a busy neighbour on the same core."""
    longest = 0.0
    for _ in range(3):
        began, total = time.thread_time(), 0
        for step in range(SAMPLE_STEPS):
            total += step * step
        longest = max(longest, time.thread_time() - began)
    return max(1.0, longest / SAMPLE_SECONDS)


def _loopback_only(connect: Callable[..., Any], complaints: list[str]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(str(address[0])):
            complaints.append(f"connecting to {address!r}")
            raise RealNetwork(f"tests stay on the loopback; this one wanted {address!r}")
        return connect(self, address)

    return guarded


def _loopback_names(getaddrinfo: Callable[..., Any]) -> Callable[..., Any]:
    """Names do not exist, except the loopback's: no test depends on a name server."""

    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and not _is_address(name) and name != "localhost" and not name.endswith(".localhost"):
            raise socket.gaierror(socket.EAI_NONAME, f"Name or service not known (in tests): {name!r}")
        return getaddrinfo(host, *args, **kwargs)

    return guarded


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host.partition("%")[0]).is_loopback)


def use_home(directory: Path) -> None:
    """Point the person's home directory at `directory`: no test touches a real one."""
    os.environ["HOME"] = str(directory)
    os.environ["USERPROFILE"] = str(directory)
