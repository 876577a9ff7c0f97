"""From the configuration of providers to models that answer."""

from __future__ import annotations

import gc
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from qworkspace.base.tasks import SingleFlight, Threads
from qworkspace.chat.context import DEFAULT_WINDOW
from qworkspace.chat.offline import OFFLINE, OfflineModel, Search
from qworkspace.chat.trimming import trim_libraries
from qworkspace.chat.wire import ChatModel, ModelEvent, Prompt
from qworkspace.config.models import (
    AgentConfig,
    HomeConfig,
    ModelRef,
    Price,
    ProviderConfig,
    RunningConfig,
    TimeoutsConfig,
)
from qworkspace.errors import ModelError

if TYPE_CHECKING:
    from qworkspace.chat.providers import Connection

TYPES = ("openai", "anthropic", "google", "ollama", "offline")


class ModelSource:
    """The models of a home. A provider's client is made once and shared until its configuration changes."""

    def __init__(
        self, home: Callable[[], HomeConfig], *, threads: Threads | None = None, search: Search | None = None
    ) -> None:
        self._home = home
        self._threads = threads or Threads(1, "models")
        self._owns_threads = threads is None
        self._offline = OfflineModel(search=search)
        self._connections: dict[str, Connection] = {}
        self._building: SingleFlight[Connection] = SingleFlight()
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    def chain(self, config: AgentConfig, override: ModelRef | None = None, role: str | None = None) -> list[ModelRef]:
        """The model to ask, then those to fall back to. Never empty: without any model it is the offline one.

        First of: `override`, the home's model for `role`, the agent's, the home's default, the first one listed.
        """
        home = self._home()
        own = config.model or home.default_model or _first_listed(home) or OFFLINE
        special = getattr(home.roles, role, None) if role else None
        first = [override] if override is not None else [special, own] if special is not None else [own]
        return list(dict.fromkeys([*first, *config.fallback_models]))

    def names(self) -> list[str]:
        """Every listed `provider/name`; the offline model when there is no other."""
        listed = [str(ModelRef(provider=name, name=info.name)) for name, info in self._listed()]
        return listed or [str(OFFLINE)]

    async def get(self, ref: ModelRef) -> ChatModel:
        """The model of that name. One that cannot be had is a model whose every answer is the reason why."""
        config = self._home().providers.get(ref.provider)
        if ref.provider == OFFLINE.provider and (config is None or config.type == "offline"):
            return self._offline
        fault = _fault(ref, config, self._home())
        if fault is not None or config is None:
            return BrokenModel(ref, fault or ModelError(f"no model {ref}"))
        if config.type == "offline":
            return self._offline
        try:
            return (await self._connection(ref.provider, config)).model(ref.name)
        except ModelError as error:
            return BrokenModel(ref, error)

    async def preload(self) -> None:
        """Import the library and make the clients that are configured, in a thread. Offline homes import nothing."""
        for name, config in self._home().providers.items():
            if config.type != "offline" and config.type in TYPES and not config.missing_variables():
                try:
                    await self._connection(name, config)
                except ModelError:
                    continue  # told by the first turn that wants it

    async def close(self) -> None:
        """Close every client, and with them the answers under way. Idempotent."""
        self._closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.close()
        if self._owns_threads:
            self._threads.close()

    def _listed(self) -> list[tuple[str, Any]]:
        return [(name, info) for name, config in self._home().providers.items() for info in config.models]

    async def _connection(self, name: str, config: ProviderConfig) -> Connection:
        known = self._connections.get(name)
        if known is not None and (known.config is config or known.config == config):
            return known
        return await self._building.run(name, partial(self._build, name, config))

    async def _build(self, name: str, config: ProviderConfig) -> Connection:
        connection = await self._threads.run(self._make, name, config)
        if self._closed:
            await connection.close()
            raise ModelError("the daemon is stopping")
        replaced = self._connections.get(name)
        self._connections[name] = connection
        if replaced is not None:
            await replaced.retire()
        return connection

    def _make(self, name: str, config: ProviderConfig) -> Connection:
        with _imports_that_stay():
            trim_libraries()
            # Heavy: a second of imports, and certificates from disk. In a thread, and only when a model is wanted.
            from qworkspace.chat.providers import Connection

            return Connection(name, config, tls=self._certificates)

    def _certificates(self) -> ssl.SSLContext:
        if self._tls is None:
            import httpx2  # heavy, see above

            self._tls = httpx2.create_ssl_context()
        return self._tls


@contextmanager
def _imports_that_stay() -> Iterator[None]:
    """Keep what is made in the block out of later garbage collections.

    The libraries are half a million objects that live as long as the process: walking them stops every thread of it
    for 0.2 s, several times while they are imported and again and again later.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class BrokenModel:
    """`ChatModel` that cannot answer and says why, so that the next one in the chain is asked."""

    def __init__(self, ref: ModelRef, error: ModelError) -> None:
        self.ref = ref
        self.error = error
        self.context_window = DEFAULT_WINDOW
        self.price: Price | None = None
        self.vision = False
        self.timeouts = TimeoutsConfig()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        """Raises the reason."""
        for event in self._events():
            yield event

    def _events(self) -> list[ModelEvent]:
        raise self.error


def _first_listed(home: HomeConfig) -> ModelRef | None:
    for name, config in home.providers.items():
        if config.type != "offline" and config.models and not config.missing_variables():
            return ModelRef(provider=name, name=config.models[0].name)
    return None


def _fault(ref: ModelRef, config: ProviderConfig | None, home: HomeConfig) -> ModelError | None:
    if config is None:
        known = ", ".join(sorted(home.providers)) or "none"
        return ModelError(
            f"model {ref}: no provider {ref.provider!r} in config.json; configured: {known}", code="model_not_found"
        )
    if config.type not in TYPES:
        return ModelError(f"provider {ref.provider!r}: unknown type {config.type!r}; known: {', '.join(TYPES)}")
    missing = config.missing_variables()
    if missing:
        return ModelError(
            f"provider {ref.provider!r} needs {', '.join(missing)}: set it in the environment or in secrets.json",
            code="model_unauthorized",
        )
    return None


def settings_of(running: RunningConfig) -> dict[str, Any]:
    """What an agent's configuration sends along with each request: `Prompt.settings`."""
    settings: dict[str, Any] = dict(running.model_settings)
    if running.temperature is not None:
        settings["temperature"] = running.temperature
    if running.max_output_tokens is not None:
        settings["max_tokens"] = running.max_output_tokens
    return settings
