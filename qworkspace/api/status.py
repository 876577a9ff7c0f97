"""Everything at a glance, and the end."""

from __future__ import annotations

from qworkspace.api.admin_schemas import Status
from qworkspace.api.basic_schemas import Health
from qworkspace.api.facts import active_agent, agent_state
from qworkspace.api.operations import Call, Operation
from qworkspace.api.problems import problem_facts
from qworkspace.api.services import DaemonState


async def status(call: Call) -> Status:
    """What is going on."""
    services, info = call.services, call.api.info
    return Status(
        status=call.api.state.value,
        version=info.version,
        started_at=info.started_at,
        uptime_seconds=round((call.api.clock.now() - info.started_at).total_seconds(), 1),
        home=str(info.home),
        watch_mode=call.api.watch_mode,
        active_agent=active_agent(services.config),
        agents=[agent_state(known, services.reloader) for known in services.manager.states().values()],
        problems=[problem_facts(problem) for problem in services.problems.of()],
    )


async def shutdown(call: Call) -> Health:
    """End the daemon as SIGTERM does: running turns get their time first."""
    call.need_token()
    call.services.shutdown("asked over HTTP")
    return Health(status=DaemonState.STOPPING.value, version=call.api.info.version)


OPERATIONS = (
    Operation("GET", "/api/status", status, "Everything at a glance", "daemon", answer=Status),
    Operation("POST", "/api/shutdown", shutdown, "End the daemon (token only)", "daemon", answer=Health, status=202),
)
