"""secrets.json: API keys and the access token, readable by their owner only, never served, never logged."""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qworkspace.base.files import read_text, write_atomic
from qworkspace.config.filecache import Signature, signature
from qworkspace.config.reading import parse
from qworkspace.errors import InvalidConfig, InvalidInput

logger = logging.getLogger(__name__)

TOKEN = "access_token"
TOKEN_VARIABLE = "QWORKSPACE_TOKEN"
_RESERVED = frozenset({TOKEN, TOKEN_VARIABLE})


class Secrets:
    """The secrets of a home. A file that does not parse is never overwritten; the last good values stay in use."""

    def __init__(self, path: Path, *, environ: Mapping[str, str]) -> None:
        self.path = path
        self._environ = environ
        self._lock = threading.RLock()
        self._signature: Signature | None = None
        self._values: dict[str, Any] = {}
        self._problem: InvalidConfig | None = None
        self._notices: list[str] = []
        self.version = 0

    @property
    def problem(self) -> InvalidConfig | None:
        """Why the file cannot be used at the moment, or None."""
        self._refresh()
        return self._problem

    def notices(self) -> list[str]:
        """What was mended by itself, once each: a file that others could read."""
        self._refresh()
        notices, self._notices = self._notices, []
        return notices

    def get(self, name: str) -> str | None:
        """The value of `${name}`: environment first (an empty variable counts as none), then the file."""
        if name in _RESERVED:
            return None
        if value := self._environ.get(name):
            return value
        self._refresh()
        stored = self._values.get(name)
        return stored if isinstance(stored, str) and stored else None

    def names(self) -> list[str]:
        """The names stored in the file, without the access token."""
        self._refresh()
        return [name for name in self._values if name not in _RESERVED]

    def set(self, name: str, value: str | None) -> None:
        """Store a key under that name; None removes it."""
        if not name.isidentifier() or name in _RESERVED:
            raise InvalidInput(
                f"{name!r} cannot name a secret: use letters, digits and '_', not beginning with a digit"
            )
        self._store(name, value)

    def token(self) -> str:
        """The access token of the home: $QWORKSPACE_TOKEN, else the stored one, made when there is none."""
        if given := self._environ.get(TOKEN_VARIABLE, "").strip():
            return given
        with self._lock:
            self._refresh()
            stored = self._values.get(TOKEN)
            return stored if isinstance(stored, str) and stored else self.rotate_token()

    def rotate_token(self) -> str:
        """A new access token, stored; the old one opens nothing from now on."""
        token = secrets.token_urlsafe(32)
        self._store(TOKEN, token)
        return token

    def refresh(self) -> int:
        """Look at the file; a number that is another one when the values have changed."""
        self._refresh()
        return self.version

    def _store(self, name: str, value: str | None) -> None:
        with self._lock:
            self._refresh()
            if self._problem is not None:
                raise self._problem.with_traceback(None)
            values = {key: item for key, item in self._values.items() if key != name}
            if value is not None:
                values[name] = value
            write_atomic(self.path, json.dumps(values, indent=2, ensure_ascii=False) + "\n", mode=0o600)
            self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            seen = signature(self.path)
            if seen is not None and seen == self._signature:
                return
            self._signature = seen
            self._tighten()
            self._read()

    def _read(self) -> None:
        """Take over what the file says; no message ever shows a value of it."""
        try:
            values = parse(read_text(self.path), file=self.path)
        except FileNotFoundError:
            values = {}
        except (OSError, InvalidInput) as error:
            self._problem = error if isinstance(error, InvalidConfig) else _unreadable(self.path, error)
            logger.error("%s", self._problem.message)
            return
        self._problem = None
        if values != self._values:
            self._values = values
            self.version += 1

    def _tighten(self) -> None:
        """Others may not read it: the mode is mended and told. Windows has no such modes."""
        if os.name == "nt":
            return
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & 0o077:
                self.path.chmod(0o600)
                self._notices.append(f"{self.path} could be read by others (mode {mode:o}); it is 600 now")
                logger.warning("%s", self._notices[-1])
                self._signature = signature(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("%s can be read by others and its mode cannot be changed: %s", self.path, error)


def _unreadable(path: Path, error: Exception) -> InvalidConfig:
    return InvalidConfig(f"cannot be read: {error}", file=path)
