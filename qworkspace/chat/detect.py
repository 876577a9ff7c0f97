"""Model servers on this machine, looked for only when somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

SECONDS = 1.0
LONGEST_LIST = 1_000_000
KEY_VARIABLES: Mapping[str, str] = {
    "OPENAI_API_KEY": "openai",
    "ANTHROPIC_API_KEY": "anthropic",
    "GEMINI_API_KEY": "google",
    "GOOGLE_API_KEY": "google",
}


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server that answers. `type` and `base_url` are what `providers` takes."""

    title: str
    type: str
    base_url: str
    models: tuple[str, ...]


_PLACES: Sequence[tuple[str, str, str]] = (
    ("Ollama", "ollama", "http://127.0.0.1:11434/v1"),
    ("llama.cpp", "openai", "http://127.0.0.1:8080/v1"),
)


async def detect_local(
    places: Sequence[tuple[str, str, str]] = _PLACES, *, timeout: float = SECONDS
) -> list[LocalServer]:
    """The servers that answer at (title, type, base_url), each asked once for its models and not waited for long."""
    async with httpx.AsyncClient(timeout=timeout, verify=False, trust_env=False) as client:
        found = await asyncio.gather(*(_ask(client, *place) for place in places))
    return [server for server in found if server is not None]


def keys_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Variable -> type of provider, for the usual key variables that are set. Nothing is called."""
    return {name: kind for name, kind in KEY_VARIABLES.items() if environ.get(name, "").strip()}


async def _ask(client: httpx.AsyncClient, title: str, kind: str, base_url: str) -> LocalServer | None:
    try:
        answer = await client.get(f"{base_url}/models")
        if answer.status_code != 200 or len(answer.content) > LONGEST_LIST:
            return None
        names = tuple(str(model["id"]) for model in answer.json()["data"] or ())
    except (httpx.HTTPError, ValueError, AttributeError, TypeError, KeyError):
        return None
    return LocalServer(title, kind, base_url, names)
