"""What went wrong at a provider, as a `ModelError` that a person can read and a program can act on."""

# Heavy: imported by `qworkspace.chat.hosted` only.

from __future__ import annotations

import re
from typing import Any

import httpx2
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)

from qworkspace.config.models import ModelRef
from qworkspace.errors import ContextTooLong, ModelError

LONGEST_REASON = 500
_RETRYABLE = frozenset({408, 409, 425, 429})
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|too many (input )?tokens|prompt is too long"
    r"|input is too long|exceeds? the (available|maximum|model)",
    re.IGNORECASE,
)


def as_model_error(error: Exception, ref: ModelRef, *, secret: str = "") -> ModelError:
    """`error` in our words. `secret` never appears in it."""
    reason = _reason(error)
    if secret:
        reason = reason.replace(secret, "••••••")
    if isinstance(error, ModelHTTPError):
        return _http(error, ref, reason)
    if isinstance(error, ModelContextWindowExceededError):
        return ContextTooLong(f"{ref}: the conversation does not fit the model's window: {reason}")
    if isinstance(error, ModelTimeoutError | httpx2.TimeoutException):
        return ModelError(f"{ref}: no answer in time: {reason}", code="model_timeout", retryable=True)
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        return ModelError(f"{ref}: cannot reach the provider: {reason}", code="model_unreachable", retryable=True)
    if isinstance(error, ModelAPIError):
        after = error.retry_after
        return ModelError(f"{ref}: {reason}", code=_code(error), retryable=True, retry_after=after)
    if isinstance(error, UnexpectedModelBehavior):
        return ModelError(f"{ref}: the provider's answer makes no sense: {reason}", retryable=True)
    if isinstance(error, UserError):
        return ModelError(f"{ref}: {reason}")
    return ModelError(f"{ref}: unexpected failure, the log says more: {type(error).__name__}: {reason}")


def _http(error: ModelHTTPError, ref: ModelRef, reason: str) -> ModelError:
    status = error.status_code
    if isinstance(error, ModelContextWindowExceededError) or (status in (400, 413, 422) and _TOO_LONG.search(reason)):
        return ContextTooLong(
            f"{ref}: the conversation does not fit the model's window ({status}): {reason}", status=status
        )
    retryable = (status in _RETRYABLE or status >= 500) and not isinstance(error, ModelQuotaExceededError)
    return ModelError(
        f"{ref}: {_what(error, ref)} ({status}): {reason}",
        code=_code(error),
        retryable=retryable,
        status=status,
        retry_after=error.retry_after,
    )


def _what(error: ModelHTTPError, ref: ModelRef) -> str:
    if isinstance(error, ModelAuthenticationError):
        return f"the provider refused the key; check providers.{ref.provider}.api_key"
    if isinstance(error, ModelNotFoundError):
        return "the provider does not have this model"
    if isinstance(error, ModelQuotaExceededError):
        return "the account's quota is used up"
    if isinstance(error, ModelRateLimitError):
        return "too many requests"
    if isinstance(error, ModelOverloadedError) or error.status_code >= 500:
        return "the provider has trouble"
    return "the provider refused the request"


def _code(error: ModelAPIError) -> str:
    if isinstance(error, ModelAuthenticationError):
        return "model_unauthorized"
    if isinstance(error, ModelNotFoundError):
        return "model_not_found"
    if isinstance(error, ModelQuotaExceededError):
        return "model_quota"
    if isinstance(error, ModelRateLimitError):
        return "model_rate_limited"
    return "model_error"


def _reason(error: Exception) -> str:
    """The provider's own sentence, without what surrounds it."""
    said = _message(getattr(error, "body", None))
    text = said or str(getattr(error, "message", "")) or str(error) or type(error).__name__
    cause = error.__cause__
    if not said and isinstance(error, ModelConnectionError) and cause is not None and cause.__cause__ is not None:
        text = f"{text} {cause.__cause__}"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"


def _message(body: Any) -> str:
    if isinstance(body, str):
        return body
    if isinstance(body, list) and body:
        return _message(body[0])
    if not isinstance(body, dict):
        return ""
    inner = body.get("error", body.get("message", body.get("detail")))
    return inner if isinstance(inner, str) else _message(inner)
