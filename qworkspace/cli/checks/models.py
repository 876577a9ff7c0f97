"""Checks of the models: one is connected, its provider answers and takes the key, its clock is ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from qworkspace.cli.checks.finding import Finding, Subject, ok, warning, wrong
from qworkspace.config.home import HomeConfig, ProviderConfig

SECONDS = 8.0
SKEW = timedelta(seconds=60)
CONNECT = (
    "name one in config.json, as in: "
    '"providers": {"openai": {"type": "openai", "api_key": "${OPENAI_API_KEY}", "models": [{"name": "…"}]}}, '
    '"default_model": {"provider": "openai", "name": "…"}; `qworkspace models list --detect` looks for one nearby'
)
ENDPOINTS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta",
    "ollama": "http://127.0.0.1:11434/v1",
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What a provider answered when it was asked for its models."""

    status: int | None
    error: str = ""
    date: datetime | None = None


def connected(subject: Subject) -> Iterator[Finding]:
    """A model that thinks is configured, and the default one is of a provider that exists."""
    if subject.config is None:
        return
    real = _real(subject.config)
    if not real:
        yield warning("model", "no model is connected: the built-in offline provider answers", CONNECT)
        return
    chosen = subject.config.default_model
    if chosen is None:
        yield warning("model", "no default model is chosen", f'set "default_model"; providers: {", ".join(real)}')
    elif chosen.provider not in subject.config.providers and chosen.provider != "offline":
        yield wrong(
            "model",
            f"the default model {chosen} is of a provider that is not configured",
            f"providers: {', '.join(real)}",
        )
    elif chosen.provider not in real:
        yield warning("model", f"the default model is {chosen}", f"providers that think: {', '.join(real)}")
    else:
        yield ok("model", f"the default model is {chosen}")


def providers(subject: Subject) -> Iterator[Finding]:
    """Each configured provider answers and takes its key; its clock and ours agree."""
    if subject.config is None:
        return
    for name, provider in _real(subject.config).items():
        missing = provider.missing_variables()
        if missing:
            yield wrong(
                f"provider {name}",
                f"its key is not there: {', '.join(missing)} is neither in the environment nor in secrets.json",
                f"export {missing[0]}=… before `qworkspace up`, or add it to {subject.home / 'secrets.json'}",
            )
        elif subject.network:
            yield from _asked(name, provider)


def _asked(name: str, provider: ProviderConfig) -> Iterator[Finding]:
    url = _endpoint(provider)
    if url is None:
        return
    probe = ask(url, provider)
    check = f"provider {name}"
    if probe.status is None:
        advice = "turns wait and are retried, then the fallback models answer; check the address and the network"
        yield warning(check, f"{url} does not answer: {probe.error}", advice)
    elif probe.status in (401, 403):
        yield wrong(
            check, f"{url} rejects the key ({probe.status})", "make a new key there and put it where the old one is"
        )
    elif probe.status >= 500 or probe.status == 429:
        yield warning(check, f"{url} answers {probe.status}", "it has a problem or a limit; try again later")
    else:
        yield ok(check, f"{url} answers and takes the key")
    if probe.date is not None:
        yield from _skew(name, probe.date)


def _skew(name: str, theirs: datetime) -> Iterator[Finding]:
    difference = datetime.now(UTC) - theirs
    if abs(difference) > SKEW:
        way = "ahead of" if difference > timedelta() else "behind"
        yield wrong(
            "clock",
            f"this machine's clock is {timedelta(seconds=round(abs(difference).total_seconds()))} {way} {name}'s",
            "set the clock (timedatectl set-ntp true): jobs, heartbeats and certificates depend on it",
        )
    else:
        yield ok("clock", f"agrees with {name}'s")


def ask(url: str, provider: ProviderConfig) -> Probe:
    """Ask for the list of models: costs nothing and needs the key."""
    headers = {key: value.get_secret_value() for key, value in provider.headers.items()} | _credentials(provider)
    try:
        answer = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Probe(None, str(error) or type(error).__name__)
    return Probe(answer.status_code, date=_date(answer))


def _credentials(provider: ProviderConfig) -> dict[str, str]:
    key = provider.api_key.get_secret_value() if provider.api_key is not None else ""
    if not key:
        return {}
    if provider.type == "anthropic":
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if provider.type == "google":
        return {"x-goog-api-key": key}
    return {"Authorization": f"Bearer {key}"}


def _date(answer: httpx.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers["date"])
    except (KeyError, ValueError):
        return None


def _endpoint(provider: ProviderConfig) -> str | None:
    return provider.base_url or ENDPOINTS.get(provider.type)


def _real(config: HomeConfig) -> dict[str, ProviderConfig]:
    return {name: provider for name, provider in config.providers.items() if provider.type != "offline"}
