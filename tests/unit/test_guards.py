"""The suite's own guards: each of them notices what it is there for, and honest tests pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import guards

pytest_plugins = ["pytester"]

CONFTEST = """
import guards

def pytest_configure(config):
    guards.GRACE_SECONDS = 0.2
    watch = guards.Guards()
    watch.start()
    config.add_cleanup(watch.stop)
    config.pluginmanager.register(watch)
"""

SAMPLE = """
import asyncio, pytest, socket, subprocess, threading, time
leak = []

async def test_leaves_a_task():
    leak.append(asyncio.create_task(asyncio.sleep(60)))

def test_leaves_a_thread():
    threading.Thread(target=time.sleep, args=(2,)).start()

def test_leaves_a_process():
    leak.append(subprocess.Popen(["sleep", "3"]))

def test_leaves_an_open_file(tmp_path):
    leak.append(open(tmp_path / "forgotten", "w"))

def test_leaves_a_socket():
    leak.append(socket.socket())

async def test_leaves_its_loop_blocked():
    end = time.thread_time() + 0.4
    while time.thread_time() < end: pass

async def test_leaves_its_loop_asleep():
    time.sleep(0.001)

def test_leaves_the_machine():
    with pytest.raises(Exception):
        socket.create_connection(("192.0.2.1", 80))

async def test_honest_tasks_and_threads():
    assert await asyncio.to_thread(lambda: 1) == 1
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))

def test_honest_processes_files_and_sockets(tmp_path):
    assert subprocess.run(["true"]).returncode == 0
    (tmp_path / "x").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()

@pytest.fixture(scope="module")
def shared():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()

def test_honest_sharing(shared):
    assert shared.poll() is None

def test_honest_sharing_again(shared):
    assert shared.poll() is None

@pytest.mark.may_block
async def test_honest_blocking_on_purpose():
    time.sleep(0.001)
"""


def test_each_leak_fails_its_test_and_honest_tests_pass(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_mode=auto\nmarkers =\n    may_block: on purpose\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(guards=Path(guards.__file__).read_text(encoding="utf-8"))
    folder = pytester.mkdir("tests") / "unit"
    folder.mkdir()
    (folder / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rE", "--rootdir", str(pytester.path))
    failed = [line.partition("::")[2].split()[0] for line in result.outlines if line.startswith("ERROR ")]
    expected = [line.split("(")[0].removeprefix("async ").removeprefix("def ") for line in SAMPLE.splitlines()]
    assert failed == [name for name in expected if name.startswith("test_leaves")]
