"""The answer "always": the rule that allows such calls from now on, in agent.json."""

from __future__ import annotations

from qworkspace.chat.tools.guard import remembered
from qworkspace.config.models import AgentConfig, PolicyRule, ToolConfig
from qworkspace.config.store import ConfigStore
from qworkspace.errors import VersionMismatch

TRIES = 5


def with_rule(config: AgentConfig, tool: str, rule: PolicyRule) -> AgentConfig:
    """The configuration in which `rule` goes before all others of that tool."""
    settings = config.tools.get(tool) or ToolConfig()
    changed = settings.model_copy(update={"policy": remembered(settings.policy, rule)})
    return config.model_copy(update={"tools": config.tools | {tool: changed}})


def store_rule(store: ConfigStore, agent_id: str, tool: str, rule: PolicyRule) -> None:
    """Write the rule into agent.json, beside what others write there meanwhile. Blocks: for a thread."""
    for attempt in range(1, TRIES + 1):
        raw, version = store.raw_agent(agent_id)
        store.check_agent(agent_id, raw)
        present = ToolConfig.model_validate(raw.get("tools", {}).get(tool, {}))  # as written, with its `${NAME}`
        rules = [one.model_dump(mode="json") for one in remembered(present.policy, rule)]
        try:
            store.patch_agent(agent_id, {"tools": {tool: {"policy": rules}}}, version)
        except VersionMismatch:
            if attempt == TRIES:
                raise
        else:
            return
