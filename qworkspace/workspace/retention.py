"""How long an agent keeps what it no longer needs."""

from __future__ import annotations

import logging
from datetime import timedelta

from qworkspace.config.home import RetentionConfig
from qworkspace.errors import QworkspaceError
from qworkspace.workspace.local import LOCAL, LocalWorkspace
from qworkspace.workspace.workspace import Workspace

logger = logging.getLogger(__name__)


async def prune(workspace: Workspace, retention: RetentionConfig) -> None:
    """Remove conversations and whole outputs of tools that are older than they are kept; what fails waits."""
    try:
        if retention.sessions_days is not None:
            await workspace.sessions.delete_older(retention.sessions_days)
        if retention.tool_outputs_days is not None:
            local: LocalWorkspace = workspace.services.get(LOCAL)
            await local.spill.prune(timedelta(days=retention.tool_outputs_days))
    except QworkspaceError as error:
        logger.warning("agent %s keeps what is too old for now: %s", workspace.agent_id, error.message)
