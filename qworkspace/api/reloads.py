"""Changes of an agent's configuration: planned, applied now, and what became of them."""

from __future__ import annotations

from qworkspace.api.admin_schemas import AgentConfigBody
from qworkspace.api.bodies import read_text
from qworkspace.api.facts import usable_home
from qworkspace.api.operations import Call, Operation
from qworkspace.api.reload_schemas import PlanFacts, PlanProblem, PlanQuery, ReloadAnswer, ReloadFacts, ReloadList
from qworkspace.api.schemas import Page
from qworkspace.base.ids import AgentId
from qworkspace.base.waiting import ends_within
from qworkspace.config.cautions import agent_cautions
from qworkspace.config.models import AgentConfig
from qworkspace.config.reading import Reading
from qworkspace.errors import Denied, InvalidInput, Unavailable
from qworkspace.workspace.history import Reload

ONE = "/api/agents/{agent_id}"
MERGE_PATCH = "application/merge-patch+json"
PLAN_TYPES = ("application/json", MERGE_PATCH)
LOOK_SECONDS = 0.05
"""Between two looks whether a reload waits for an earlier instance to end."""


async def plan(call: Call) -> PlanFacts:
    """What a whole agent.json, or a merge patch of the present one, would change; nothing is applied."""
    services, name = call.services, call.agent_id
    services.manager.state(name)
    kind, text = await read_text(call.request, PLAN_TYPES)
    reading = await call.api.threads.run(
        services.config.propose_agent, name, text, patch=kind == MERGE_PATCH, name=call.query.name
    )
    problems = await call.api.threads.run(_problems, call, reading)
    facts = PlanFacts.model_validate(await services.reloader.plan(name, reading.config))
    return facts.model_copy(update={"problems": problems})


def _problems(call: Call, reading: Reading[AgentConfig]) -> list[PlanProblem]:
    found = [
        PlanProblem(
            path=key.path,
            message=f"unknown key {key.path!r}" + (f", did you mean {key.near!r}?" if key.near else ""),
            line=key.line,
            column=key.column,
            near=key.near,
        )
        for key in reading.unknown_keys()
    ]
    cautions = agent_cautions(reading.config, usable_home(call.services.config))
    return found + [PlanProblem(path=caution.path, message=caution.message) for caution in cautions]


async def reload_now(call: Call) -> ReloadAnswer:
    """Look at the agent's files now. One that is not started uses them at its next start; they are only checked."""
    services, name = call.services, call.agent_id
    services.manager.state(name)
    if not services.config.profile(name).enabled:
        raise Denied(f"agent {name!r} is disabled; enable it to reload it", code="agent_disabled", id=name)
    if services.manager.find(name) is None:
        await call.api.threads.run(services.config.load_agent, name)
    return await reloaded(call, name, "asked for")


async def reloaded(call: Call, name: AgentId, trigger: str) -> ReloadAnswer:
    """Reload the agent from its files and wait for what comes of it, unless it has to wait for room itself."""
    reloader, clock = call.services.reloader, call.api.clock
    try:
        wanted = reloader.request(name, trigger)
    except RuntimeError:
        raise _stopping() from None
    while not wanted.done():
        if reloader.waits(name):
            return ReloadAnswer(outcome="waiting")
        await ends_within(wanted, LOOK_SECONDS, clock)
    if wanted.cancelled():
        raise _stopping()
    return answer(wanted.result())


def answer(done: Reload | None) -> ReloadAnswer:
    """What a reload came to, as the interface shows it."""
    return ReloadAnswer(outcome="nothing") if done is None else ReloadAnswer(**done.facts())


async def list_reloads(call: Call) -> ReloadList:
    """The agent's reloads, the newest first."""
    services, name, query = call.services, call.agent_id, call.query
    services.manager.state(name)
    if query.cursor is not None and not (query.cursor.isascii() and query.cursor.isdigit() and len(query.cursor) < 19):
        raise InvalidInput(f"cursor: {query.cursor!r} is not one that this list gave out", field="cursor")
    found, more = await services.reloader.history.page(name, query.limit, query.cursor)
    return ReloadList(reloads=[ReloadFacts(**facts) for facts in found], next_cursor=more)


def _stopping() -> Unavailable:
    return Unavailable("the daemon is stopping; its next start uses the files as they are", code="stopping")


OPERATIONS = (
    Operation(
        "POST",
        ONE + "/plan",
        plan,
        "What a changed agent.json would do",
        "agents",
        body=AgentConfigBody,
        query=PlanQuery,
        answer=PlanFacts,
        accepts=PLAN_TYPES,
        parsed=False,
    ),
    Operation("POST", ONE + "/reload", reload_now, "Apply the agent's files now", "agents", answer=ReloadAnswer),
    Operation("GET", ONE + "/reloads", list_reloads, "The agent's reloads", "agents", query=Page, answer=ReloadList),
)
