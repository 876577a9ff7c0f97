"""Whether a file is still what it was: by its stat first, by its content when that says "perhaps not"."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from qworkspace.base.files import read_text
from qworkspace.errors import InvalidConfig, InvalidInput

Signature = tuple[int, int, int, int]

_TICK_NS = 50_000_000
"""A file system may give two writes within its clock tick the same times: a change that fresh is not trusted."""


def signature(path: Path) -> Signature | None:
    """What stat says of the file: None when there is none, or when it changed too lately to tell by that."""
    try:
        return signature_of(path.stat())
    except OSError:
        return None


def signature_of(status: os.stat_result) -> Signature | None:
    """The same of a stat that is at hand."""
    # Compared with the file system's clock, which is the machine's: no injected clock can stand in for it.
    if abs(time.time_ns() - status.st_ctime_ns) < _TICK_NS:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def version_of(text: str) -> str:
    """A short name of that content, fit for an ETag."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Content:
    """A file's text and its version."""

    text: str
    version: str


class FileVersions:
    """The versions of files; one that has not changed is not read again."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, str]] = {}

    def known(self, path: Path) -> str | None:
        """The version, when stat alone says that the file is what it was."""
        seen = signature(path)
        known = self._known.get(path)
        return known[1] if seen is not None and known is not None and known[0] == seen else None

    def version(self, path: Path) -> str:
        """The present version; `InvalidConfig` when the file is missing or cannot be read."""
        return self.known(path) or self.read(path).version

    def read(self, path: Path) -> Content:
        """The present content; `InvalidConfig` when the file is missing or cannot be read."""
        seen = signature(path)
        try:
            text = read_text(path)
        except FileNotFoundError:
            raise InvalidConfig("there is no such file", file=path, missing=True) from None
        except OSError as error:
            raise InvalidConfig(f"cannot be read: {error.strerror or error}", file=path) from error
        except InvalidInput as error:
            raise InvalidConfig(error.message, file=path) from error
        content = Content(text, version_of(text))
        if seen is not None:
            self._known[path] = (seen, content.version)
        return content

    def forget(self, path: Path) -> None:
        """Read it again next time, whatever its stat says."""
        self._known.pop(path, None)
