"""Several processes and a person at one note, and processes that are killed: nothing is lost, nothing is there twice.

`QWORKSPACE_SECONDS=30` and `QWORKSPACE_KILLS=200` make the tests as long as they should be before a release.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from qworkspace.base.clock import SystemClock
from tests.support.vaults import opened

SECONDS = float(os.environ.get("QWORKSPACE_SECONDS", "3"))
KILLS = int(os.environ.get("QWORKSPACE_KILLS", "12"))
NOTE = "memory/2026-01-01.md"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fork and kill -9 are POSIX")


def _start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.vault_process", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _edit(note: Path, seconds: float) -> list[str]:
    """A person: now `>>`, now an editor that reads, thinks and replaces the file. The lines that were saved."""
    lines: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        lines.append(f"- person {len(lines)}")
        if len(lines) % 5:
            with note.open("a") as file:
                file.write(lines[-1] + "\n")
            time.sleep(0.01)
        else:
            text = note.read_text()
            time.sleep(0.004)
            draft = note.with_name("draft~")
            draft.write_text(text + lines[-1] + "\n")
            draft.replace(note)
    return lines


async def _make(root: Path) -> None:
    async with opened(root, clock=SystemClock()):
        pass


def test_two_processes_and_a_person_append_to_one_note(tmp_path: Path) -> None:
    asyncio.run(_make(tmp_path))
    note = tmp_path / NOTE
    note.parent.mkdir()
    note.write_text("# Day\n")
    processes = [_start("append", str(tmp_path), NOTE, word, str(SECONDS)) for word in ("one", "two")]
    mine = _edit(note, SECONDS + 1.5)
    expected = Counter(["# Day", *mine])
    for process in processes:
        out, err = process.communicate(timeout=SECONDS + 60)
        assert process.returncode == 0, err
        expected.update(out.splitlines())
    assert len(expected) > 20 * SECONDS
    found = Counter(note.read_text().splitlines())
    assert found - expected == Counter()
    assert expected - found == Counter()


def test_killed_at_any_point_a_note_is_before_or_after_the_change(tmp_path: Path) -> None:
    process = _start("kills", str(tmp_path), str(KILLS), str(time.time_ns() % 1_000_000))
    out, err = process.communicate(timeout=60 + 2 * KILLS)
    assert process.returncode == 0, f"{process.args!r}: {err}"
    assert f"{KILLS} kills" in out
