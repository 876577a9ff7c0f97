"""From a failed validation to words a person can act on: the place, the value, what it may be, what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from qworkspace.config.aliases import Translation
from qworkspace.config.hiding import mask
from qworkspace.config.positions import Path, Positions, scan
from qworkspace.config.values import Section
from qworkspace.errors import InvalidConfig

_WORDS = {
    "missing": "is missing",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "dict_type": "must be an object {…}",
    "model_type": "must be an object {…}",
    "model_attributes_type": "must be an object {…}",
    "list_type": "must be a list […]",
    "string_unicode": "must be valid Unicode",
}


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that no setting has; `near` is the one that may have been meant."""

    file: FilePath
    path: str
    near: str | None
    line: int | None = None
    column: int | None = None

    @property
    def message(self) -> str:
        """For status and doctor."""
        where = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{where}: unknown key {self.path!r}" + (f", did you mean {self.near!r}?" if self.near else "")


@dataclass(frozen=True, slots=True)
class _Finding:
    path: Path
    message: str
    near: str | None


def dotted(path: Path) -> str:
    """A path for people: `tools.shell.policy[0].decision`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like `word`, if any does."""
    matches = difflib.get_close_matches(word, [*known], n=1, cutoff=0.6)
    return matches[0] if matches else None


def invalid(
    error: ValidationError, translation: Translation, *, file: FilePath | str | None, text: str | None
) -> InvalidConfig:
    """The failed validation of `translation.data` as one error; `details["problems"]` has all that was found."""
    findings = _distinct([_finding(item, translation.data) for item in error.errors(include_url=False)])
    positions = scan(text) if text is not None else None
    problems = [_problem(finding, translation, positions) for finding in findings]
    first = problems[0]
    return InvalidConfig(
        first["message"], file=file, line=first["line"], column=first["column"], near=first["near"], problems=problems
    )


def unknown_keys(config: Section, translation: Translation, *, file: FilePath, text: str) -> list[UnknownKey]:
    """The keys of the file that no model knows, and aliases that an own key makes useless."""
    found = [(translation.origin(path), near) for path, near in _unknown(config, ())]
    found += [(path, None) for path in translation.shadowed]
    if not found:
        return []
    positions = scan(text)
    return [UnknownKey(file, dotted(path), near, *positions.of_key(path)) for path, near in found]


def _unknown(value: Any, path: Path) -> Iterable[tuple[Path, str | None]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _unknown(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, (*path, index))
    elif isinstance(value, BaseModel):
        fields = type(value).model_fields
        if isinstance(value, Section) and not value.free_keys:
            for key in value.model_extra or {}:
                yield (*path, key), nearest(key, fields)
        for name in fields:
            yield from _unknown(getattr(value, name), (*path, name))


def _finding(error: ErrorDetails, data: Any) -> _Finding:
    kind = error["type"]
    path, value = _place(error["loc"], data, missing=kind == "missing")
    if kind == "missing":
        return _missing(path, value)
    subject, requirement = dotted(path) or "the whole", _requirement(error)
    if error["loc"][-1:] == ("[key]",) or requirement.startswith("is "):
        return _Finding(path, f"{subject} {requirement}", None)
    near = nearest(str(value), _choices(error)) if kind == "literal_error" else None
    last = next((part for part in reversed(path) if isinstance(part, str)), "")
    meant = f'; did you mean "{near}"?' if near else ""
    return _Finding(path, f"{subject} {requirement}, not {_show(value, last)}{meant}", near)


def _missing(path: Path, parent: Any) -> _Finding:
    """A key that must be there; perhaps it is, misspelt."""
    misspelt = nearest(str(path[-1]), parent) if isinstance(parent, dict) else None
    if misspelt is None:
        return _Finding(path, f"{dotted(path)} is missing", None)
    return _Finding((*path[:-1], misspelt), f'{dotted(path)} is missing; "{misspelt}" may be meant', str(path[-1]))


def _place(loc: tuple[int | str, ...], data: Any, *, missing: bool) -> tuple[Path, Any]:
    """The path of an error within the data, and the value there: a location also names the branches of a union."""
    path: Path = ()
    for index, part in enumerate(loc):
        if _has(data, part):
            data = data[part]
            path = (*path, part)
        elif missing and index == len(loc) - 1:
            path = (*path, part)
    return path, data


def _has(data: Any, part: int | str) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, dict) and part in data


def _requirement(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _WORDS:
        return _WORDS[kind]
    if kind == "literal_error":
        return "must be one of " + ", ".join(f'"{choice}"' for choice in _choices(error))
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        words = {"greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "more than"}
        return f"must be {words.get(kind, 'less than')} {next(iter(context.values()))}"
    if kind == "value_error":
        message = str(context.get("error", error["msg"]))
        return message if message.startswith("must") else f"is refused: {message}"
    return error["msg"][:1].lower() + error["msg"][1:]


def _choices(error: ErrorDetails) -> list[str]:
    return [
        word.strip("'\"") for word in str(error.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
    ]


def _show(value: Any, key: str) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(mask(value, key))
    return text if len(text) <= 80 else text[:77] + "…'"


def _distinct(findings: list[_Finding]) -> list[_Finding]:
    """Without those that only say that another branch of a union did not fit either."""
    kept: dict[Path, _Finding] = {}
    for finding in findings:
        inner = any(other.path[: len(finding.path)] == finding.path != other.path for other in findings)
        if not inner:
            kept.setdefault(finding.path, finding)
    return [*kept.values()]


def _problem(finding: _Finding, translation: Translation, positions: Positions | None) -> dict[str, Any]:
    origin = translation.origin(finding.path)
    line, column = positions.of(origin) if positions is not None else (None, None)
    message = finding.message
    if origin != finding.path and message.startswith(dotted(finding.path)):
        message = dotted(origin) + message.removeprefix(dotted(finding.path))
    return {"path": dotted(origin), "message": message, "line": line, "column": column, "near": finding.near}
