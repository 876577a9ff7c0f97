"""The baseline of start-up: the smallest Starlette application that uvicorn can serve."""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def healthz(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


if __name__ == "__main__":
    uvicorn.run(Starlette(routes=[Route("/healthz", healthz)]), port=int(sys.argv[1]), log_level="error")
