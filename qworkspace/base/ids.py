"""Identifiers: validated at the border once, sortable by time when the daemon makes them."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from typing import NewType

from qworkspace.errors import InvalidInput

AgentId = NewType("AgentId", str)
SessionId = NewType("SessionId", str)

_AGENT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_SESSION = re.compile(r"[A-Za-z0-9._:@-]{1,128}\Z")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def agent_id(text: str) -> AgentId:
    """`text` as an agent's id: a-z, 0-9, `_`, `-`, 64 at most, beginning with a letter or digit."""
    if not _AGENT.match(text):
        raise InvalidInput(
            f"{text!r} is not an agent id: use 1-64 of a-z, 0-9, '_' and '-', beginning with a letter or digit",
            code="invalid_agent_id",
        )
    return AgentId(text)


def session_id(text: str) -> SessionId:
    """`text` as a session's id: 1-128 of A-Z, a-z, 0-9 and `._:@-`, and not only dots."""
    if not _SESSION.match(text) or not text.strip("."):
        raise InvalidInput(
            f"{text!r} is not a session id: use 1-128 of A-Z, a-z, 0-9 and '._:@-'", code="invalid_session_id"
        )
    return SessionId(text)


def new_id(prefix: str, now: datetime) -> str:
    """A fresh id like `turn_01h…`: microseconds of `now`, then 40 random bits; later ones sort after earlier ones."""
    return f"{prefix}_{_base32(int(now.timestamp() * 1_000_000), 11)}{_base32(secrets.randbits(40), 8)}"


def first_id(prefix: str, moment: datetime) -> str:
    """What sorts before every id with that prefix made at `moment` or later, and after every earlier one."""
    return f"{prefix}_{_base32(int(moment.timestamp() * 1_000_000), 11)}"


def _base32(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
