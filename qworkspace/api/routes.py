"""The route table. Imported when the port is served: its models and handlers take a while."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from qworkspace.api import (
    agents,
    approvals,
    chat,
    events,
    health,
    inbox,
    memory,
    metrics,
    openai_compat,
    openapi,
    pairing,
    reloads,
    sessions,
    status,
    uploads,
)
from qworkspace.api.operations import Call, Operation


async def read_openapi(call: Call) -> Response:
    """This interface, described."""
    document = await call.api.threads.run(openapi.document, OPERATIONS, call.api.info.version)
    return JSONResponse(document)


OPERATIONS: tuple[Operation, ...] = (
    *health.OPERATIONS,
    *status.OPERATIONS,
    *metrics.OPERATIONS,
    *chat.OPERATIONS,
    *sessions.OPERATIONS,
    *agents.OPERATIONS,
    *reloads.OPERATIONS,
    *inbox.OPERATIONS,
    *memory.OPERATIONS,
    *approvals.OPERATIONS,
    *events.OPERATIONS,
    *pairing.OPERATIONS,
    *uploads.OPERATIONS,
    *openai_compat.OPERATIONS,
    Operation("GET", "/openapi.json", read_openapi, "This document", "daemon"),
)
