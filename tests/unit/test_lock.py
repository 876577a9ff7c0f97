"""One daemon per home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qworkspace.base.lock import Holder, HomeLock, Locked, is_held, read_holder
from qworkspace.errors import StorageError

HOLD = """
import sys
from pathlib import Path
from qworkspace.base.lock import HomeLock
lock = HomeLock(Path(sys.argv[1]))
lock.acquire("2026-01-01T00:00:00+00:00")
print("held", flush=True)
sys.stdin.read()
"""


def _path(tmp_path: Path) -> Path:
    return tmp_path / ".daemon" / "lock"


def test_the_second_one_learns_who_is_first(tmp_path: Path) -> None:
    first, second = HomeLock(_path(tmp_path)), HomeLock(_path(tmp_path))
    first.acquire("2026-01-01T10:00:00+00:00")
    first.tell(Holder(os.getpid(), "2026-01-01T10:00:00+00:00", "http://127.0.0.1:8420"))
    with pytest.raises(Locked) as caught:
        second.acquire("2026-01-01T11:00:00+00:00")
    first.release()
    for part in (str(tmp_path), str(os.getpid()), "2026-01-01T10:00:00+00:00", "http://127.0.0.1:8420"):
        assert part in caught.value.message


def test_a_released_lock_is_free_and_says_nothing(tmp_path: Path) -> None:
    first = HomeLock(_path(tmp_path))
    first.acquire("2026-01-01T10:00:00+00:00")
    assert is_held(_path(tmp_path))
    first.release()
    first.release()
    assert not is_held(_path(tmp_path))
    assert read_holder(_path(tmp_path)) is None
    again = HomeLock(_path(tmp_path))
    again.acquire("2026-01-01T11:00:00+00:00")
    again.release()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(_path(tmp_path))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert is_held(_path(tmp_path))
        with pytest.raises(Locked, match=str(process.pid)):
            HomeLock(_path(tmp_path)).acquire("2026-01-01T11:00:00+00:00")
        process.kill()
        process.wait()
    lock = HomeLock(_path(tmp_path))
    lock.acquire("2026-01-01T12:00:00+00:00")
    holder = read_holder(_path(tmp_path))
    lock.release()
    assert holder == Holder(os.getpid(), "2026-01-01T12:00:00+00:00")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", json.dumps({"pid": "x", "since": 1})])
def test_a_damaged_description_harms_nobody(tmp_path: Path, content: str) -> None:
    _path(tmp_path).parent.mkdir()
    _path(tmp_path).write_text(content, encoding="utf-8")
    assert read_holder(_path(tmp_path)) is None
    lock = HomeLock(_path(tmp_path))
    lock.acquire("2026-01-01T12:00:00+00:00")
    lock.release()


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="not writable"):
        HomeLock(tmp_path / "home" / ".daemon" / "lock").acquire("2026-01-01T12:00:00+00:00")
