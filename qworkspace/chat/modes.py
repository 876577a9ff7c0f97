"""The ways of working that a session of an agent can be in: those of agent.json and those of plugins."""

from __future__ import annotations

from qworkspace.config.models import AgentConfig
from qworkspace.plugins.extensions import Extensions, Mode


def modes_of(config: AgentConfig, extensions: Extensions) -> dict[str, Mode]:
    """Every mode by its name. What agent.json says holds as it is now, and goes before a plugin's of that name."""
    added = {entry.name: entry.value for entry in extensions.modes.entries()}
    own = {
        name: Mode(name, mode.summary, mode.prompt, frozenset(mode.tools) if mode.tools is not None else None)
        for name, mode in config.modes.items()
    }
    return added | own
