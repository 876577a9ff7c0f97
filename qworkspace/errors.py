"""The whole error tree.

    QworkspaceError
    ├── InvalidInput            what came from outside does not fit
    │   ├── InvalidPath         a name or path that leaves its root, or is not one
    │   └── InvalidConfig       a configuration file or value; knows file, line and column
    ├── NotFound                a thing with that id does not exist
    ├── Conflict                the thing's present state does not allow it
    │   ├── Busy                a turn runs and the caller asked not to wait
    │   ├── Duplicate           a name is taken; names both owners
    │   └── VersionMismatch     written against a version that is no longer the current one
    ├── Unauthenticated         no token, or a wrong one
    ├── Denied                  known, but not allowed
    ├── TooLarge                over a documented limit
    ├── Unavailable             not now; the message says what to wait for
    │   └── StorageError        the disk refused: full, read-only, unwritable
    │       └── DatabaseDamaged a database file holds what it should not; its rows can be rescued
    └── ModelError              a provider failed; says whether trying again may help
        └── ContextTooLong      the prompt does not fit the model's window

Only `qworkspace.api` knows which HTTP status belongs to which error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class QworkspaceError(Exception):
    """An expected failure: `code` for programs, `message` for people, `details` for both."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if code is not None:
            self.code = code


class InvalidInput(QworkspaceError):
    """What came from outside does not fit; the message names the field and what it may be."""

    code = "invalid_input"


class InvalidPath(InvalidInput):
    """A name or path that is malformed or leads out of its root."""

    code = "invalid_path"


class InvalidConfig(InvalidInput):
    """A configuration that does not parse or validate.

    `file`, `line` and `column` (both from 1) point at the offending value when they are known.
    """

    code = "invalid_config"

    def __init__(
        self,
        reason: str,
        *,
        file: Path | str | None = None,
        line: int | None = None,
        column: int | None = None,
        **details: Any,
    ) -> None:
        where = str(file) if file is not None else "configuration"
        if line is not None:
            where += f":{line}" + (f":{column}" if column is not None else "")
        super().__init__(f"{where}: {reason}", **details)
        self.reason = reason
        self.file = file
        self.line = line
        self.column = column
        self.details |= {"file": str(file) if file else None, "line": line, "column": column}


class NotFound(QworkspaceError):
    """`NotFound("agent", "x")`: no thing of that kind has that id."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"no {kind} {name!r}" + (f"; {hint}" if hint else ""), code=f"{kind}_not_found")
        self.details = {"kind": kind, "id": name}


class Conflict(QworkspaceError):
    """The present state does not allow the change."""

    code = "conflict"


class Busy(Conflict):
    """A turn is running in the session and the caller chose `if_busy: reject`."""

    code = "session_busy"


class Duplicate(Conflict):
    """A name is taken already; the message names both owners."""

    code = "duplicate"


class VersionMismatch(Conflict):
    """The caller's version is stale; `details["current"]` is the one to read again."""

    code = "version_mismatch"


class Unauthenticated(QworkspaceError):
    """No access token, or a wrong one."""

    code = "unauthenticated"


class Denied(QworkspaceError):
    """The caller is known and still may not."""

    code = "denied"


class TooLarge(QworkspaceError):
    """Over a documented limit; the message says which."""

    code = "too_large"


class Unavailable(QworkspaceError):
    """Not possible now; the message says what to wait for or what to do."""

    code = "unavailable"


class StorageError(Unavailable):
    """The disk refused (full, read-only, unwritable): nothing was stored, nothing is acknowledged."""

    code = "storage_error"


class DatabaseDamaged(StorageError):
    """A database file is malformed, or no database at all."""

    code = "database_damaged"


class ModelError(QworkspaceError):
    """A provider failed. `retryable` says whether the same request may work later."""

    code = "model_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, code=code, **details)
        self.retryable = retryable
        self.status = status
        self.retry_after = retry_after


class ContextTooLong(ModelError):
    """The prompt does not fit the model's window."""

    code = "context_too_long"
