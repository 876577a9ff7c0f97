"""Providers that could be connected, from what the environment already holds. Nothing is called here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qworkspace.config.home import ProviderType


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A provider to offer: what to write into `providers`, and a model to begin with."""

    name: str
    title: str
    type: ProviderType
    base_url: str | None
    variable: str | None
    model: str | None

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
    _Known("anthropic", "Anthropic", ("ANTHROPIC_API_KEY",), "anthropic", None, "claude-sonnet-4-5"),
    _Known("openai", "OpenAI", ("OPENAI_API_KEY",), "openai", None, "gpt-5-mini"),
    _Known("google", "Google Gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "google", None, "gemini-2.5-flash"),
    _Known("deepseek", "DeepSeek", ("DEEPSEEK_API_KEY",), "openai", "https://api.deepseek.com/v1", "deepseek-chat"),
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
    _Known("groq", "Groq", ("GROQ_API_KEY",), "openai", "https://api.groq.com/openai/v1", "llama-3.3-70b-versatile"),
    _Known("moonshot", "Moonshot (Kimi)", ("MOONSHOT_API_KEY",), "openai", "https://api.moonshot.cn/v1", "kimi-latest"),
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
    _Known("xai", "xAI", ("XAI_API_KEY",), "openai", "https://api.x.ai/v1", "grok-4"),
)
"""Models named here are only a first choice for the form; a provider's own list replaces them."""

LOCAL_SERVERS = (
    Suggestion("ollama", "Ollama on this machine", "ollama", "http://127.0.0.1:11434/v1", None, None),
    Suggestion("llamacpp", "llama.cpp on this machine", "openai", "http://127.0.0.1:8080/v1", None, None),
)
"""Servers that need no key and may be running here; whoever looks for them asks the person first."""


def suggest_providers(environ: Mapping[str, str]) -> list[Suggestion]:
    """The providers whose usual key variable is set and not empty."""
    found = []
    for known in _KNOWN:
        variable = next((name for name in known.variables if environ.get(name, "").strip()), None)
        if variable is not None:
            found.append(Suggestion(known.name, known.title, known.type, known.base_url, variable, known.model))
    host = environ.get("OLLAMA_HOST", "").strip()
    if host:
        found.append(Suggestion("ollama", "Ollama", "ollama", _ollama_url(host), None, None))
    return found


def _ollama_url(host: str) -> str:
    """OLLAMA_HOST may be a bare address, and 0.0.0.0 is where it listens, not where it is reached."""
    scheme, _, rest = host.rpartition("://")
    address = rest.rstrip("/")
    name, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()):
        name, port = address, "11434"
    name = "127.0.0.1" if name in ("", "0.0.0.0", "[::]") else name
    return f"{scheme or 'http'}://{name}:{port}/v1"
