"""`run_shell`: what a command says, what it knows, and how it ends."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from qworkspace.chat.tools.builtin import builtin_tools
from qworkspace.chat.tools.output import shorten
from qworkspace.config.models import AgentConfig
from qworkspace.plugins.extensions import ToolContext
from tests.support.tools import call, make_workspace, tool_context

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shell commands")


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return tool_context(make_workspace(tmp_path / "home"))


async def test_a_command_runs_in_the_files_of_its_agent(context: ToolContext):
    output = await call(context, "run_shell", command="pwd; echo hello > out.txt; cat out.txt >&2")
    assert (output.text, output.outcome) == (f"{context.files.root}/files\nhello", "ok")
    assert (context.files.root / "files" / "out.txt").exists()


async def test_the_directory_of_files_is_made_when_it_is_missing(context: ToolContext):
    (context.files.root / "files").rmdir()
    assert (await call(context, "run_shell", command="pwd")).outcome == "ok"


@pytest.mark.parametrize("directory", ["..", ".state", "skills", ".", "files/none", "/tmp"])
async def test_other_directories_are_refused(context: ToolContext, directory: str):
    output = await call(context, "run_shell", command="touch here", directory=directory)
    assert output.outcome in ("denied", "error")
    assert not list(context.files.root.rglob("here"))


async def test_a_failure_says_its_exit_code(context: ToolContext):
    output = await call(context, "run_shell", command="echo oops; exit 3")
    assert (output.text, output.outcome) == ("oops\n[exit code 3]", "error")
    assert "[killed by signal 9]" in (await call(context, "run_shell", command="kill -9 $$")).text


async def test_the_command_knows_no_secrets(context: ToolContext):
    environ = {**os.environ, "OPENAI_API_KEY": "sk-secret", "QWORKSPACE_TOKEN": "token-secret"}
    tool = next(tool for tool in builtin_tools(environ=environ) if tool.name == "run_shell")
    text = (await tool.run(context, tool.args(command="env; cat"))).text
    assert "secret" not in text and "PATH=" in text and "HOME=" in text


async def test_the_limit_for_all_tools_holds_for_commands(tmp_path: Path):
    config = AgentConfig.model_validate({"running": {"tool_timeout": 0.3}})
    context = tool_context(make_workspace(tmp_path / "other"), config)
    assert "[ended after 0.3 s]" in (await call(context, "run_shell", command="sleep 60")).text


async def test_colours_and_redrawn_lines_are_plain_text(context: ToolContext):
    output = await call(context, "run_shell", command=r"printf '\033[31mred\033[0m\n10%%\r100%%\n\377'")
    assert output.text == "red\n100%\n\ufffd"


async def test_a_command_over_its_time_is_ended(context: ToolContext):
    output = await call(context, "run_shell", command="echo begun; sleep 60", timeout=0.3)
    assert output.outcome == "error" and output.text.startswith("begun\n[ended after 0.3 s]")


async def test_a_stopped_turn_leaves_no_process(context: ToolContext):
    stubborn = "trap '' TERM; (trap '' TERM; exec sleep 61.5) & echo started > started; wait; wait; wait"
    task = asyncio.create_task(call(context, "run_shell", command=stubborn))
    async with asyncio.timeout(10):
        for _ in range(1000):
            if (context.files.root / "files" / "started").exists():
                break
            await asyncio.sleep(0.01)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 3
    left = [p for p in psutil.process_iter(["cmdline", "status"]) if "61.5" in (p.info["cmdline"] or [])]
    assert [p for p in left if p.info["status"] != psutil.STATUS_ZOMBIE] == []


async def test_what_is_left_in_the_background_is_ended_and_told(context: ToolContext):
    output = await call(context, "run_shell", command="sleep 60 & echo done")
    assert output.text == "done\n[what it left running in the background was ended]"


async def test_a_long_output_is_kept_whole_beside(context: ToolContext):
    output = await call(context, "run_shell", command="seq 1 20000")
    text, file = await shorten(output.text, context.spill)
    assert text.startswith("1\n2\n") and text.endswith("19999\n20000") and len(text) < 17_000
    assert file is not None and file in text
    assert (context.files.root / file).read_text().count("\n") == 19_999
    again = await call(context, "read_file", path=file, start_line=10_000, lines=1)
    assert again.text.startswith("10000\n")


async def test_a_command_of_the_hard_list_does_not_run_even_without_a_guard(context: ToolContext):
    output = await call(context, "run_shell", command="cat ../../../secrets.json")
    assert output.outcome == "denied" and "TOP SECRET" not in output.text
    long = "true; " * 2_000 + "cat ../../../secrets.json"
    assert (await call(context, "run_shell", command=long)).outcome == "denied"


async def test_a_command_that_cannot_start_is_an_answer(context: ToolContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("qworkspace.chat.tools.shell._argv", lambda command: ["/no/such/shell", command])
    output = await call(context, "run_shell", command="true")
    assert output.outcome == "error" and "did not start" in output.text


async def test_a_command_with_a_nul_is_a_wrong_argument(context: ToolContext):
    with pytest.raises(ValidationError, match="NUL"):
        await call(context, "run_shell", command="echo \0")
    assert (await call(context, "run_shell", command="echo \ud83d")).text == "\ufffd"


async def test_many_commands_at_once_keep_their_outputs_apart(context: ToolContext):
    outputs = await asyncio.gather(*(call(context, "run_shell", command=f"sleep 0.05; echo {n}") for n in range(10)))
    assert [output.text for output in outputs] == [str(n) for n in range(10)]
