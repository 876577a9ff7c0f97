"""How memory asks a model: a function that it is given, and the two ways in which nobody answers."""

from __future__ import annotations

from typing import Literal, Protocol

from qworkspace.errors import ModelError, QworkspaceError, StorageError

Purpose = Literal["extract", "dream", "resource"]


class NoModel(ModelError):
    """No model is connected, only the offline provider: the work waits, it has not failed."""

    code = "no_model"


class Ask(Protocol):
    """The agent's model of the moment, or that of `roles.light`; retries and fallbacks are inside."""

    async def __call__(self, system: str, question: str, *, purpose: Purpose) -> str:
        """The whole answer as text. `ModelError` when there is none, `NoModel` when there is nobody to ask."""


def is_no_model(error: Exception) -> bool:
    """Whether nobody could be asked."""
    return isinstance(error, NoModel) or (isinstance(error, ModelError) and error.code == NoModel.code)


def is_outage(error: Exception) -> bool:
    """Whether the provider or the disk is to blame, so that the same work may succeed later."""
    if isinstance(error, ModelError):
        return error.retryable and error.code != "empty_reply"
    return isinstance(error, StorageError | OSError)


def is_provider(error: Exception) -> bool:
    """Whether the failure says nothing about the work itself: an outage, a wrong key, a used-up quota."""
    codes = ("model_unauthorized", "model_not_found", "model_quota", NoModel.code)
    return is_outage(error) or (isinstance(error, QworkspaceError) and error.code in codes)
