"""What is known of agents, as the interface shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qworkspace.api.admin_schemas import AgentFacts, AgentState
from qworkspace.api.problems import problem_facts
from qworkspace.config.models import AgentConfig, HomeConfig
from qworkspace.config.store import ConfigStore
from qworkspace.errors import InvalidConfig

if TYPE_CHECKING:
    from qworkspace.workspace.manager import AgentStatus
    from qworkspace.workspace.reload import Reloader


def agent_state(status: AgentStatus, reloader: Reloader) -> AgentState:
    """An agent's status, without its configuration."""
    return AgentState(**state_facts(status, reloader))


def agent_facts(state: dict[str, Any], store: ConfigStore) -> AgentFacts:
    """The `state_facts` of an agent and what its configuration says; reads its agent.json unless that is cached."""
    agent_id = str(state["id"])
    home = usable_home(store)
    config = _usable_agent(store, agent_id)
    profile = store.profile(agent_id)
    model = (config.model if config is not None else None) or home.default_model
    return AgentFacts(
        **state,
        name=(config.name if config is not None else "") or agent_id,
        description=config.description if config is not None else "",
        language=config.language if config is not None else None,
        model=str(model) if model is not None else None,
        active=home.agents.active_agent == agent_id,
        start=profile.start,
        workspace_dir=str(store.agent_dir(agent_id)),
    )


def usable_home(store: ConfigStore) -> HomeConfig:
    """config.json as it is now, or as it was when it could be used last; the defaults when it never could."""
    try:
        return store.load_home()
    except InvalidConfig:
        return store.last_good_home() or HomeConfig()


def active_agent(store: ConfigStore) -> str:
    """The agent of requests that name none."""
    return usable_home(store).agents.active_agent


def _usable_agent(store: ConfigStore, agent_id: str) -> AgentConfig | None:
    try:
        return store.load_agent(agent_id, disabled=True)
    except InvalidConfig:
        return store.last_good_agent(agent_id)


def state_facts(status: AgentStatus, reloader: Reloader) -> dict[str, Any]:
    """What is known of an agent without reading anything."""
    return {
        "id": status.agent_id,
        "state": status.state.value,
        "enabled": status.enabled,
        "generation": status.generation,
        "active_turns": status.active_turns,
        "queued_turns": status.queued_turns,
        "services": status.services,
        "retired": reloader.retired(status.agent_id),
        "edits_waiting": reloader.waits(status.agent_id),
        "error": status.error or None,
        "problems": [problem_facts(problem) for problem in status.problems],
    }
