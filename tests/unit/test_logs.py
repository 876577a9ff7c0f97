"""What the log shows, and what it never shows."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworkspace.base.scope import Scope, acting_as
from qworkspace.logs import Logs, Masking, as_text

logger = logging.getLogger("qworkspace.sample")


@pytest.fixture
def logs() -> Iterator[Logs]:
    opened = Logs(secrets=lambda: ["hunter2-secret", "short"])
    yield opened
    opened.close()


def test_a_line_says_for_whom(logs: Logs, tmp_path: Path) -> None:
    terminal = io.StringIO()
    logs.open(terminal=terminal)
    logs.to_file(tmp_path / "log" / "qworkspace.log")
    with acting_as(Scope("alice", tmp_path, session_id="s1", turn_id="turn_9")):
        logger.info("reading %s", "notes")
    line = json.loads((tmp_path / "log" / "qworkspace.log").read_text(encoding="utf-8"))
    assert (line["agent"], line["session"], line["turn"]) == ("alice", "s1", "turn_9")
    assert (line["level"], line["logger"], line["message"]) == ("info", "qworkspace.sample", "reading notes")
    assert "INFO    reading notes  [alice/s1/turn_9]" in terminal.getvalue()


def test_a_failure_is_one_json_line_with_its_traceback(logs: Logs, tmp_path: Path) -> None:
    logs.open(terminal=None)
    logs.to_file(tmp_path / "qworkspace.log")
    try:
        raise ValueError("token=hunter2-secret")
    except ValueError:
        logger.exception("it broke")
    lines = (tmp_path / "qworkspace.log").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert "ValueError" in json.loads(lines[0])["error"]
    assert "hunter2" not in lines[0]


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef123456",
        "GET /api/status?token=abcdef123456 HTTP/1.1",
        "GET /#code=abcdef123456",
        "key sk-abcdef123456 refused",
        "{'x-api-key': 'abcdef123456'}",
        "a known one: abcdef123456",
    ],
)
def test_credentials_are_masked(text: str) -> None:
    masked = Masking(lambda: ["abcdef123456"] if "known" in text else [])(text)
    assert "abcdef123456" not in masked
    assert masked.split()[0].rstrip("'") in text


def test_ordinary_words_are_left_alone() -> None:
    text = "the token of alice was rotated; bearer bonds are not basic; key=5"
    assert Masking(lambda: ["short"])(text + " short") == text + " short"


def test_json_on_the_terminal(logs: Logs) -> None:
    terminal = io.StringIO()
    logs.open(terminal=terminal, as_json=True)
    logger.warning("naïve 日本")
    assert json.loads(terminal.getvalue())["message"] == "naïve 日本"


def test_libraries_keep_quiet_until_something_is_wrong(logs: Logs) -> None:
    terminal = io.StringIO()
    logs.open(terminal=terminal)
    logging.getLogger("httpx").info("HTTP Request: GET https://example.org/?key=1")
    logging.getLogger("somelibrary").warning("odd")
    logging.getLogger("qworkspace").info("ours")
    assert [line.split(maxsplit=1)[1] for line in terminal.getvalue().splitlines()] == ["WARNING odd", "INFO    ours"]


def test_the_file_rotates(logs: Logs, tmp_path: Path) -> None:
    logs.open(terminal=None)
    logs.to_file(tmp_path / "qworkspace.log", size=500, kept=3)
    for number in range(40):
        logger.info("line %d", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["qworkspace.log", "qworkspace.log.1"]
    assert len(names) == 1 + 3
    assert "line 39" in (tmp_path / "qworkspace.log").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no always-full device here")
def test_output_that_goes_to_a_full_disk_too_stops_nothing(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.symlink("/dev/full", tmp_path / "qworkspace.log")
    with pytest.raises(OSError), Path("/dev/full").open("w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        logs.open(terminal=terminal)
        logs.to_file(tmp_path / "qworkspace.log")
        for _ in range(3):
            logger.error("nobody hears this")
        logs.close()
        monkeypatch.undo()
        (tmp_path / "reached").touch()
    assert (tmp_path / "reached").exists()  # only closing the terminal's own buffer fails


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no always-full device here")
def test_a_full_disk_is_said_once_and_stops_nothing(
    logs: Logs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.symlink("/dev/full", tmp_path / "qworkspace.log")
    logs.open(terminal=None)
    logs.to_file(tmp_path / "qworkspace.log")
    for _ in range(3):
        logger.info("lost")
    logs.close()
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_person_reads_colours_only_where_asked() -> None:
    fields = {"time": "2026-01-01T10:00:00+00:00", "level": "error", "message": "no"}
    assert "\x1b" not in as_text(fields)
    assert as_text(fields, colour=True).startswith("\x1b[31m")
