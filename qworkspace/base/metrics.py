"""What the daemon counts, in Prometheus' terms: fed by the event bus and the HTTP side, read at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from qworkspace.base.events import Event, EventBus

TURN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
FIRST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
ENDED = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})


class Metrics(Protocol):
    """What is told to the metrics; the rest they learn from the bus."""

    def request(self, route: str, method: str, status: int) -> None:
        """An HTTP request was answered."""

    def sse_client(self) -> Any:
        """A context manager: an event stream is open meanwhile."""

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read at each scrape, as `qworkspace_<name>`."""

    def render(self) -> tuple[bytes, str]:
        """The Prometheus text and its content type."""


class NoMetrics:
    """Counts nothing."""

    def request(self, route: str, method: str, status: int) -> None:
        """Not counted."""

    @contextmanager
    def sse_client(self) -> Iterator[None]:
        """Not counted."""
        yield

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Not read."""

    def render(self) -> tuple[bytes, str]:
        return b"", "text/plain; version=0.0.4; charset=utf-8"


class PrometheusMetrics:
    """Counters of one daemon in a registry of its own. Make it after the port is bound: the library takes 25 ms."""

    def __init__(self, bus: EventBus) -> None:
        import prometheus_client as prometheus  # heavy: not before the port is bound

        self._library = prometheus
        self._registry = registry = prometheus.CollectorRegistry(auto_describe=True)

        def counter(name: str, text: str, *labels: str) -> Any:
            return prometheus.Counter(f"qworkspace_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            return prometheus.Histogram(f"qworkspace_{name}", text, ["agent"], registry=registry, buckets=buckets)

        self._turns = counter("turns", "Turns that ended", "agent", "state", "source")
        self._seconds = histogram("turn_seconds", "Time of a turn", TURN_SECONDS)
        self._first_token = histogram("first_token_seconds", "Time to a turn's first text", FIRST_TOKEN_SECONDS)
        self._tokens = counter("tokens", "Tokens sent and received", "agent", "model", "direction")
        self._cost = counter("cost", "Cost in the prices' currency", "agent", "model")
        self._calls = counter("model_requests", "Model calls", "agent", "model")
        self._requests = counter("http_requests", "HTTP requests", "route", "method", "status")
        self._reloads = counter("reloads", "Changes of configuration", "agent", "outcome")
        self._problems = counter("problems_opened", "Problems that came up")
        self._streams = prometheus.Gauge("qworkspace_sse_clients", "Open event streams", registry=registry)
        self._unlisten = bus.log.listen(self._notice)

    def close(self) -> None:
        """Count no more events. Idempotent."""
        self._unlisten()

    def request(self, route: str, method: str, status: int) -> None:
        self._requests.labels(route, method, str(status)).inc()

    @contextmanager
    def sse_client(self) -> Iterator[None]:
        self._streams.inc()
        try:
            yield
        finally:
            self._streams.dec()

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._library.Gauge(f"qworkspace_{name}", text, registry=self._registry).set_function(read)

    def render(self) -> tuple[bytes, str]:
        return self._library.generate_latest(self._registry), self._library.CONTENT_TYPE_LATEST

    def _notice(self, event: Event) -> None:
        if event.type in ENDED:
            self._turn_ended(event.type.removeprefix("turn."), event.data)
        elif event.type == "model.used":
            self._model_used(event.data)
        elif event.type in ("reload.swapped", "reload.failed"):
            usual = "applied" if "swap_ms" in event.data else "live"
            self._reloads.labels(str(event.data.get("agent_id", "")), event.data.get("outcome", usual)).inc()
        elif event.type == "problem.opened":
            self._problems.inc()

    def _turn_ended(self, state: str, data: dict[str, Any]) -> None:
        agent = str(data.get("agent_id", ""))
        self._turns.labels(agent, state, str(data.get("source", ""))).inc()
        self._seconds.labels(agent).observe(data.get("duration_ms", 0) / 1000)
        if data.get("first_token_ms") is not None:
            self._first_token.labels(agent).observe(data["first_token_ms"] / 1000)
        self._model_used(data)

    def _model_used(self, data: dict[str, Any]) -> None:
        agent, usage = str(data.get("agent_id", "")), data.get("usage") or {}
        if not usage.get("requests"):
            return
        model = str(data.get("model", ""))
        self._calls.labels(agent, model).inc(usage["requests"])
        self._tokens.labels(agent, model, "input").inc(usage.get("input_tokens", 0))
        self._tokens.labels(agent, model, "output").inc(usage.get("output_tokens", 0))
        if usage.get("cost"):
            self._cost.labels(agent, model).inc(usage["cost"])
