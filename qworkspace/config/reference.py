"""The reference pages, made from the models: `python -m qworkspace.config.reference agent > docs/agent-json.md`.

`changes` prints the table of fields and effects that stands in docs/configuration.md.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from qworkspace.config.effects import BUILT_IN, effect
from qworkspace.config.schema import MODELS, Kind
from qworkspace.config.values import ActiveHours, Cron, MarkdownPath, ModelRef, RelativePath, Seconds, TimeOfDay

_NAMES: tuple[tuple[Any, str], ...] = (
    (Seconds, "duration"),
    (Cron, "cron"),
    (TimeOfDay, "HH:MM"),
    (RelativePath, "path"),
    (MarkdownPath, "path of a .md"),
)
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true/false", SecretStr: "secret", Any: "anything"}

_INTRO: dict[Kind, str] = {
    "agent": """# agent.json

The whole configuration of one agent, in `workspaces/<id>/agent.json`. Every key is optional; `{}` is a valid file.
An edit is applied as soon as it is saved, as the column "on change" says; a file with a mistake changes nothing, and
status says where the mistake is. More about that in [configuration](configuration.md).
This page is made from the models in the code (`python -m qworkspace.config.reference agent`).
""",
    "home": """# config.json

What all agents share, in the home directory (`~/.qworkspace/config.json`). Every key is optional. The column
"on change" says from when on an edit counts; more about that in [configuration](configuration.md).
This page is made from the models in the code (`python -m qworkspace.config.reference home`).
""",
}
_FILES: dict[Kind, str] = {"agent": "agent.json", "home": "config.json"}
_WORDS = """
- **duration**: `"30m"`, `"1h30m"`, `"45s"`, `"250ms"`, `"2d"`, or a number of seconds.
- **model**: `{"provider": "openai", "name": "gpt-5-mini"}` or `"openai/gpt-5-mini"`; the provider is one of
  `providers` in config.json.
- **secret**: best written as `"${NAME}"`. In every text, `${NAME}` stands for the environment variable of that name,
  else for the entry in `secrets.json`; `$${NAME}` is the literal text. A name that nothing resolves is an error, but
  for `providers`, where the provider reports it when it is used, and for tables with `"enabled": false`.
- Keys that are not listed here are kept, and reported as unknown.
"""
_ALIASES = """
## Keys of earlier daemons

An agent.json of the design that this daemon grew from can be used as it is. Our own key wins where both are present.

| key | read as |
|---|---|
| `active_model` `{provider_id, model}` | `model` |
| `heartbeat.activeHours`, `heartbeat.timeoutSeconds` | `heartbeat.active_hours`, `heartbeat.timeout` |
| `mcp.clients` | `drivers` |
| `tools.builtin_tools` | `tools` |
| `running.max_input_length` | `running.max_input_tokens` |
| `running.memory_manager_backend` `"remelight"`, `"adbpg"` or `"postgres"` | `"markdown"`, `"pgvector"` |
| `running.reme_light_memory_config` | `running.memory` |
| … `.auto_memory_search_config`, `.embedding_model_config` | `running.memory.auto_memory_search`, `.embedding` |
| … `.dream_cron` | `cron.dream_cron` |
| `running.adbpg_memory_config` with `api_mode` `"sql"` | `running.memory.postgres` (`"rest"` is refused) |
"""


def reference(kind: Kind) -> str:
    """The page of agent.json or config.json, in markdown."""
    model = MODELS[kind]
    parts = [_INTRO[kind] + _WORDS, *(_table(kind, path, section) for path, section in _sections(model, ""))]
    return "\n".join(parts) + (_ALIASES if kind == "agent" else "")


def changes() -> str:
    """What an edit of each field does, in short: services, then one line per section and effect; in markdown."""
    lines = ["| service | reads | stands on |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {_names(one.sections)} | {_names(one.depends_on)} |" for one in BUILT_IN]
    lines.append("")
    for kind, file in _FILES.items():
        lines += [f"| {file} | fields | on change |", "|---|---|---|"]
        for path, model in _sections(MODELS[kind], ""):
            by_effect: dict[str, list[str]] = {}
            for name, field in model.model_fields.items():
                if not _type(_annotated(field)).startswith("table"):
                    by_effect.setdefault(effect(kind, _below(path, name)), []).append(f"`{name}`")
            where = f"`{path}`" if path else "top level"
            lines += [f"| {where} | {', '.join(names)} | {what} |" for what, names in by_effect.items()]
        lines.append("")
    return "\n".join(lines)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section with its path, in the order of the file."""
    yield path, model
    for name, field in model.model_fields.items():
        for inner, suffix in _inner_models(field.annotation):
            yield from _sections(inner, _below(path, name) + suffix)


def _inner_models(annotation: Any, suffix: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation is not ModelRef:
            yield annotation, suffix
        return
    origin = get_origin(annotation)
    deeper = ".<name>" if origin is dict else "[]" if origin is list else ""
    for argument in get_args(annotation):
        yield from _inner_models(argument, suffix + deeper)


def _table(kind: Kind, path: str, model: type[BaseModel]) -> str:
    lines = [f"## {path or 'Top level'}\n"] if path else ["## Top level\n"]
    if path:
        lines.append(f"{(model.__doc__ or '').splitlines()[0]}\n")
    lines += ["| key | value | default | on change | meaning |", "|---|---|---|---|---|"]
    for name, field in model.model_fields.items():
        value = _type(_annotated(field))
        what = "" if value == "table" else effect(kind, _below(path, name))
        cells = (f"`{name}`", value + _range(field, value), _default(field, value), what, field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _annotated(field: FieldInfo) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _type(annotation: Any) -> str:
    for alias, name in _NAMES:
        if _same(annotation, alias):
            return name
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return ", ".join(f'`"{choice}"`' for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _type(part) for part in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"{_type(arguments[1])} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "model" if annotation is ModelRef else "table"
    return _PLAIN.get(annotation, str(annotation))


def _same(annotation: Any, alias: Any) -> bool:
    """Whether it is that annotated type: the validators tell, as pydantic takes field constraints apart."""
    if get_origin(annotation) is not Annotated:
        return False
    mine = {id(function) for function in _functions(annotation)}
    return bool(mine & {id(function) for function in _functions(alias)})


def _functions(annotated: Any) -> Iterator[Any]:
    for item in get_args(annotated)[1:]:
        if hasattr(item, "func"):
            yield item.func


def _range(field: FieldInfo, kind: str) -> str:
    """The limits of a number, like ` ≥ 1, ≤ 50`."""
    if kind == "duration":
        return ""
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"))
    limits = [(sign, getattr(item, name, None)) for item in field.metadata for name, sign in signs]
    return ",".join(f" {sign} {limit}" for sign, limit in limits if limit is not None)


def _default(field: FieldInfo, kind: str) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, ActiveHours):
        return f"{default.start} to {default.end}"
    if default is PydanticUndefined or isinstance(default, BaseModel):
        return ""
    return f"`{json.dumps(_short(default) if kind == 'duration' else default, ensure_ascii=False)}`"


def _short(seconds: float) -> str:
    """A duration as a person writes it."""
    if seconds and seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds else "0"


def main(arguments: list[str]) -> int:
    """Print the page named by the only argument."""
    pages = {"agent": lambda: reference("agent"), "home": lambda: reference("home"), "changes": changes}
    make = pages.get(arguments[0] if arguments else "agent")
    if make is None:
        print(f"use: python -m qworkspace.config.reference {'|'.join(pages)}", file=sys.stderr)
        return 2
    print(make(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
