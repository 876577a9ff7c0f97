"""Model servers on this machine, looked for only when somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from qworkspace.config.suggest import LOCAL_SERVERS, Suggestion

SECONDS = 1.0
LONGEST_LIST = 1_000_000


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server that answers. `type` and `base_url` are what `providers` takes."""

    title: str
    type: str
    base_url: str
    models: tuple[str, ...]


async def detect_local(places: Sequence[Suggestion] = LOCAL_SERVERS, *, timeout: float = SECONDS) -> list[LocalServer]:
    """The servers that answer there, each asked once for its models and not waited for long."""
    async with httpx.AsyncClient(timeout=timeout, verify=False, trust_env=False) as client:
        found = await asyncio.gather(*(_ask(client, place) for place in places))
    return [server for server in found if server is not None]


async def _ask(client: httpx.AsyncClient, place: Suggestion) -> LocalServer | None:
    base_url = place.base_url or ""
    try:
        answer = await client.get(f"{base_url}/models")
        if answer.status_code != 200 or len(answer.content) > LONGEST_LIST:
            return None
        names = tuple(str(model["id"]) for model in answer.json()["data"] or ())
    except (httpx.HTTPError, ValueError, AttributeError, TypeError, KeyError):
        return None
    return LocalServer(place.title, place.type, base_url, names)
