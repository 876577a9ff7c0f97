"""A home with two workspaces and something to lose in every place that is closed to tools."""

from __future__ import annotations

import os
from pathlib import Path

from qworkspace.chat.tools.fence import Fence

CONTROL = ["agent.json", "jobs.json", "drivers/web.json", "plugins/p/plugin.json", "skills/s/SKILL.md"]
CLOSED = [".state/sessions.db", ".state/index/chunks.db"]
SECRET = "TOP SECRET"


def make_home(home: Path) -> Path:
    """A home with two workspaces; whatever is protected holds the secret or says that it is the original."""
    me, other = home / "workspaces" / "me", home / "workspaces" / "other"
    for name in [*CONTROL, *CLOSED, "AGENTS.md", "interests.yaml", "files/a.txt", "memory/2026-01-01.md"]:
        path = me / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET if name in CLOSED else "original")
    for path in (home / "secrets.json", home / "config.json", home / ".daemon" / "home.db", other / "MEMORY.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
    return me


def protected_state(workspace: Path) -> dict[str, str]:
    home = workspace.parent.parent
    ours = [workspace / name for name in (*CONTROL, *CLOSED)]
    theirs = [
        home / "secrets.json",
        home / "config.json",
        home / ".daemon/home.db",
        home / "workspaces/other/MEMORY.md",
    ]
    return {str(path): path.read_text() for path in (*ours, *theirs)}


def everything_else(workspace: Path) -> list[tuple[str, int, int]]:
    """Every file of the home but the workspace's open places, by what tells it from a changed one."""
    found = []
    for directory, directories, names in os.walk(workspace.parent.parent):
        if directory == str(workspace):
            directories[:] = [name for name in directories if name not in ("files", "memory", "digest")]
        for name in (*names, *directories):
            status = os.lstat(f"{directory}/{name}")
            if name not in ("MEMORY.md", "AGENTS.md") or directory != str(workspace):
                found.append((f"{directory}/{name}", status.st_ino, status.st_size))
    return sorted(found)


async def text_of(fence: Fence, name: str) -> str:
    return (await fence.read(name, limit=10_000)).data.decode()
