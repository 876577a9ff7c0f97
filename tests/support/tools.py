"""Running the built-in tools by hand, in a workspace of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qworkspace.base.clock import Clock, SimulatedClock
from qworkspace.base.scope import Scope
from qworkspace.chat.tools.builtin import builtin_tools
from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.tools.output import OutputFiles
from qworkspace.config.models import AgentConfig
from qworkspace.plugins.extensions import Tool, ToolContext, ToolOutput

TOOLS: dict[str, Tool] = {tool.name: tool for tool in builtin_tools(environ=os.environ)}


def make_workspace(home: Path, name: str = "me") -> Path:
    """An agent's directory with the files that every one has, inside of a home with secrets."""
    workspace = home / "workspaces" / name
    for directory in ("files", "memory", "skills", ".state"):
        (workspace / directory).mkdir(parents=True)
    (workspace / "agent.json").write_text("{}")
    (home / "secrets.json").write_text('{"KEY": "TOP SECRET"}')
    return workspace


def tool_context(workspace: Path, config: AgentConfig | None = None, clock: Clock | None = None) -> ToolContext:
    """What a tool is given in that workspace, whose home is two levels up."""
    clock = clock or SimulatedClock()
    fence = Fence(workspace, workspace.parent.parent)
    return ToolContext(
        scope=Scope(workspace.name, workspace),
        config=config or AgentConfig(),
        clock=clock,
        call_id="call_1",
        files=fence,
        spill=OutputFiles(fence, clock),
        emit=lambda type, data: None,
    )


async def call(context: ToolContext, name: str, **args: Any) -> ToolOutput:
    """The tool's answer to arguments as a model sends them."""
    tool = TOOLS[name]
    return await tool.run(context, tool.args.model_validate(args))
