"""Prometheus text."""

from __future__ import annotations

from starlette.responses import Response

from qworkspace.api.operations import Call, Operation


async def scrape(call: Call) -> Response:
    """Everything that is counted."""
    body, content_type = call.services.metrics.render()
    return Response(body, media_type=content_type)


OPERATIONS = (Operation("GET", "/metrics", scrape, "Prometheus metrics", "daemon", media_types=("text/plain",)),)
