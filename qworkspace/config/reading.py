"""From a text to a checked configuration. Pure: no file, no environment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import ValidationError

from qworkspace.base.text import clean_text
from qworkspace.config.aliases import Path, Translation
from qworkspace.config.explain import UnknownKey, dotted, invalid, unknown_keys
from qworkspace.config.positions import MAX_DEPTH, BadJson, scan
from qworkspace.config.references import Lookup, Missing, substitute
from qworkspace.config.values import Section
from qworkspace.errors import InvalidConfig

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Reading(Generic[S]):
    """A configuration and how it came from its file."""

    config: S
    translation: Translation
    file: FilePath
    text: str

    def unknown_keys(self) -> list[UnknownKey]:
        """The keys of the file that no model knows."""
        return unknown_keys(self.config, self.translation, file=self.file, text=self.text)


@dataclass(frozen=True, slots=True)
class Source:
    """What to read: a parsed object, and its text and file for naming places in it."""

    raw: dict[str, Any]
    file: FilePath | None = None
    text: str | None = None

    def error(self, path: Path, reason: str, **details: Any) -> InvalidConfig:
        """An error about the value of `path`."""
        line, column = scan(self.text).of(path) if self.text is not None else (None, None)
        return InvalidConfig(
            f"{dotted(path)}: {reason}", file=self.file, line=line, column=column, path=dotted(path), **details
        )


def parse(text: str, *, file: FilePath | None = None) -> dict[str, Any]:
    """The JSON object in `text`; `InvalidConfig` with line and column for anything else, duplicate keys included."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise _bad(text, file, error) from None
    if not isinstance(value, dict):
        raise InvalidConfig("must be a JSON object {…}", file=file, line=1, column=1)
    if _deep(value):
        raise _bad(text, file, ValueError("nested too deeply"))
    return clean_value(value) if "\\ud" in text.lower() else value


def check(
    model: type[S],
    source: Source,
    lookup: Lookup,
    *,
    translate: Callable[[dict[str, Any]], Translation] = Translation,
    optional: Callable[[Path], bool] = lambda path: False,
) -> tuple[S, Translation]:
    """Validate with references replaced. One that nothing resolves is an error unless its place is `optional`."""
    data = source.raw
    if source.text is None and _deep(data):
        raise InvalidConfig("nested too deeply", file=source.file)
    if source.text is None or "${" in source.text:
        substitution = substitute(data, lookup)
        _refuse_missing(source, (item for item in substitution.missing if not optional(item.path)))
        data = substitution.value
    translation = translate(data)
    try:
        return model.model_validate(translation.data), translation
    except ValidationError as error:
        shown = Translation(translate(source.raw).data, translation.moved, translation.shadowed)
        raise invalid(error, shown, file=source.file, text=source.text) from None


def dump(raw: dict[str, Any]) -> str:
    """`raw` as it is stored: two spaces, keys in their order, letters as they are."""
    return json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def clean_value(value: Any) -> Any:
    """`value` with all texts valid Unicode: half a surrogate pair becomes U+FFFD."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_value(item) for key, item in value.items()}
    return [clean_value(item) for item in value] if isinstance(value, list) else value


def _refuse_missing(source: Source, missing: Iterable[Missing]) -> None:
    for item in missing:
        raise source.error(
            item.path,
            f"${{{item.name}}} is neither in the environment nor in secrets.json"
            f" (for the literal text write $${{{item.name}}})",
            variable=item.name,
        )


def _bad(text: str, file: FilePath | None, error: Exception) -> InvalidConfig:
    try:
        scan(text)
    except BadJson as bad:
        return InvalidConfig(bad.reason, file=file, line=bad.line, column=bad.column)
    return InvalidConfig(f"not usable: {error}", file=file)


def _deep(value: Any) -> bool:
    """Whether lists and objects stand in each other at the limit or beyond it."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [item for table in level for item in (table.values() if isinstance(table, dict) else table)]
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is there twice")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is too large")
    return number
