"""JSON schemas of the two configuration files, for editors and forms."""

from __future__ import annotations

from typing import Any, Literal

from qworkspace.config.agent import AgentConfig
from qworkspace.config.home import HomeConfig

Kind = Literal["agent", "home"]
MODELS: dict[Kind, type[AgentConfig] | type[HomeConfig]] = {"agent": AgentConfig, "home": HomeConfig}


def schema(kind: Kind) -> dict[str, Any]:
    """The JSON schema (2020-12) of agent.json or config.json; further keys are allowed, as they are kept."""
    title = {"agent": "agent.json", "home": "config.json"}[kind]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **MODELS[kind].model_json_schema(mode="validation"),
        "title": title,
    }
