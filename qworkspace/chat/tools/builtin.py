"""The tools that every workspace has."""

from __future__ import annotations

from collections.abc import Mapping

from qworkspace.chat.tools.files import EDIT_FILE, LIST_FILES, READ_FILE, SEARCH_FILES, WRITE_FILE
from qworkspace.chat.tools.shell import run_shell
from qworkspace.chat.tools.time import Zone, current_time
from qworkspace.chat.tools.web import WEB_FETCH
from qworkspace.plugins.extensions import Tool


def builtin_tools(zone: Zone = lambda: None, environ: Mapping[str, str] | None = None) -> list[Tool]:
    """The built-in tools. `zone()` names the user's time zone, None stands for the system's; `environ` is the
    daemon's environment, of which commands get what is no secret."""
    files = [READ_FILE, WRITE_FILE, EDIT_FILE, LIST_FILES, SEARCH_FILES]
    return [*files, run_shell(environ or {}), WEB_FETCH, current_time(zone)]
