"""Who may come in: known hosts, own origins, no token in an address, a valid token or a paired browser."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qworkspace.api.auth import NOBODY, Caller
from qworkspace.errors import Denied, InvalidInput, QworkspaceError, TooLarge, Unauthenticated

if TYPE_CHECKING:
    from qworkspace.api.services import Api

logger = logging.getLogger(__name__)

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::", ""})
TOKEN_NAMES = frozenset({"token", "access_token", "api_key", "apikey", "key"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY = 10_000_000
STRANGERS_BODY = 10_000  # of who is not known: enough for a pairing code
LOG_SECONDS = 60.0
CALLER = "qworkspace.caller"
PAGE_POLICY = (
    b"default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    b"object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
ANSWER_POLICY = b"default-src 'none'; frame-ancestors 'none'"
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Access:
    """Whom the daemon answers. `any_address`: it listens everywhere, so its own addresses are names of it.

    `refusal_seconds` is what a wrong token waits for its answer, so that guessing is slow.
    """

    hosts: frozenset[str] = frozenset()
    any_address: bool = False
    open: bool = False
    max_body: int = MAX_BODY
    refusal_seconds: float = 0.05

    @classmethod
    def of(
        cls, host: str, *, allowed_hosts: Iterable[str] = (), auth: str = "token", max_body: int = MAX_BODY
    ) -> Access:
        """From the address that is listened on and the settings; without a token on the loopback only."""
        names = frozenset(name.strip().lower() for name in (host, *allowed_hosts)) - WILDCARDS
        return cls(names, host in WILDCARDS, auth == "off" and is_loopback(host), max_body)

    def knows(self, authority: str, own_address: str) -> bool:
        """Whether a `Host` header names this daemon. A configured `name:port` holds for that port only."""
        name = host_name(authority)
        if name is None:
            return False
        if name in LOOPBACK_NAMES or name in self.hosts or authority.lower() in self.hosts:
            return True
        return self.any_address and name == own_address.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(authority: str) -> str | None:
    """The name in `name`, `name:port`, `[v6]` or `[v6]:port`, lower-cased; None when it is none of these."""
    text = authority.strip().lower()
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        valid = bool(closed) and (not rest or (rest.startswith(":") and rest[1:].isdigit()))
        return name if valid and name else None
    name, colon, port = text.partition(":")
    if not name or (colon and not port.isdigit()):
        return None
    return name


def is_own_origin(origin: str, authority: str) -> bool:
    """Whether a page at `origin` was served under the very `Host` that it now speaks to."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or parts.path or parts.query or parts.fragment:
        return False
    default = ":80" if parts.scheme == "http" else ":443"
    return parts.netloc.lower().removesuffix(default) == authority.strip().lower().removesuffix(default)


class Guard:
    """Refuses what should not come in, then says in the scope who the caller is. Raw ASGI, no copying of bodies."""

    def __init__(self, app: ASGIApp, api: Api, *, is_public: Callable[[str, str], bool]) -> None:
        self._app = app
        self._api = api
        self._is_public = is_public
        self._refused = 0
        self._logged_at = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        check_host(scope, headers, self._api.access)
        check_origin(headers)
        known = self._api.known
        check_query(scope["query_string"], known.auth.is_token if known is not None else None)
        scope[CALLER] = caller = await self._caller(scope, headers)
        most = self._api.access.max_body if caller is not NOBODY else min(STRANGERS_BODY, self._api.access.max_body)
        await self._app(scope, _limited(receive, headers, most), send)

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        public = self._is_public(scope["method"], scope["path"])
        known = self._api.known
        if known is None:
            if not public:
                client = scope.get("client")
                raise self._api.not_ready(why=client is not None and is_loopback(client[0]))
            return NOBODY
        if self._api.access.open:
            return Caller("open")
        caller = await known.auth.identify(headers, port=scope["server"][1] if scope.get("server") else 0)
        if caller.kind == "browser":
            check_browser(scope["method"], headers)
        if caller.kind == "nobody" and not public:
            await self._refuse(bool(headers.get("authorization")))
        return caller

    async def _refuse(self, tried: bool) -> None:
        self._refused += 1
        now = self._api.clock.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            logger.warning("%d request(s) without a valid access token refused", self._refused)
            self._logged_at, self._refused = now, 0
        await self._api.clock.sleep(self._api.access.refusal_seconds)
        hint = "the access token is not valid" if tried else "an access token is needed"
        raise Unauthenticated(f"{hint}: send 'Authorization: Bearer …' (see `qworkspace token show`)")


def check_host(scope: Scope, headers: Headers, access: Access) -> None:
    """421 unless the one `Host` header names this daemon: what defeats DNS rebinding."""
    hosts = headers.getlist("host")
    own = scope["server"][0] if scope.get("server") else ""
    if len(hosts) != 1 or not access.knows(hosts[0], own):
        raise QworkspaceError(
            f"this daemon is not {hosts[0] if hosts else ''!r}; add the name to server.allowed_hosts in config.json",
            code="unknown_host",
        )


def check_origin(headers: Headers) -> None:
    """403 for a request that a foreign page makes, whatever its method and content type; `null` is foreign too."""
    authority = headers.get("host", "")
    for origin in headers.getlist("origin"):
        if not is_own_origin(origin, authority):
            raise Denied(f"requests from pages of {origin!r} are refused", code="foreign_origin")


def check_query(query: bytes, is_token: Callable[[str], bool] | None) -> None:
    """400 for a token in an address: addresses end up in histories and logs, so it is not even read."""
    if not query:
        return
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in TOKEN_NAMES or (is_token is not None and is_token(value)):
            raise InvalidInput(
                "an access token does not belong into an address; send it as 'Authorization: Bearer …'",
                code="token_in_query",
            )


def check_browser(method: str, headers: Headers) -> None:
    """403 when a browser's cookie comes with a request that the console's own page did not make."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Denied("a page of another site may not use the console's cookie", code="foreign_origin")
    if method not in SAFE_METHODS and not headers.get("origin") and site != "same-origin":
        raise Denied("a request with the console's cookie must say where it comes from", code="origin_missing")


def _limited(receive: Receive, headers: Headers, limit: int) -> Receive:
    """`receive` that ends with 413 once a body is longer than `limit` bytes, announced or not."""
    announced = headers.get("content-length", "")
    left = limit

    async def limited() -> Message:
        nonlocal left
        if announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        message = await receive()
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                raise too_large(limit)
        return message

    return limited


def too_large(limit: int) -> TooLarge:
    """The error of a request body over the limit."""
    where = " (server.max_body_bytes)" if limit != STRANGERS_BODY else ""
    return TooLarge(f"the request body is larger than {limit:,} bytes{where}", limit=limit)
