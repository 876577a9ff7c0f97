"""What is valid and still will not work: names that lead nowhere, keys that are not there."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from qworkspace.config.agent import AgentConfig
from qworkspace.config.home import HomeConfig
from qworkspace.config.values import EmbeddingConfig, ModelRef


@dataclass(frozen=True, slots=True)
class Caution:
    """Where, and what to do about it."""

    path: str
    message: str


def home_cautions(home: HomeConfig) -> list[Caution]:
    """Of config.json: an active agent that is not there, models of unknown providers, keys that are missing."""
    found = []
    active = home.agents.profiles.get(home.agents.active_agent)
    if active is None or not active.enabled:
        state = "there is no such agent" if active is None else "that agent is disabled"
        found.append(
            Caution("agents.active_agent", f"{home.agents.active_agent!r}: {state}; requests without an agent fail")
        )
    refs = {"default_model": home.default_model, "roles.heavy": home.roles.heavy, "roles.light": home.roles.light}
    refs["roles.vision"] = home.roles.vision
    found += [caution for path, ref in refs.items() for caution in _unknown_provider(path, ref, home)]
    found += _unknown_embedder("embedding.provider", home.embedding, home)
    for name, provider in home.providers.items():
        found += [
            Caution(f"providers.{name}", f"${{{variable}}} is neither in the environment nor in secrets.json")
            for variable in provider.missing_variables()
        ]
    return found


CHANNEL_TYPES = ("console",)
"""The kinds of channels that there are."""


def agent_cautions(agent: AgentConfig, home: HomeConfig) -> list[Caution]:
    """Of agent.json, seen with config.json: models of unknown providers, an unknown sandbox profile."""
    found = _unknown_provider("model", agent.model, home)
    for index, ref in enumerate(agent.fallback_models):
        found += _unknown_provider(f"fallback_models[{index}]", ref, home)
    if agent.model is None and home.default_model is None:
        found.append(Caution("model", "no model is chosen here, and config.json has no default_model"))
    found += _unknown_embedder("running.memory.embedding.provider", agent.running.memory.embedding, home)
    profile = agent.sandbox.profile
    if profile not in ("workspace", "devbox", "read-only", "strict", "off", "none", *home.sandbox.profiles):
        found.append(Caution("sandbox.profile", f"there is no profile {profile!r}"))
    return found + unknown_channels(agent)


def unknown_channels(agent: AgentConfig) -> list[Caution]:
    """Enabled channels of a kind that is not there: kept, connected to nothing."""
    found = []
    for name, channel in agent.channels.items():
        kind = channel.type or name
        if channel.enabled and kind not in CHANNEL_TYPES:
            near = difflib.get_close_matches(kind, CHANNEL_TYPES, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f" (there are: {', '.join(CHANNEL_TYPES)})"
            where = f"channels.{name}" + (".type" if channel.type else "")
            found.append(Caution(where, f"there is no channel of type {kind!r}{hint}"))
    return found


def _unknown_embedder(path: str, embedding: EmbeddingConfig | None, home: HomeConfig) -> list[Caution]:
    if embedding is None or embedding.provider in ("builtin", "none", *home.providers):
        return []
    return [Caution(path, f"there is no provider {embedding.provider!r} in providers")]


def _unknown_provider(path: str, ref: ModelRef | None, home: HomeConfig) -> list[Caution]:
    if ref is None or ref.provider in home.providers:
        return []
    known = ", ".join(home.providers) or "none"
    return [Caution(path, f"{str(ref)!r}: there is no provider {ref.provider!r} in config.json (there are: {known})")]
