"""Child processes in groups of their own: bounded output, and gone to the last of them when their time is over."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qworkspace.base.waiting import to_the_end

GRACE_SECONDS = 1.0
KILL_SECONDS = 1.0
LINGER_SECONDS = 0.3
POLL_SECONDS = 0.02
OUTPUT_BYTES = 8_000_000
FLOOD_BYTES = 100_000_000
MARK = "QWORKSPACE_RUN"

_KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TMPDIR", "TZ"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "APPDATA"}
)
_NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # Windows only
_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of `environ` a child may know: paths, language and terminal, no key and no token; and nothing waits at a
    pager or a password prompt."""
    kept = {name: value for name, value in environ.items() if name.upper() in _KEPT or name.startswith("LC_")}
    return {"PATH": os.defpath, **kept, **_QUIET}


class BoundedOutput:
    """Bytes of which at most `limit` are held: all of them, or the beginning and the end."""

    def __init__(self, limit: int = OUTPUT_BYTES) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room > 0 else chunk
        if len(self._tail) > 2 * self._half:
            del self._tail[: len(self._tail) - self._half]

    @property
    def dropped(self) -> int:
        """Bytes between the beginning and the end that are not held."""
        return max(0, self.total - 2 * self._half)

    def text(self) -> str:
        """What is held as text; a line says how much is missing."""
        head, tail = self._head.decode("utf-8", "replace"), self._tail[-self._half :].decode("utf-8", "replace")
        if self.dropped:
            return f"{head}\n[... {self.dropped:,} bytes were not kept ...]\n{tail}"
        return (self._head + self._tail).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. `code` is negative for a signal and None when the run was ended from here.

    `background` says that processes were left behind by the first one, and were ended.
    """

    code: int | None
    text: str
    timed_out: bool = False
    flooded: bool = False
    background: bool = False


class _Watch(asyncio.SubprocessProtocol):
    """Notes what a child says and when it ends."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._sink(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()


class ProcessGroup:
    """A started command with all that it starts. `end` must be awaited; it may be called again."""

    def __init__(self, transport: asyncio.SubprocessTransport, watch: _Watch, mark: str) -> None:
        self._transport = transport
        self._watch = watch
        self._mark = mark
        self.pid: int = transport.get_pid()

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], sink: Callable[[bytes], None]
    ) -> ProcessGroup:
        """Start `argv` in a session of its own, without input; `sink` gets output and errors in their order."""
        mark = secrets.token_hex(8)
        transport, watch = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Watch(sink),
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**env, MARK: mark},
            start_new_session=sys.platform != "win32",
            creationflags=_NEW_GROUP,
        )
        return cls(transport, watch, mark)

    @property
    def code(self) -> int | None:
        """Exit code of the command itself; None while it runs."""
        return self._transport.get_returncode()

    async def wait(self) -> int | None:
        """The command's exit code, once it has ended and its output was read.

        What it left in the background may hold the output open; that is not waited for.
        """
        await self._watch.exited.wait()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._watch.silent.wait()
        except TimeoutError:
            pass  # a background process still holds it
        return self.code

    async def alive(self) -> bool:
        """Whether any process of the group runs; one that has ended and waits to be reaped does not."""
        if sys.platform == "win32":
            return self.code is None
        self._reap_adopted()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return sys.platform != "linux" or await asyncio.to_thread(_any_runs, self.pid)

    async def end(self, *, everything: bool = False) -> None:
        """End the group: asked first, killed a second later. `everything` also finds those that left the group."""
        try:
            if await self.alive():
                await self._end_group()
            if everything and sys.platform == "linux":
                await asyncio.to_thread(_kill_marked, f"{MARK}={self._mark}".encode())
        finally:
            self._transport.close()

    async def _end_group(self) -> None:
        self._signal(force=False)
        if not await self._gone_within(GRACE_SECONDS):
            self._signal(force=True)
            await self._gone_within(KILL_SECONDS)

    def _signal(self, *, force: bool) -> None:
        if sys.platform == "win32":
            if self.code is None:
                subprocess.Popen(["taskkill", "/T", "/F", "/PID", str(self.pid)], stdout=subprocess.DEVNULL)
            return
        try:
            os.killpg(self.pid, signal.SIGKILL if force else signal.SIGTERM)
        except (ProcessLookupError, PermissionError):
            pass  # gone meanwhile, or one that changed its user: nothing more can be done from here

    async def _gone_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if not await self.alive():
                        return True
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            return False

    def _reap_adopted(self) -> None:
        """As the first process of a container the daemon inherits orphans, which stay zombies until waited for."""
        if sys.platform == "win32" or self.code is None:  # the command itself is waited for by asyncio
            return
        try:
            os.waitpid(-self.pid, os.WNOHANG)
        except ChildProcessError:
            pass  # nothing of the group is a child of this process: the usual case


async def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float, limit: int = OUTPUT_BYTES
) -> Ended:
    """Run `argv` to its end, for `timeout` seconds at most. Cancelling ends its whole group before it returns."""
    output = BoundedOutput(limit)
    flooded = asyncio.Event()

    def sink(chunk: bytes) -> None:
        output.add(chunk)
        if output.total > FLOOD_BYTES:
            flooded.set()

    group = await _start(argv, cwd, env, sink)
    code, timed_out, ended = None, False, False
    try:
        async with asyncio.timeout(timeout):
            code = await _unless(flooded, group)
            ended = code is not None
    except TimeoutError:
        timed_out = True
    finally:
        background = await to_the_end(_finish(group, everything=not ended), name="end of a command")
    text = await asyncio.to_thread(output.text)
    return Ended(code, text, timed_out=timed_out, flooded=flooded.is_set(), background=ended and background)


async def _finish(group: ProcessGroup, *, everything: bool) -> bool:
    """End the group; whether anything of it still ran."""
    alive = await group.alive()
    await group.end(everything=everything)
    return alive


async def _start(argv: Sequence[str], cwd: Path, env: Mapping[str, str], sink: Callable[[bytes], None]) -> ProcessGroup:
    """Start the group; a caller that is cancelled meanwhile leaves nothing behind."""
    starting = asyncio.ensure_future(ProcessGroup.start(argv, cwd=cwd, env=env, sink=sink))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await to_the_end(_end_started(starting), name="end of a command")
        raise


async def _end_started(starting: asyncio.Future[ProcessGroup]) -> None:
    await asyncio.wait({starting})
    if starting.exception() is None:
        await starting.result().end(everything=True)


async def _unless(flooded: asyncio.Event, group: ProcessGroup) -> int | None:
    """The group's exit code, or None as soon as it says more than anybody can read."""
    tasks = {asyncio.ensure_future(flooded.wait()), asyncio.ensure_future(group.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return None if flooded.is_set() else group.code
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _any_runs(group: int) -> bool:
    """Whether a process of that group is more than a zombie, by the list of all processes (Linux)."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # ended meanwhile
        if int(process_group) == group and state not in "ZX":
            return True
    return False


def _kill_marked(mark: bytes) -> None:
    """Kill what carries the run's mark in its environment: processes that made a session of their own."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue  # ended meanwhile, or not ours to look at
