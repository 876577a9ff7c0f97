"""The keys of the design that this daemon grew from, as ours: an existing workspace can be brought along."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]

_MEMORY = ("running", "memory")
_LIGHT = ("running", "reme_light_memory_config")
_DATABASE = ("running", "adbpg_memory_config")

_MOVES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("active_model",), ("model",)),
    (("heartbeat", "activeHours"), ("heartbeat", "active_hours")),
    (("heartbeat", "timeoutSeconds"), ("heartbeat", "timeout")),
    (("heartbeat", "timeout_seconds"), ("heartbeat", "timeout")),
    (("mcp", "clients"), ("drivers",)),
    (("tools", "builtin_tools"), ("tools",)),
    (("running", "max_input_length"), ("running", "max_input_tokens")),
    ((*_LIGHT, "dream_cron"), ("cron", "dream_cron")),
    ((*_LIGHT, "auto_memory_search_config"), (*_MEMORY, "auto_memory_search")),
    ((*_LIGHT, "embedding_model_config"), (*_MEMORY, "embedding")),
    (_LIGHT, _MEMORY),
    (_DATABASE, (*_MEMORY, "postgres")),
)
"""(theirs, ours), in the order in which they are applied; a table that moves is merged key by key."""

_BACKENDS = {"remelight": "markdown", "adbpg": "pgvector", "postgres": "pgvector"}


@dataclass(slots=True)
class Translation:
    """A configuration in our keys, where its parts stood, and the aliases that an own key makes useless."""

    data: dict[str, Any]
    moved: list[tuple[Path, Path]] = field(default_factory=list)
    shadowed: list[Path] = field(default_factory=list)

    def origin(self, path: Path) -> Path:
        """Where the value of `path` stands in the file."""
        best = max((move for move in self.moved if path[: len(move[0])] == move[0]), key=_length, default=None)
        return path if best is None else best[1] + path[len(best[0]) :]


def translate(raw: dict[str, Any]) -> Translation:
    """`raw` with the design's keys renamed. Our own key wins where both are present. `raw` stays as it is."""
    result = Translation(raw)
    for theirs, ours in _MOVES:
        value = _find(result.data, theirs)
        if value is None:
            continue
        result.data = _without(result.data, theirs)
        _place(result, theirs, ours, value)
    backend = _find(result.data, ("running", "memory_manager_backend"))
    if isinstance(backend, str) and backend in _BACKENDS:
        result.data = _with(result.data, ("running", "memory_manager_backend"), _BACKENDS[backend])
    return _embedding(result)


def _place(result: Translation, theirs: Path, ours: tuple[str, ...], value: Any) -> None:
    present = _find(result.data, ours)
    if present is None:
        result.data = _with(result.data, ours, value)
        result.moved.append((ours, theirs))
    elif isinstance(present, dict) and isinstance(value, dict):
        for key, item in value.items():
            _place(result, (*theirs, key), (*ours, key), item)
    else:
        result.shadowed.append(theirs)


def _embedding(result: Translation) -> Translation:
    """The design names an embedding model by its endpoint, we by a provider; without a model it is the built-in one."""
    path = (*_MEMORY, "embedding")
    table = _find(result.data, path)
    if isinstance(table, dict) and "model_name" in table and "name" not in table and "provider" not in table:
        renamed = {("name" if key == "model_name" else key): item for key, item in table.items()}
        renamed["provider"] = table.get("backend") or "openai"
        result.data = _with(result.data, path, renamed if table["model_name"] else None)
    return result


def _find(data: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def _with(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return data | {head: value}
    inner = data.get(head)
    return data | {head: _with(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def _without(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """`data` without the value of `path`, and without tables that are empty then."""
    head, *rest = path
    inner = _without(data[str(head)], tuple(rest)) if rest else None
    return {key: (inner if key == head else value) for key, value in data.items() if key != head or inner}


def _length(move: tuple[Path, Path]) -> int:
    return len(move[0])
