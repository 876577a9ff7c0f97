"""Providers that could be connected, from what this machine already has. No model and no provider is called here."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from qworkspace.config.home import ProviderType


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A provider to offer: what to write into `providers`, a model to begin with, and what speaks for it."""

    name: str
    title: str
    type: ProviderType
    base_url: str | None
    variable: str | None
    model: str | None
    why: str

    def provider(self) -> dict[str, Any]:
        """The entry for `providers.<name>` of config.json; the key stays a reference."""
        entry: dict[str, Any] = {"type": self.type}
        if self.base_url is not None:
            entry["base_url"] = self.base_url
        if self.variable is not None:
            entry["api_key"] = f"${{{self.variable}}}"
        return entry | {"models": [{"name": self.model}] if self.model else []}


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    title: str
    variables: tuple[str, ...]
    type: ProviderType
    base_url: str | None
    model: str


_KNOWN = (
    _Known("anthropic", "Anthropic", ("ANTHROPIC_API_KEY",), "anthropic", None, "claude-sonnet-5-5"),
    _Known("openai", "OpenAI", ("OPENAI_API_KEY",), "openai", None, "gpt-5-mini"),
    _Known("google", "Google Gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "google", None, "gemini-flash-latest"),
    _Known("deepseek", "DeepSeek", ("DEEPSEEK_API_KEY",), "openai", "https://api.deepseek.com/v1", "deepseek-flash"),
    _Known(
        "dashscope",
        "Alibaba Model Studio (Qwen)",
        ("DASHSCOPE_API_KEY",),
        "openai",
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        "qwen-plus",
    ),
    _Known(
        "openrouter", "OpenRouter", ("OPENROUTER_API_KEY",), "openai", "https://openrouter.ai/api/v1", "openrouter/auto"
    ),
    _Known("mistral", "Mistral", ("MISTRAL_API_KEY",), "openai", "https://api.mistral.ai/v1", "mistral-small-latest"),
    _Known("groq", "Groq", ("GROQ_API_KEY",), "openai", "https://api.groq.com/openai/v1", "openai/gpt-oss-20b"),
    _Known("moonshot", "Moonshot (Kimi)", ("MOONSHOT_API_KEY",), "openai", "https://api.moonshot.cn/v1", "kimi-k3"),
    _Known(
        "zhipu",
        "Zhipu (GLM)",
        ("ZHIPUAI_API_KEY", "ZHIPU_API_KEY", "ZAI_API_KEY"),
        "openai",
        "https://open.bigmodel.cn/api/paas/v4",
        "glm-4.6",
    ),
    _Known(
        "siliconflow",
        "SiliconFlow",
        ("SILICONFLOW_API_KEY",),
        "openai",
        "https://api.siliconflow.cn/v1",
        "Qwen/Qwen3-8B",
    ),
    _Known("xai", "xAI", ("XAI_API_KEY",), "openai", "https://api.x.ai/v1", "grok-4.3"),
)
"""Models named here are only a first choice for the form; a provider's own list replaces them."""

LOCAL_SERVERS = (
    Suggestion(
        "ollama", "Ollama", "ollama", "http://127.0.0.1:11434/v1", None, None, "something listens at its port, 11434"
    ),
    Suggestion(
        "llamacpp", "llama.cpp", "openai", "http://127.0.0.1:8080/v1", None, None, "something listens at its port, 8080"
    ),
)
"""Servers that need no key and may be running here."""
CONNECT_SECONDS = 0.3


def suggest_providers(environ: Mapping[str, str]) -> list[Suggestion]:
    """The providers whose usual key variable is set and not empty."""
    found = []
    for known in _KNOWN:
        variable = next((name for name in known.variables if environ.get(name, "").strip()), None)
        if variable is not None:
            why = f"${variable} is set"
            found.append(Suggestion(known.name, known.title, known.type, known.base_url, variable, known.model, why))
    host = environ.get("OLLAMA_HOST", "").strip()
    if host:
        found.append(Suggestion("ollama", "Ollama", "ollama", _ollama_url(host), None, None, "$OLLAMA_HOST is set"))
    return found


def suggestions_for(environ: Mapping[str, str], connected: Collection[str]) -> list[Suggestion]:
    """What could be connected and is not: by key variables, then servers on this machine."""
    found = {one.name: one for one in (*listening(), *suggest_providers(environ))}
    return [one for name, one in found.items() if name not in connected]


def listening(servers: Sequence[Suggestion] = LOCAL_SERVERS) -> list[Suggestion]:
    """Those at whose port somebody listens. Nothing is sent: who answers is asked when a person wants to know."""
    return [server for server in servers if _listens(server.base_url or "")]


def _listens(base_url: str) -> bool:
    address = urlsplit(base_url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 80), CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _ollama_url(host: str) -> str:
    """OLLAMA_HOST may be a bare address, and 0.0.0.0 is where it listens, not where it is reached."""
    scheme, _, rest = host.rpartition("://")
    address = rest.rstrip("/")
    name, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()):
        name, port = address, "11434"
    name = "127.0.0.1" if name in ("", "0.0.0.0", "[::]") else name
    return f"{scheme or 'http'}://{name}:{port}/v1"
