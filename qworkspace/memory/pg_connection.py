"""Where long-term memory's database is, and what its errors mean, in words that never show a password.

Imports psycopg: import this module where a connection is wanted, not at start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from qworkspace.config.memory import PostgresConfig
from qworkspace.errors import InvalidConfig, InvalidInput, Unavailable

CONNECT_SECONDS = 5
DEFAULTS: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "qworkspace",
    "gssencmode": "disable",  # psycopg's own libraries cannot do it reliably
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms; a server that has vanished is noticed
}
_REFUSED = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded)


@dataclass(frozen=True, slots=True)
class Target:
    """What a connection is made with; as text it says which database of which server, and nothing secret."""

    options: dict[str, Any]
    secrets: tuple[str, ...]

    @classmethod
    def of(cls, config: PostgresConfig) -> Target:
        """The parts that are given go before those of the connection string."""
        dsn = _plain(config.dsn)
        try:
            given: dict[str, Any] = dict(conninfo_to_dict(dsn)) if dsn else {}
        except psycopg.ProgrammingError:  # it quotes what it does not understand: the password, as likely as not
            raise InvalidConfig(
                "running.memory.postgres.dsn is no connection string; it is like"
                ' "postgresql://user:${PASSWORD}@host:5432/database"'
            ) from None
        own = {"host": config.host, "user": config.user, "dbname": config.dbname, "password": _plain(config.password)}
        given |= {key: value for key, value in own.items() if value}
        given.setdefault("port", config.port)
        secrets = tuple(str(value) for value in (dsn, given.get("password")) if value)
        options = DEFAULTS | given | {"prepare_threshold": None}  # without: poolers between us need not know sessions
        return cls(options, secrets)

    def __str__(self) -> str:
        where = self.options.get("host") or self.options.get("hostaddr") or "the local server"
        return f"the database {self.options.get('dbname') or self.options.get('user', '')!r} at {where}"

    def clean(self, text: str) -> str:
        """`text` without what must not be seen."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()


@asynccontextmanager
async def explained(target: Target) -> AsyncIterator[None]:
    """The block's database errors as ours: what the server refuses for good, and what may work later."""
    try:
        yield
    except _REFUSED as error:
        raise InvalidInput(f"{target} refuses this: {_words(target, error)}", code="row_refused") from None
    except psycopg.Error as error:
        raise Unavailable(f"{target} cannot be used: {_words(target, error)}", code="database_away") from None
    except TimeoutError:
        raise Unavailable(f"{target} does not answer", code="database_away") from None


def _words(target: Target, error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return target.clean(" ".join(text.split()))
