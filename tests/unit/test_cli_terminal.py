"""What others have written does not steer the person's terminal, and what a person answers for is shown in full."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.base.text import visible
from qworkspace.cli.conversation import Printer, whole
from qworkspace.cli.output import note, print_table, print_text
from qworkspace.logs import as_text
from tests.unit.test_cli_conversation import FakeClient, completed, event, talk

EVIL = "fine\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\rgone\u202eexe"


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


@given(st.text())
def test_nothing_visible_steers(text: str) -> None:
    shown = visible(text)
    assert not [char for char in shown if (char < " " or "\x7f" <= char < "\xa0") and char not in "\t\n"]
    assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069")
    assert visible(shown) == shown


@pytest.mark.parametrize("text", ["naïve 你好 👩‍👩‍👧 ×\u202f2", "a\tb\nc", "שלום\u200f!"])
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_an_answer_on_a_terminal_cannot_steer_it_and_a_pipe_gets_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Printer().text(EVIL)
    assert capsys.readouterr().out == EVIL
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Printer().text(EVIL)
    print_text(EVIL)
    print_table(("name",), [(EVIL,)])
    assert "\x1b" not in terminal.getvalue() and "\x9b" not in terminal.getvalue()
    assert terminal.getvalue().count("\\u001b]52") == 3


def test_remarks_and_lines_of_the_log_cannot_steer_either(capsys: pytest.CaptureFixture[str]) -> None:
    note(EVIL)
    assert "\x1b" not in capsys.readouterr().err
    fields = {"time": "2026-01-01T00:00:00+00:00", "level": "error", "message": EVIL, "error": f"Traceback\n{EVIL}"}
    assert "\x1b" not in as_text(fields) and "\x1b" not in as_text(fields, colour=True).removeprefix("\x1b[31m")[:-4]


def test_a_question_shows_all_that_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    command = "echo harmless " + "# " * 400 + "\nrm -r important\x1b[2K\r"
    args = {"command": command, "timeout": 5}
    asked = event(1, "tool.approval", approval_id="appr_1", name="run_shell", args=args, reason="a shell asks")
    talk(FakeClient([asked, completed(2, "")])).say("go")
    shown = capsys.readouterr().err
    assert "May alice use run_shell?  a shell asks" in shown
    assert "rm -r important\\u001b[2K" in shown and "timeout: 5" in shown and "# " * 400 in shown
    assert list(whole({"a": "one\ntwo"})) == ["  a: one\n    two"]
