"""Keys that no setting has, and channels that there are not: kept, used for nothing, and shown."""

from __future__ import annotations

from qworkspace.config.cautions import unknown_channels
from qworkspace.config.models import AgentConfig
from qworkspace.workspace.shared import SharedServices

SHOWN = 10


async def show_unknown_keys(shared: SharedServices, agent_id: str | None = None) -> None:
    """Show those of the agent's agent.json, or of config.json, until they are gone."""
    found = await shared.threads.run(shared.config.unknown_keys, agent_id)
    key = f"unknown:{agent_id}" if agent_id is not None else "unknown"
    if not found:
        shared.problems.clear(key)
        return
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    told = "; ".join(item.message for item in found[:SHOWN]) + more
    shared.problems.report(key, told, severity="warning", agent_id=agent_id)


async def show_unknown_channels(shared: SharedServices, agent_id: str, config: AgentConfig) -> None:
    """Show the channels of the agent whose kind is not there, until they are gone or disabled."""
    found = unknown_channels(config)
    key = f"channels:{agent_id}"
    if not found:
        shared.problems.clear(key)
        return
    told = "; ".join(f"{item.path}: {item.message}" for item in found[:SHOWN])
    shared.problems.report(key, f"agent.json of {agent_id!r}: {told}", severity="warning", agent_id=agent_id)
