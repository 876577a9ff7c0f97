"""Providers by type: the client that is shared, and the models made with it."""

# Heavy: imported by `qworkspace.chat.models` in a thread, when the first model of a provider is wanted.

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from qworkspace.chat.context import window_of
from qworkspace.chat.convert import Dialect
from qworkspace.chat.hosted import HostedModel, ModelFacts
from qworkspace.chat.openai_stream import LeanOpenAI
from qworkspace.config.models import ModelRef, ProviderConfig, is_loopback
from qworkspace.errors import ModelError

OPENAI = "https://api.openai.com/v1"
OLLAMA = "http://127.0.0.1:11434/v1"
ANTHROPIC = "https://api.anthropic.com"
NO_KEY = "no-key"
_CONNECTIONS = httpx2.Limits(max_connections=500, max_keepalive_connections=50)
_WANTS_COMPLETION_LIMIT = re.compile(r"(^|/)(o\d|gpt-[5-9])")
_USUAL = frozenset(
    {
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "parallel_tool_calls",
        "tool_choice",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop_sequences",
        "thinking",
        "service_tier",
        "cache",
        "extra_headers",
        "extra_body",
    }
)
_OWN_PREFIXES = ("openai_", "anthropic_", "google_")


class Connection:
    """One provider's client and the models over it. A retired one closes when its last answer has ended."""

    def __init__(self, name: str, config: ProviderConfig, *, tls: Callable[[], ssl.SSLContext]) -> None:
        self.config = config
        self._name = name
        self._http = _http_client(config, tls)
        self._make, self._dialect = _KINDS[config.type](name, config, self._http)
        self._models: dict[str, HostedModel] = {}
        self._leases = 0
        self._retired = False

    def model(self, name: str) -> HostedModel:
        """The model of that name; the same object each time."""
        known = self._models.get(name)
        if known is None:
            known = self._models[name] = self._hosted(name)
        return known

    async def retire(self) -> None:
        """No new models; the client closes now, or after the answers that are under way."""
        self._retired = True
        if not self._leases:
            await self._http.aclose()

    async def close(self) -> None:
        """Close the client at once. Idempotent."""
        self._retired = True
        await self._http.aclose()

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[None]:
        self._leases += 1
        try:
            yield
        finally:
            self._leases -= 1
            if self._retired and not self._leases:
                await self._http.aclose()

    def _hosted(self, name: str) -> HostedModel:
        info = self.config.model_info(name)
        facts = ModelFacts(
            ref=ModelRef(provider=self._name, name=name),
            context_window=info.context_window or window_of(name),
            price=info.price,
            vision=info.vision,
            timeouts=self.config.timeouts,
        )
        return HostedModel(
            facts,
            self._make(name),
            self._dialect,
            lease=self._lease,
            settings=_settings_for(self.config.type),
            secret=_key(self.config) or "",
        )


MakeModel = Callable[[str], Model[Any]]


def _openai(name: str, config: ProviderConfig, http: httpx2.AsyncClient) -> tuple[MakeModel, Dialect]:
    official = (urlsplit(config.base_url or OPENAI).hostname or "") == "api.openai.com"
    if official and not _key(config):
        raise _no_key(name)
    client = _sdk(config, http, config.base_url or OPENAI)
    if official:
        provider: OpenAIProvider | OpenAICompatibleProvider = OpenAIProvider(openai_client=client)
    else:
        provider = OpenAICompatibleProvider(name, openai_client=client)

    def make(model: str) -> Model[Any]:
        return OpenAIChatModel(model, provider=provider, profile=_profile(model, official=official))

    return make, Dialect(provider.name, signed_reasoning_only=False)


def _ollama(name: str, config: ProviderConfig, http: httpx2.AsyncClient) -> tuple[MakeModel, Dialect]:
    # Its own profiles are few; imported here because most homes have no such provider.
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    address = config.base_url or OLLAMA
    if urlsplit(address).path in ("", "/"):
        address = address.rstrip("/") + "/v1"
    provider = OllamaProvider(openai_client=_sdk(config, http, address))

    def make(model: str) -> Model[Any]:
        return OllamaModel(model, provider=provider, profile=_profile(model, official=False))

    return make, Dialect(provider.name, signed_reasoning_only=False)


