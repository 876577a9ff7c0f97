"""A fingerprint of everything said in a session, kept up to date message by message."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

NOTHING_SAID = bytes(16)


def extend(digest: bytes, role: str, text: str) -> bytes:
    """The fingerprint after one more message. Space around a text does not matter, a blank one is no message."""
    said = text.strip()
    if not said:
        return digest
    return hashlib.sha256(digest + role.encode() + b"\0" + said.encode("utf-8", "replace")).digest()[:16]


def digest_of(texts: Iterable[tuple[str, str]]) -> bytes:
    """The fingerprint of (role, text) pairs."""
    digest = NOTHING_SAID
    for role, text in texts:
        digest = extend(digest, role, text)
    return digest
