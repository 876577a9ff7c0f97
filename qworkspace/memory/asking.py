"""How memory asks a model: a function that it is given, and what it means when nobody answers."""

from __future__ import annotations

from typing import Literal, Protocol

from qworkspace.errors import ModelError, StorageError

Purpose = Literal["extract", "dream", "resource"]
_NOT_ABOUT_THE_QUESTION = frozenset({"model_unauthorized", "model_not_found", "model_quota"})


class NoModel(ModelError):
    """No model is connected, only the offline provider: the work waits, it has not failed."""

    code = "no_model"


class Ask(Protocol):
    """The agent's model of the moment, or that of `roles.light`; retries and fallbacks are inside."""

    async def __call__(self, system: str, question: str, *, purpose: Purpose) -> str:
        """The whole answer as text. `ModelError` when there is none, `NoModel` when there is nobody to ask."""


def is_no_model(error: Exception) -> bool:
    """Whether nobody could be asked."""
    return isinstance(error, ModelError) and error.code == NoModel.code


def is_outage(error: Exception) -> bool:
    """Whether the failure says nothing about the work itself: a provider that is down or refuses the key, a disk."""
    if isinstance(error, ModelError):
        return (error.retryable and error.code != "empty_reply") or error.code in _NOT_ABOUT_THE_QUESTION
    return isinstance(error, StorageError | OSError)
