"""Child processes: whole groups end, output is bounded, nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from qworkspace.base.processes import BoundedOutput, Ended, clean_environment, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shell commands")


async def shell(command: str, tmp_path: Path, timeout: float = 20.0, limit: int = 100_000) -> Ended:
    env = clean_environment(os.environ)
    return await run(["/bin/sh", "-c", command], cwd=tmp_path, env=env, timeout=timeout, limit=limit)


async def pids_in(file: Path) -> list[int]:
    """The process ids that a command has written, once there are two lines."""
    async with asyncio.timeout(10):
        for _ in range(1000):
            if file.exists() and file.read_text().count("\n") >= 2:
                break
            await asyncio.sleep(0.01)
    return [int(line) for line in file.read_text().split()]


def running(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_output_and_errors_come_in_their_order_with_the_exit_code(tmp_path: Path):
    ended = await shell("echo one; echo two >&2; echo three; exit 3", tmp_path)
    assert (ended.code, ended.text) == (3, "one\ntwo\nthree\n")


async def test_the_command_has_no_input_to_wait_for(tmp_path: Path):
    assert (await shell("cat; echo read nothing", tmp_path)).text == "read nothing\n"


async def test_a_command_over_its_time_is_ended_with_what_it_said(tmp_path: Path):
    ended = await shell("echo begun; sleep 60", tmp_path, timeout=0.3)
    assert ended.timed_out and ended.code is None
    assert ended.text == "begun\n"


async def test_cancelling_ends_grandchildren_that_ignore_the_polite_signal(tmp_path: Path):
    stubborn = "trap '' TERM; (trap '' TERM; echo $$ >> pids; exec sleep 60) & echo $! >> pids; echo $$ >> pids; wait"
    task = asyncio.create_task(shell(stubborn, tmp_path))
    pids = await pids_in(tmp_path / "pids")
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 3
    assert running(pids) == []


async def test_cancelling_twice_still_waits_for_the_end(tmp_path: Path):
    task = asyncio.create_task(shell("trap '' TERM; echo $$ >> pids; echo $$ >> pids; sleep 60", tmp_path))
    pids = await pids_in(tmp_path / "pids")
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(pids) == []


async def test_cancelling_during_the_start_leaves_nothing(tmp_path: Path):
    for turns in range(4):
        task = asyncio.create_task(shell("sleep 60", tmp_path))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [p for p in psutil.Process().children() if "sleep" in p.name()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="found through /proc")
async def test_cancelling_finds_what_left_the_group(tmp_path: Path):
    escape = "setsid sh -c 'echo $$ >> pids; exec sleep 60' & echo $$ >> pids; wait"
    task = asyncio.create_task(shell(escape, tmp_path))
    pids = await pids_in(tmp_path / "pids")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(3):  # what was sent a SIGKILL ends when the system gets round to it
        while running(pids):
            await asyncio.sleep(0.01)


async def test_what_was_left_in_the_background_ends_with_the_command(tmp_path: Path):
    began = time.monotonic()
    ended = await shell("sleep 60 & echo $! >> pids; echo $! >> pids; echo done", tmp_path)
    assert (ended.code, ended.text, ended.background) == (0, "done\n", True)
    assert time.monotonic() - began < 3
    assert running(await pids_in(tmp_path / "pids")) == []


async def test_a_command_that_never_stops_talking_is_stopped(tmp_path: Path):
    ended = await shell("yes", tmp_path, timeout=60)
    assert ended.flooded and not ended.timed_out
    assert "bytes were not kept" in ended.text
    assert len(ended.text) < 101_000


async def test_a_program_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await run(["/no/such/program"], cwd=tmp_path, env={}, timeout=1)


def test_bounded_output_keeps_beginning_and_end():
    output = BoundedOutput(10)
    for number in range(100):
        output.add(f"{number:02}".encode())
    assert output.text() == "00010\n[... 190 bytes were not kept ...]\n79899"


def test_bounded_output_keeps_a_short_one_whole():
    output = BoundedOutput(10)
    output.add("añb".encode()[:2])
    output.add("añb".encode()[2:])
    assert (output.text(), output.dropped) == ("añb", 0)


def test_children_get_no_secrets_and_no_pager():
    environ = {"PATH": "/bin", "OPENAI_API_KEY": "k", "QWORKSPACE_TOKEN": "t", "LC_ALL": "C", "AWS_SECRET": "s"}
    assert clean_environment(environ) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
    }
