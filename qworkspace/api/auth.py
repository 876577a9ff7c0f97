"""Who is calling: the home's access token, or a browser that was paired by a one-time code."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from qworkspace.base.clock import Clock
from qworkspace.base.ids import new_id
from qworkspace.errors import Denied, NotFound, StorageError

if TYPE_CHECKING:
    from qworkspace.base.database import Database

CODE_MINUTES = 10
CODES_OPEN = 20
IDLE_DAYS = 180
COOKIE_SECONDS = 400 * 86_400  # browsers keep no cookie longer
SEEN_EVERY = timedelta(hours=1)
NAME_LENGTH = 200

# the first step of home.db's tables of paired browsers
BROWSER_TABLE = """
CREATE TABLE browsers (
    id TEXT PRIMARY KEY,
    secret_hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    paired_at TEXT NOT NULL,
    seen_at TEXT NOT NULL
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request. `open`: the daemon asks nobody. `proof` is the hash of the token that was shown."""

    kind: Literal["nobody", "open", "token", "browser"]
    browser_id: str = ""
    proof: str = field(default="", repr=False)


NOBODY = Caller("nobody")


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser that may use the console."""

    id: str
    name: str
    paired_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class PairingCode:
    """Good for one browser until `expires_at`."""

    code: str
    expires_at: datetime


class Auth:
    """Tells callers apart. Codes live in memory; of a browser only the hash of its cookie is stored."""

    def __init__(self, database: Database, *, token: Callable[[], str], clock: Clock) -> None:
        self._database = database
        self._token = token
        self._clock = clock
        self._codes: dict[str, datetime] = {}
        self._browsers: dict[str, Browser] = {}

    async def start(self) -> None:
        """Read the paired browsers."""
        rows = await self._database.read(_select)
        self._browsers = {
            secret: Browser(id, name, datetime.fromisoformat(paired), datetime.fromisoformat(seen))
            for id, secret, name, paired, seen in rows
        }

    def is_token(self, text: str) -> bool:
        """Whether `text` is the home's access token; takes the same time for every wrong one."""
        return bool(text) and hmac.compare_digest(text.encode("utf-8", "replace"), self._token().encode())

    async def identify(self, headers: Headers, *, port: int) -> Caller:
        """The caller by its headers. A wrong token is nobody, whatever cookie comes with it."""
        authorization = headers.get("authorization")
        if authorization is not None:
            scheme, _, value = authorization.partition(" ")
            known = scheme.lower() == "bearer" and self.is_token(value.strip())
            return Caller("token", proof=_hash(value.strip())) if known else NOBODY
        cookie = cookie_parser(headers.get("cookie", "")).get(cookie_name(port))
        return await self._by_cookie(cookie) if cookie else NOBODY

    def knows(self, caller: Caller) -> bool:
        """Whether a caller of before would still get in: its token is the present one, its browser is still paired."""
        if caller.kind == "token":
            return caller.proof == _hash(self._token())
        return caller.kind != "browser" or any(known.id == caller.browser_id for known in self._browsers.values())

    def new_code(self) -> PairingCode:
        """A code that pairs one browser within ten minutes."""
        now = self._clock.now()
        self._codes = {key: until for key, until in self._codes.items() if until > now}
        while len(self._codes) >= CODES_OPEN:
            del self._codes[next(iter(self._codes))]
        code, expires_at = secrets.token_urlsafe(24), now + timedelta(minutes=CODE_MINUTES)
        self._codes[_hash(code)] = expires_at
        return PairingCode(code, expires_at)

    async def pair(self, code: str, *, name: str) -> tuple[Browser, str]:
        """The new browser and its cookie's value; the code is used up. `Denied` for a wrong or old code."""
        expires_at = self._codes.pop(_hash(code), None)
        now = self._clock.now()
        if expires_at is None or expires_at <= now:
            raise Denied(
                "this pairing code is used up, too old or wrong; get a new one with `qworkspace console`",
                code="invalid_pairing_code",
            )
        secret = secrets.token_urlsafe(32)
        browser = Browser(new_id("browser", now), name[:NAME_LENGTH] or "a browser", now, now)
        await self._database.write(lambda db: _insert(db, browser, _hash(secret)))
        self._browsers[_hash(secret)] = browser
        return browser, secret

    def browsers(self) -> list[Browser]:
        """The paired browsers, the one used last first."""
        return sorted(self._browsers.values(), key=lambda browser: browser.seen_at, reverse=True)

    async def revoke(self, browser_id: str) -> None:
        """The browser has to be paired again; `NotFound` when there is none of that id."""
        secret = next((secret for secret, known in self._browsers.items() if known.id == browser_id), None)
        if secret is None:
            raise NotFound("browser", browser_id)
        await self._forget(secret)

    async def revoke_all(self) -> int:
        """All browsers have to be paired again; how many there were."""
        known = list(self._browsers)
        for secret in known:
            await self._forget(secret)
        return len(known)

    async def _by_cookie(self, cookie: str) -> Caller:
        secret = _hash(cookie)
        browser = self._browsers.get(secret)
        if browser is None:
            return NOBODY
        now = self._clock.now()
        if now - browser.seen_at > timedelta(days=IDLE_DAYS):
            await self._forget(secret)
            return NOBODY
        if now - browser.seen_at >= SEEN_EVERY:
            await self._seen(secret, replace(browser, seen_at=now))
        return Caller("browser", browser.id)

    async def _seen(self, secret: str, browser: Browser) -> None:
        self._browsers[secret] = browser
        try:
            await self._database.write(lambda db: _update(db, browser))
        except StorageError:
            return  # a full disk keeps nobody out; the next hour stores it

    async def _forget(self, secret: str) -> None:
        browser = self._browsers.get(secret)
        if browser is not None:
            await self._database.write(lambda db: _delete(db, browser.id))
            self._browsers.pop(secret, None)


def cookie_name(port: int) -> str:
    """Browsers do not keep the cookies of two ports apart, so the port is part of the name."""
    return f"qworkspace_{port}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _select(db: sqlite3.Connection) -> list[tuple[str, str, str, str, str]]:
    return db.execute("SELECT id, secret_hash, name, paired_at, seen_at FROM browsers").fetchall()


def _insert(db: sqlite3.Connection, browser: Browser, secret_hash: str) -> None:
    row = (browser.id, secret_hash, browser.name, browser.paired_at.isoformat(), browser.seen_at.isoformat())
    db.execute("INSERT INTO browsers (id, secret_hash, name, paired_at, seen_at) VALUES (?, ?, ?, ?, ?)", row)


def _update(db: sqlite3.Connection, browser: Browser) -> None:
    db.execute("UPDATE browsers SET seen_at = ? WHERE id = ?", (browser.seen_at.isoformat(), browser.id))


def _delete(db: sqlite3.Connection, browser_id: str) -> None:
    db.execute("DELETE FROM browsers WHERE id = ?", (browser_id,))
