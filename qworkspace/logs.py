"""One structured line per event: for people on the terminal, as JSON in the rotating file, never with a secret."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from qworkspace.base.scope import current_scope
from qworkspace.base.text import visible

FILE_BYTES = 10_000_000
FILES_KEPT = 5
_OURS = "qworkspace"
_TOKENS = re.compile(
    r"(?i)(?P<keep>\b(?:bearer|basic)\s+|[?&#](?:access_)?(?:token|code|key|api_key)=|\bx-api-key['\"]?\s*[:=]\s*['\"]?)"
    r"[\w.~+/=-]{6,}|\b(?:sk|xox[abp]|ghp|qwt|qwp)[-_][\w-]{8,}"
)
_MASK = "•••"
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31;1m", "DEBUG": "\x1b[2m"}


class Masking:
    """Replaces what looks like a credential, and every secret that the home is known to hold."""

    def __init__(self, secrets: Callable[[], Iterable[str]] = tuple) -> None:
        self._secrets = secrets

    def __call__(self, text: str) -> str:
        for secret in self._secrets():
            if len(secret) >= 6:
                text = text.replace(secret, _MASK)
        return _TOKENS.sub(lambda found: (found["keep"] or "") + _MASK, text)


def as_fields(record: logging.LogRecord, mask: Callable[[str], str]) -> dict[str, Any]:
    """One event as JSON values: time, level, logger, message, who it concerns, and the traceback if there is one."""
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": mask(record.getMessage()),
    }
    fields |= getattr(record, "scope", {})
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = mask("".join(traceback.format_exception(*record.exc_info)).rstrip())
    return fields


def as_text(fields: dict[str, Any], *, colour: bool = False) -> str:
    """The same event for a person: local time, level, message, and who it concerns."""
    moment = datetime.fromisoformat(str(fields["time"])).astimezone()
    level = str(fields["level"]).upper()
    who = "/".join(str(fields[key]) for key in ("agent", "session", "turn") if fields.get(key))
    line = f"{moment:%H:%M:%S} {level:<7} {visible(str(fields['message']))}" + (f"  [{who}]" if who else "")
    if fields.get("error"):
        line += "\n" + visible(str(fields["error"]))
    return f"{_COLOURS[level]}{line}\x1b[0m" if colour and level in _COLOURS else line


class _Lines(logging.Formatter):
    def __init__(self, mask: Callable[[str], str], *, as_json: bool, colour: bool = False) -> None:
        super().__init__()
        self._mask = mask
        self._json = as_json
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        fields = as_fields(record, self._mask)
        return json.dumps(fields, ensure_ascii=False) if self._json else as_text(fields, colour=self._colour)


def _add_scope(record: logging.LogRecord) -> bool:
    """Note for whom the code that logs is acting; at the moment of logging, in its own context."""
    scope = current_scope()
    if scope is not None and not hasattr(record, "scope"):
        known = {"agent": scope.agent_id, "session": scope.session_id, "turn": scope.turn_id}
        record.scope = {key: value for key, value in known.items() if value}
    return True


class _LogFile(RotatingFileHandler):
    """The rotating file. A full disk costs lines of the log, never the daemon: it is said once on the terminal."""

    def __init__(self, path: Path, size: int, kept: int) -> None:
        super().__init__(path, maxBytes=size, backupCount=kept, encoding="utf-8", errors="replace")
        self._failures = 0

    def emit(self, record: logging.LogRecord) -> None:
        before = self._failures
        super().emit(record)
        if self._failures == before:
            self._failures = 0

    def handleError(self, record: logging.LogRecord) -> None:
        if self._failures == 0 and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # it may lead to a file on the same disk
                print(f"the log file {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)
        self._failures += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the last buffered line; that it failed has been said
            super().close()


class _Terminal(logging.StreamHandler[TextIO]):
    """The terminal, or where it was led to. Lines that it does not take are lost; there is nobody to tell."""

    def handleError(self, record: logging.LogRecord) -> None:
        """That it is closed or full is no reason to end."""


class Logs:
    """The daemon's log handlers, from `open` to `close`."""

    def __init__(self, *, level: int = logging.INFO, secrets: Callable[[], Iterable[str]] = tuple) -> None:
        self._level = level
        self._mask = Masking(secrets)
        self._handlers: list[logging.Handler] = []
        self._levels: dict[str, int] = {}

    def open(self, *, terminal: TextIO | None, as_json: bool = False) -> None:
        """Log to the terminal, human-readable or as JSON; libraries speak from WARNING on."""
        self._set_level("", logging.WARNING)
        self._set_level(_OURS, self._level)
        if terminal is not None:
            handler = _Terminal(terminal)
            self._add(handler, _Lines(self._mask, as_json=as_json, colour=not as_json and terminal.isatty()))

    def to_file(self, path: Path, *, size: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
        """Log to `path` too, as JSON lines; at `size` bytes a new file begins, of the old ones `kept` stay."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._add(_LogFile(path, size, kept), _Lines(self._mask, as_json=True))

    def close(self) -> None:
        """Take the handlers away again and restore the levels. Idempotent."""
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        self._handlers.clear()
        self._levels.clear()

    def _add(self, handler: logging.Handler, formatter: logging.Formatter) -> None:
        handler.setFormatter(formatter)
        handler.addFilter(_add_scope)
        logging.getLogger().addHandler(handler)
        self._handlers.append(handler)

    def _set_level(self, name: str, level: int) -> None:
        self._levels.setdefault(name, logging.getLogger(name).level)
        logging.getLogger(name).setLevel(level)
