"""The one map from errors to HTTP: status, headers, and the body in our shape (and OpenAI's under /v1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from qworkspace.base.clock import Clock
from qworkspace.base.ids import new_id
from qworkspace.errors import (
    Conflict,
    ContextTooLong,
    Denied,
    InvalidConfig,
    InvalidInput,
    ModelError,
    NotFound,
    QworkspaceError,
    StorageError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    VersionMismatch,
)

logger = logging.getLogger(__name__)
RETRY_AFTER_SECONDS = 2

STATUS: Mapping[type[QworkspaceError], int] = {
    InvalidInput: 400,
    InvalidConfig: 422,
    NotFound: 404,
    Conflict: 409,
    VersionMismatch: 412,
    Unauthenticated: 401,
    Denied: 403,
    TooLarge: 413,
    Unavailable: 503,
    StorageError: 507,
    ModelError: 502,
    ContextTooLong: 400,
}
# what only HTTP knows: the code of the error decides
STATUS_OF_CODE: Mapping[str, int] = {
    "agent_disabled": 409,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "unsupported_media_type": 415,
    "unknown_host": 421,
    "not_available": 501,
}
_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def status_of(error: QworkspaceError) -> int:
    """The HTTP status of an expected failure."""
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[error.code]
    if isinstance(error, ModelError) and error.status == 429:
        return 429
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def expected(error: Exception, clock: Clock) -> QworkspaceError:
    """`error` as one of the tree: what is unexpected goes to the log and becomes an id in the answer."""
    if isinstance(error, QworkspaceError):
        return error
    if isinstance(error, HTTPException):
        return _of_router(error)
    incident = new_id("err", clock.now())
    logger.error("unexpected error %s", incident, exc_info=error)
    message = f"something went wrong here; the log has it as {incident}"
    return QworkspaceError(message, code="internal_error", id=incident)


def error_body(error: QworkspaceError, *, openai: bool = False) -> dict[str, Any]:
    """`{"error": {"code", "message", "details"}}`; with OpenAI's `type` and `param` for its clients."""
    body: dict[str, Any] = {"code": error.code, "message": error.message, "details": error.details}
    if openai:
        status = status_of(error)
        kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        body |= {"type": kind, "param": error.details.get("field")}
    return {"error": body}


def error_response(error: QworkspaceError, scope: Scope) -> Response:
    """The answer to a request that failed."""
    openai = str(scope.get("path", "")).startswith("/v1/")
    return JSONResponse(error_body(error, openai=openai), status_of(error), headers=_headers(error))


def _headers(error: QworkspaceError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": 'Bearer realm="qworkspace"'}
    if error.details.get("accepted"):
        return {"x-should-retry": "false"}  # OpenAI's clients ask it before they send a message twice
    if isinstance(error, ModelError) and error.retry_after is not None:
        return {"retry-after": str(max(1, round(error.retry_after)))}
    if isinstance(error, Unavailable):
        return {"retry-after": str(RETRY_AFTER_SECONDS)}
    if error.code == "method_not_allowed":
        return {"allow": ", ".join(error.details.get("allow", []))}
    return {}


def _of_router(error: HTTPException) -> QworkspaceError:
    if error.status_code == 404:
        return QworkspaceError("there is nothing at this address", code="not_found")
    return QworkspaceError(str(error.detail), code="invalid_input")