def _anthropic(name: str, config: ProviderConfig, http: httpx2.AsyncClient) -> tuple[MakeModel, Dialect]:
    try:  # An extra, imported only when such a provider is configured.
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
    except ImportError as error:
        raise _missing_extra(name, "anthropic") from error
    key = _key(config)
    if not key:
        raise _no_key(name)
    client = AsyncAnthropic(
        api_key=key,
        base_url=config.base_url or ANTHROPIC,
        max_retries=0,
        timeout=http.timeout,
        http_client=http,
        default_headers=_headers(config),
    )
    provider = AnthropicProvider(anthropic_client=client)
    return lambda model: AnthropicModel(model, provider=provider), Dialect(provider.name, signed_reasoning_only=True)


def _google(name: str, config: ProviderConfig, http: httpx2.AsyncClient) -> tuple[MakeModel, Dialect]:
    try:  # An extra, imported only when such a provider is configured.
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider
    except ImportError as error:
        raise _missing_extra(name, "google") from error
    key = _key(config)
    if not key:
        raise _no_key(name)
    http.headers.update(_headers(config))
    provider = GoogleProvider(api_key=key, base_url=config.base_url, http_client=http)
    return lambda model: GoogleModel(model, provider=provider), Dialect(provider.name, signed_reasoning_only=True)


_KINDS: dict[str, Callable[[str, ProviderConfig, httpx2.AsyncClient], tuple[MakeModel, Dialect]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "google": _google,
    "ollama": _ollama,
}


def _http_client(config: ProviderConfig, tls: Callable[[], ssl.SSLContext]) -> httpx2.AsyncClient:
    """Silence is judged by whoever reads the stream, so that a slow answer is no read timeout here."""
    address = urlsplit(config.base_url or (OLLAMA if config.type == "ollama" else OPENAI))
    timeouts = config.timeouts
    limit = max(timeouts.first_token, timeouts.idle) + 60
    return httpx2.AsyncClient(
        verify=tls() if address.scheme == "https" else False,
        trust_env=not is_loopback(address.hostname or ""),
        timeout=httpx2.Timeout(limit, connect=timeouts.connect),
        limits=_CONNECTIONS,
        follow_redirects=True,
    )


def _sdk(config: ProviderConfig, http: httpx2.AsyncClient, address: str) -> LeanOpenAI:
    client = LeanOpenAI(
        api_key=_key(config) or NO_KEY,
        base_url=address,
        max_retries=0,
        timeout=http.timeout,
        http_client=http,
        default_headers=_headers(config),
    )
    client.organization = client.project = None  # else taken from the environment, and sent to whatever address
    return client


def _profile(model: str, *, official: bool) -> OpenAIModelProfile:
    """One system message, schemas as they are, and the name of the limit that the server knows."""
    profile = OpenAIModelProfile(json_schema_transformer=None, openai_chat_supports_multiple_system_messages=False)
    if not official and not _WANTS_COMPLETION_LIMIT.search(model):
        profile["openai_chat_supports_max_completion_tokens"] = False
    return profile


def _settings_for(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Settings as the library takes them: unusual ones go into the body of OpenAI-compatible requests."""

    def settings(given: dict[str, Any]) -> dict[str, Any]:
        usual = {key: value for key, value in given.items() if key in _USUAL or key.startswith(_OWN_PREFIXES)}
        unusual = {key: value for key, value in given.items() if key not in usual}
        if kind in ("openai", "ollama"):
            if "top_k" in usual:
                unusual["top_k"] = usual.pop("top_k")
            if unusual:
                usual["extra_body"] = {**unusual, **usual.get("extra_body", {})}
        elif kind == "anthropic":
            usual.setdefault("cache", True)
        return usual

    return settings


def _key(config: ProviderConfig) -> str | None:
    return config.api_key.get_secret_value().strip() if config.api_key is not None else None


def _headers(config: ProviderConfig) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in config.headers.items()}


def _no_key(name: str) -> ModelError:
    return ModelError(f"provider {name!r} has no key: set providers.{name}.api_key", code="model_unauthorized")


def _missing_extra(name: str, extra: str) -> ModelError:
    return ModelError(
        f"provider {name!r} needs the library of {extra!r}: pip install 'qworkspace[{extra}]'", code="missing_extra"
    )
