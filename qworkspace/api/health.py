"""Alive, and ready: what is answered before anything else is there."""

from __future__ import annotations

from starlette.types import ASGIApp

from qworkspace.api.basic_schemas import Health, Ready
from qworkspace.api.errors import RETRY_AFTER_SECONDS
from qworkspace.api.guard import is_loopback
from qworkspace.api.operations import Call, Operation, json_answer
from qworkspace.api.problems import bare_facts, problem_facts
from qworkspace.api.services import DaemonState


async def healthz(call: Call) -> Health:
    """The process answers."""
    return Health(status=call.api.state.value, version=call.api.info.version)


async def readyz(call: Call) -> ASGIApp:
    """200 when turns are taken, with the parts that are degraded; 503 before and after that."""
    known = call.api.known.problems if call.api.known is not None else call.api.problems
    problems = known.of() if known is not None else []
    told = call.caller.kind != "nobody" or is_loopback(call.request.client.host if call.request.client else "")
    answer = Ready(
        status=call.api.state.value,
        version=call.api.info.version,
        degraded=[problem_facts(problem) if told else bare_facts(problem) for problem in problems],
    )
    if call.api.state is DaemonState.READY:
        return json_answer(answer)
    return json_answer(answer, 503, {"retry-after": str(RETRY_AFTER_SECONDS)})


OPERATIONS = (
    Operation("GET", "/healthz", healthz, "Alive", "daemon", answer=Health, public=True),
    Operation("GET", "/readyz", readyz, "Ready, and what is degraded", "daemon", answer=Ready, public=True),
)
