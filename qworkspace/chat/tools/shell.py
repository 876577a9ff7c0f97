"""`run_shell`: a command in a process group of its own, with a time limit and without the daemon's secrets."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from qworkspace.base.files import make_directory
from qworkspace.base.processes import Ended, clean_environment, run
from qworkspace.chat.tools.guard import stricter
from qworkspace.chat.tools.output import answers, plain
from qworkspace.chat.tools.shell_line import PATHS, Surroundings, named_paths, never, simple_commands
from qworkspace.chat.tools.text import Text
from qworkspace.errors import Denied, InvalidInput
from qworkspace.plugins.extensions import Tool, ToolContext, ToolOutput, Verdict

LONGEST_COMMAND = 20_000
REVIEWED_CHARS = 4_000


def _without_nul(command: str) -> str:
    if "\0" in command:
        raise ValueError("must not contain a NUL character")
    return command


class RunShell(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    command: Annotated[
        Text,
        AfterValidator(_without_nul),
        Field(min_length=1, max_length=LONGEST_COMMAND, description="What the shell runs"),
    ]
    timeout: Annotated[float, Field(gt=0, le=600, description="Seconds until it is ended")] = 60
    directory: Annotated[str, Field(description="Where it runs, relative to the workspace")] = "files"


class Shell:
    """Runs commands with what of `environ` a child may know."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environment = clean_environment(environ)
        self._user_home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())

    async def run(self, context: ToolContext, args: RunShell) -> ToolOutput:
        """Run the command; what it started is gone when this returns, however it ends."""
        directory = await asyncio.to_thread(self._checked_directory, context, args)
        seconds = min(args.timeout, context.config.running.tool_timeout)
        try:
            ended = await run(_argv(args.command), cwd=directory, env=self._environment, timeout=seconds)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"the shell did not start: {error}") from error
        text = await asyncio.to_thread(plain, ended.text)
        failed = ended.timed_out or ended.flooded or ended.code != 0
        lines = [text.rstrip("\n"), *_remarks(ended, seconds)]
        return ToolOutput("\n".join(filter(None, lines)), "error" if failed else "ok")

    def review(self, args: RunShell, context: ToolContext) -> Verdict:
        """What the command itself calls for; a long one is looked at in full only when it runs, off the event loop."""
        if len(args.command) > REVIEWED_CHARS:
            return Verdict("ask", "the command is too long to be judged at a glance")
        return self._full_review(args, context)

    def _full_review(self, args: RunShell, context: ToolContext) -> Verdict:
        """The short hard list, and a question for a person when the command names what controls the agent."""
        root = context.files.root
        where = Surroundings(root / context.files.relative(args.directory), self._user_home, root)
        refused = never(args.command, where)
        if refused is not None:
            return Verdict("deny", f"this command never runs: {refused}", hard=True)
        paths = named_paths(args.command, where)
        verdict = Verdict("allow", "nothing in the command is protected")
        if len(paths) == PATHS:
            verdict = Verdict("ask", "the command names too many paths to be judged at a glance")
        for path in [where.directory, *paths]:
            verdict = stricter(verdict, context.files.judge_path(path))
        return verdict

    def _checked_directory(self, context: ToolContext, args: RunShell) -> Path:
        """The absolute directory, which is one of the agent's own, once the command was looked at in full."""
        found = self._full_review(args, context)
        if found.decision == "deny":
            raise Denied(found.reason)
        name = args.directory
        verdict = context.files.judge(f"{name.rstrip('/')}/x", "write")
        if verdict.decision != "allow":
            raise Denied(f"commands run in the agent's own directories, such as 'files', not in {name!r}")
        directory = context.files.root / context.files.resolved(name)
        if name.strip("/") == "files":
            make_directory(directory, mode=0o755)
        if not directory.is_dir():
            raise InvalidInput(f"there is no directory {name!r}")
        return directory


def _remarks(ended: Ended, seconds: float) -> list[str]:
    remarks = []
    if ended.timed_out:
        remarks.append(f"[ended after {seconds:g} s]")
    if ended.flooded:
        remarks.append("[ended: more output than anybody can read]")
    if ended.background:
        remarks.append("[what it left running in the background was ended]")
    if ended.code is not None and ended.code < 0:
        remarks.append(f"[killed by signal {-ended.code}]")
    elif ended.code:
        remarks.append(f"[exit code {ended.code}]")
    return remarks


def _argv(command: str) -> list[str]:
    if sys.platform == "win32":
        return ["cmd.exe", "/d", "/s", "/c", command]
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def _pieces(args: RunShell, context: ToolContext) -> list[str] | None:
    return simple_commands(args.command) if len(args.command) <= REVIEWED_CHARS else None


def run_shell(environ: Mapping[str, str]) -> Tool:
    """The tool, for a daemon that was started with `environ`."""
    shell = Shell(environ)
    return Tool(
        name="run_shell",
        description=(
            "Run a shell command and get its output (stdout and stderr together) and exit code. It runs in files/ "
            "without input and without a terminal; what it leaves in the background is ended. A person may be asked "
            "first."
        ),
        args=RunShell,
        run=answers(shell.run),
        effect="execute",
        target=lambda args: str(args.command),
        default="ask",
        review=shell.review,
        targets=_pieces,
    )
