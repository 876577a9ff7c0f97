"""Secrets out of sight: what looks like one, masks for people, fingerprints for comparing."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic import BaseModel, SecretStr

MASK = "••••••"
_SECRET_KEY = re.compile(
    r"(^|[_-])(api[_-]?key|key|token|secret|password|passwd|pass|credentials?|authorization|cookie|dsn)$", re.IGNORECASE
)
_SECRET_MAPS = frozenset({"headers", "env"})
_ONLY_REFERENCES = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\}|Bearer\s+)+\Z")


class Secret(str):
    """A text that came from the environment or secrets.json: a text like any other, but not in a repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


def is_secret_key(name: str) -> bool:
    """Whether a value under that key is taken for a secret: `api_key`, `bot_token`, `password`, …"""
    return _SECRET_KEY.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)) is not None


def mask(value: Any, key: str = "") -> Any:
    """A JSON value fit to be shown: literal secrets become `MASK`, references like `${NAME}` stay."""
    if isinstance(value, dict):
        hidden = key in _SECRET_MAPS
        return {
            name: mask(item, "secret" if hidden and isinstance(item, str) else name) for name, item in value.items()
        }
    if isinstance(value, list):
        return [mask(item, key) for item in value]
    if isinstance(value, str) and value and is_secret_key(key) and not _ONLY_REFERENCES.match(value):
        return MASK
    return value


def fingerprint_secrets(value: Any, key: str = "") -> Any:
    """A configuration value as JSON; two secrets have the same fingerprint when they are the same."""
    if isinstance(value, SecretStr):
        return _fingerprint(value.get_secret_value())
    if isinstance(value, Secret) or (isinstance(value, str) and value and is_secret_key(key)):
        return _fingerprint(value)
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
        return {name: fingerprint_secrets(item, name) for name, item in fields.items()}
    if isinstance(value, dict):
        return {name: fingerprint_secrets(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint_secrets(item, key) for item in value]
    return value


def _fingerprint(text: str) -> str:
    return "secret:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def sections_of(config: BaseModel) -> dict[str, Any]:
    """Each top-level section as a JSON value, for telling which of them changed; secrets are fingerprints."""
    names = [*type(config).model_fields, *(config.model_extra or {})]
    return {name: fingerprint_secrets(getattr(config, name), name) for name in names}
