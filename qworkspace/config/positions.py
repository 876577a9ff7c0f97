"""Where in a JSON text each value stands, and what is wrong with a text that is not JSON, in words that help."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import NoReturn

Path = tuple[str | int, ...]

MAX_DEPTH = 100
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERALS = ("true", "false", "null")


class BadJson(ValueError):
    """Not JSON, or JSON with a key twice; `line` and `column` count from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"{reason} (line {line}, column {column})")
        self.reason = reason
        self.line = line
        self.column = column


@dataclass(slots=True)
class Positions:
    """Offsets of all values and keys of a text, by path: ("tools", "shell", "policy", 0)."""

    text: str
    values: dict[Path, int] = field(default_factory=dict)
    keys: dict[Path, int] = field(default_factory=dict)

    def of(self, path: Path) -> tuple[int, int]:
        """Line and column of the value; of the nearest one around it when there is no such value."""
        while path and path not in self.values:
            path = path[:-1]
        return line_column(self.text, self.values.get(path, 0))

    def of_key(self, path: Path) -> tuple[int, int]:
        """Line and column of the key that names the value; of the value where it has none."""
        return line_column(self.text, self.keys[path]) if path in self.keys else self.of(path)


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column, both from 1, of an offset in characters."""
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def scan(text: str) -> Positions:
    """The positions of everything in `text`; `BadJson` when it is not strict JSON or an object has a key twice."""
    return _Scanner(text).scan()


class _Scanner:
    """One pass over a text. Strict: no comments, no trailing commas, no NaN, no number out of range."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found = Positions(text)

    def scan(self) -> Positions:
        self._skip()
        if self._at == len(self._text):
            self._fail("the file is empty" if not self._text.strip() else "a value is missing")
        self._value((), 0)
        self._skip()
        if self._at < len(self._text):
            self._fail("something follows after the end of the value")
        return self._found

    def _value(self, path: Path, depth: int) -> None:
        self._found.values[path] = self._at
        char = self._peek()
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep")
        if char == "{":
            self._object(path, depth)
        elif char == "[":
            self._array(path, depth)
        elif char == '"':
            self._string()
        else:
            self._scalar()

    def _object(self, path: Path, depth: int) -> None:
        seen: dict[str, int] = {}
        self._at += 1
        while not self._closes("}", bool(seen)):
            start = self._at
            if self._peek() != '"':
                self._fail_at_key()
            key: str = json.loads(self._string())
            if key in seen:
                lines = line_column(self._text, seen[key])[0], line_column(self._text, start)[0]
                self._fail(f'the key "{key}" is there twice, in line {lines[0]} and in line {lines[1]}', start)
            seen[key] = start
            self._found.keys[(*path, key)] = start
            self._skip()
            if self._peek() != ":":
                self._fail(f'a ":" is missing after the key "{key}"')
            self._at += 1
            self._skip()
            self._value((*path, key), depth + 1)

    def _array(self, path: Path, depth: int) -> None:
        count = 0
        self._at += 1
        while not self._closes("]", count > 0):
            self._value((*path, count), depth + 1)
            count += 1

    def _closes(self, bracket: str, after_value: bool) -> bool:
        """Step over what stands between two values; True when it was the closing bracket."""
        self._skip()
        if self._peek() == bracket:
            self._at += 1
            return True
        if not after_value:
            return False
        if self._peek() != ",":
            self._fail_between(bracket)
        comma = self._at
        self._at += 1
        self._skip()
        if self._peek() == bracket:
            self._fail(f'there is a comma before the "{bracket}"; remove it', comma)
        return False

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            self._fail_in_string()
        self._at = match.end()
        return match[0]

    def _scalar(self) -> None:
        literal = next((word for word in _LITERALS if self._text.startswith(word, self._at)), None)
        if literal is not None:
            self._at += len(literal)
            return
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._fail_at_value()
        if not math.isfinite(float(match[0])):
            self._fail("the number is too large")
        self._at = match.end()

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise BadJson(reason, *line_column(self._text, self._at if at is None else at))

    def _fail_between(self, bracket: str) -> NoReturn:
        char = self._peek()
        if not char:
            self._fail(f'the file ends before the closing "{bracket}"')
        if char in "/#":
            self._fail("JSON has no comments; remove this one")
        self._fail(f'a "," or "{bracket}" is missing before {char!r}')

    def _fail_at_key(self) -> NoReturn:
        char = self._peek()
        if not char:
            self._fail('the file ends before the closing "}"')
        if char in "/#":
            self._fail("JSON has no comments; remove this one")
        if char == "'":
            self._fail("keys stand in double quotes, not in single ones")
        self._fail(f"a key in double quotes is expected, not {char!r}")

    def _fail_at_value(self) -> NoReturn:
        char = self._peek()
        word = _WORD.match(self._text, self._at)
        if not char:
            self._fail("the file ends where a value is expected")
        if char == "'":
            self._fail("texts stand in double quotes, not in single ones")
        if char in "/#":
            self._fail("JSON has no comments; remove this one")
        if word is not None and word[0].lower() in ("true", "false", "null", "none"):
            meant = {"none": "null"}.get(word[0].lower(), word[0].lower())
            self._fail(f"{word[0]} is written {meant} in JSON")
        self._fail(f"a value is expected, not {word[0] if word else char!r}; texts stand in double quotes")

    def _fail_in_string(self) -> NoReturn:
        end = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*').match(self._text, self._at)
        stop = end.end() if end else self._at
        char = self._text[stop : stop + 1]
        if char in ("", "\n", "\r"):
            self._fail("a text is not closed; a '\"' is missing in this line")
        if char == "\\":
            self._fail(r'a "\" in a text is written "\\"', stop)
        self._fail("a text holds a control character; write it as an escape like \\t", stop)
