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


def agent_state(status: AgentStatus) -> AgentState:
    """An agent's status, without its configuration."""
    return AgentState(**_state(status))


def agent_facts(status: AgentStatus, store: ConfigStore) -> AgentFacts:
    """An agent's status and what its configuration says of it; reads its agent.json unless that is cached."""
    home = usable_home(store)
    config = _usable_agent(store, status.agent_id)
    profile = store.profile(status.agent_id)
    model = (config.model if config is not None else None) or home.default_model
    return AgentFacts(
        **_state(status),
        name=(config.name if config is not None else "") or status.agent_id,
        description=config.description if config is not None else "",
        language=config.language if config is not None else None,
        model=str(model) if model is not None else None,
        active=home.agents.active_agent == status.agent_id,
        start=profile.start,
        workspace_dir=str(store.agent_dir(status.agent_id)),
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


def _state(status: AgentStatus) -> dict[str, Any]:
    return {
        "id": status.agent_id,
        "state": status.state.value,
        "enabled": status.state.value != "disabled",
        "generation": status.generation,
        "active_turns": status.active_turns,
        "queued_turns": status.queued_turns,
        "services": status.services,
        "error": status.error or None,
        "problems": [problem_facts(problem) for problem in status.problems],
    }
