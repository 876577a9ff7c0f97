"""Agents: list, create, change, remove, and their agent.json with its version."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from qworkspace.api.admin_schemas import AgentBody, AgentConfigBody, AgentFacts, AgentList, AgentPatch, DeleteQuery
from qworkspace.api.facts import active_agent, agent_facts, state_facts
from qworkspace.api.operations import Call, Operation, json_answer, no_content
from qworkspace.api.reload_schemas import ConfigWritten
from qworkspace.api.reloads import reloaded
from qworkspace.api.schemas import Page
from qworkspace.base.ids import AgentId
from qworkspace.config.hiding import mask
from qworkspace.errors import Conflict, InvalidInput

ONE = "/api/agents/{agent_id}"
PATCH_TYPES = ("application/json", "application/merge-patch+json")
WRITTEN = "api"


async def list_agents(call: Call) -> AgentList:
    """The agents, in the order of config.json; the cursor is the last id of the page before."""
    services, query = call.services, call.query
    names = services.config.agent_ids(disabled=True)
    start = _after(names, query.cursor)
    page = names[start : start + query.limit]
    states = services.manager.states()
    found = [state_facts(states[name], services.reloader) for name in page if name in states]
    facts = await call.api.threads.run(lambda: [agent_facts(state, services.config) for state in found])
    more = start + query.limit < len(names)
    return AgentList(
        agents=facts, active_agent=active_agent(services.config), next_cursor=page[-1] if more and page else None
    )


def _after(names: list[str], cursor: str | None) -> int:
    if cursor is None:
        return 0
    if cursor not in names:
        raise InvalidInput(f"cursor: {cursor!r} is no agent of the list any more; begin again", field="cursor")
    return names.index(cursor) + 1


async def create_agent(call: Call) -> ASGIApp:
    """A new agent, from a template or as a copy."""
    body: AgentBody = call.body
    if body.template is not None and body.copy_of is not None:
        raise InvalidInput("give 'template' or 'copy', not both", field="template")
    await call.services.manager.create_agent(
        body.id, body.template or "default", name=body.name or None, copy_of=body.copy_of
    )
    facts = await _facts(call, AgentId(body.id))
    return json_answer(facts, 201, {"location": f"/api/agents/{body.id}"})


async def read_agent(call: Call) -> AgentFacts:
    """One agent, started or not."""
    return await _facts(call, call.agent_id)


async def change_agent(call: Call) -> AgentFacts:
    """Change what the body names."""
    services, name, patch = call.services, call.agent_id, call.body
    services.manager.state(name)
    await _change_profile(call, name, patch)
    texts = {key: value for key in ("name", "description") if (value := getattr(patch, key)) is not None}
    if texts:
        await call.api.threads.run(services.config.patch_agent, name, texts)
        await reloaded(call, name, WRITTEN)
    return await _facts(call, name)


async def _change_profile(call: Call, name: AgentId, patch: AgentPatch) -> None:
    services = call.services
    manager, config = services.manager, services.config
    if patch.enabled is False and (patch.active or active_agent(config) == name):
        raise Conflict(f"{name!r} is the active agent; make another one active first", id=name)
    if patch.enabled is not None and patch.enabled is not config.profile(name).enabled:
        await (manager.enable_agent(name) if patch.enabled else manager.disable_agent(name))
    if patch.active and not config.profile(name).enabled:
        raise Conflict(f"{name!r} is disabled; enable it before it becomes the active agent", id=name)
    agents: dict[str, Any] = {"active_agent": name} if patch.active else {}
    if patch.start is not None:
        agents["profiles"] = {name: {"start": patch.start}}
    if agents:
        await call.api.threads.run(config.patch_home, {"agents": agents})


async def delete_agent(call: Call) -> ASGIApp:
    """Take the agent out of config.json; its running turns finish first, its directory stays unless asked."""
    await call.services.manager.delete_agent(call.agent_id, remove_files=call.query.files)
    return no_content()


async def read_config(call: Call) -> ASGIApp:
    """agent.json as written, secrets masked; its version is the ETag."""
    raw, version = await call.api.threads.run(call.services.config.raw_agent, call.agent_id)
    if call.request.headers.get("if-none-match") == etag(version):
        return no_change(version)
    return config_answer(raw, version)


async def replace_config(call: Call) -> ASGIApp:
    """Write agent.json and apply it; a mask stands for the secret that is there already."""
    return await _write(call, call.services.config.save_agent)


async def patch_config(call: Call) -> ASGIApp:
    """Merge into agent.json (RFC 7396) and apply it: what the patch does not name stays."""
    return await _write(call, call.services.config.patch_agent)


async def _write(call: Call, write: Any) -> ASGIApp:
    config, name = call.services.config, call.agent_id
    await call.api.threads.run(write, name, call.body.root, expected_version(call))
    reload = await reloaded(call, name, WRITTEN)
    raw, version = await call.api.threads.run(config.raw_agent, name)
    written = ConfigWritten(version=version, reload=reload, config=mask(raw))
    return json_answer(written, headers={"etag": etag(version)})


def expected_version(call: Call) -> str | None:
    """The version that `If-Match` names; None when the client does not care."""
    wanted = call.request.headers.get("if-match", "*").strip()
    return None if wanted == "*" else wanted.removeprefix("W/").strip('"')


def etag(version: str) -> str:
    """A version as it stands in headers."""
    return f'"{version}"'


def no_change(version: str) -> ASGIApp:
    """304: the client has that version."""
    answer = no_content({"etag": etag(version)})
    answer.status_code = 304
    return answer


def config_answer(raw: dict[str, Any], version: str) -> ASGIApp:
    """A configuration with its version, fit to be shown."""
    return JSONResponse(mask(raw), headers={"etag": etag(version)})


async def _facts(call: Call, name: AgentId) -> AgentFacts:
    services = call.services
    state = state_facts(services.manager.state(name), services.reloader)
    return await call.api.threads.run(agent_facts, state, services.config)


OPERATIONS = (
    Operation("GET", "/api/agents", list_agents, "All agents", "agents", query=Page, answer=AgentList),
    Operation(
        "POST", "/api/agents", create_agent, "A new agent", "agents", body=AgentBody, answer=AgentFacts, status=201
    ),
    Operation("GET", ONE, read_agent, "One agent", "agents", answer=AgentFacts),
    Operation(
        "PATCH", ONE, change_agent, "Change an agent", "agents", body=AgentPatch, answer=AgentFacts, accepts=PATCH_TYPES
    ),
    Operation("DELETE", ONE, delete_agent, "Remove an agent", "agents", query=DeleteQuery, status=204),
    Operation(
        "GET", ONE + "/config", read_config, "agent.json with its version as ETag", "agents", answer=AgentConfigBody
    ),
    Operation(
        "PUT",
        ONE + "/config",
        replace_config,
        "Write agent.json; If-Match refuses a stale write",
        "agents",
        body=AgentConfigBody,
        answer=ConfigWritten,
        headers=("If-Match",),
    ),
    Operation(
        "PATCH",
        ONE + "/config",
        patch_config,
        "Merge a patch into agent.json",
        "agents",
        body=AgentConfigBody,
        answer=ConfigWritten,
        accepts=PATCH_TYPES,
        headers=("If-Match",),
    ),
)
