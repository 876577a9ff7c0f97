"""One GET over HTTP that reaches public addresses only: each is checked, and the checked one is connected to.

`web_fetch` loads this module when it first runs, in a thread: httpx takes 0.1 s.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from qworkspace.chat.tools.addresses import is_public
from qworkspace.errors import Denied, InvalidInput, Unavailable

BODY_BYTES = 2_000_000
CONNECT_SECONDS = 5.0
REDIRECTS = 5
TRIED_ADDRESSES = 3
GENERATORS = 20
HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; qworkspace)",
    "Accept": "text/html,application/xhtml+xml,text/plain,text/markdown,application/json;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the last address answered; `cut` says that there was more than is read."""

    url: str
    status: int
    media_type: str
    charset: str
    body: bytes
    cut: bool


class Fetcher:
    """`may_move(url)` decides on each redirect; `private` opens addresses that are not public."""

    def __init__(self, may_move: Callable[[str], bool], private: bool = False) -> None:
        self._may_move = may_move
        self._private = private

    async def get(self, url: str) -> Answer | str:
        """The answer at the end of the redirects, or the address of one that may not be followed.

        `Denied` for what is not public, `Unavailable` when it fails.
        """
        async with await asyncio.to_thread(_client) as client:  # reading the certificates takes its time
            for _ in range(REDIRECTS + 1):
                answer = await self._hop(client, parsed(url))
                if isinstance(answer, Answer):
                    return answer
                if not self._may_move(answer):
                    return answer
                url = answer
        raise Unavailable(f"more than {REDIRECTS} redirects; the last one leads to {url}")

    async def _hop(self, client: httpx.AsyncClient, url: httpx.URL) -> Answer | str:
        """The answer, or the address that it redirects to."""
        problem: Exception | None = None
        for address in (await self._addresses(url))[:TRIED_ADDRESSES]:
            request = client.build_request(
                "GET",
                url.copy_with(host=address),
                headers={"Host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": url.raw_host.decode("ascii")},
            )
            try:
                response = await client.send(request, stream=True)
            except (httpx.HTTPError, OSError) as error:
                problem = error
                continue
            try:
                return await _read(response, url)
            finally:
                await response.aclose()
                del response
                await _settle()
        raise Unavailable(f"{url.host} cannot be reached: {problem}") from problem

    async def _addresses(self, url: httpx.URL) -> list[str]:
        """The addresses of the host that may be connected to."""
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidInput(f"{str(url)[:200]!r} is no http or https address")
        if url.userinfo:
            raise InvalidInput("an address with a user name or password in it is not fetched")
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"there is no host {url.host!r}: {error}") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        allowed = [address for address in addresses if self._private or is_public(address)]
        if not allowed:
            shown = ", ".join(addresses)
            raise Denied(f"{url.host} is in a private network ({shown}); tools.web_fetch.allow_private opens it")
        return allowed


async def _read(response: httpx.Response, url: httpx.URL) -> Answer | str:
    if response.is_redirect:
        try:
            return str(url.join(response.headers["location"]))
        except httpx.InvalidURL as error:
            raise Unavailable(f"{url.host} redirects to an address that is none") from error
    kind, _, parameters = response.headers.get("content-type", "").partition(";")
    charset = parameters.lower().partition("charset=")[2].split(";")[0].strip(" \"'")
    try:
        body, cut = await _body(response)
    except httpx.HTTPError as error:
        raise Unavailable(f"{url.host} broke off: {error}") from error
    return Answer(str(url), response.status_code, kind.strip().lower(), charset, body, cut)


async def _body(response: httpx.Response) -> tuple[bytes, bool]:
    """At most `BODY_BYTES` of the unpacked body; a small one that unpacks into a huge one is never unpacked whole."""
    packed = response.headers.get("content-encoding", "").lower()
    if packed not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise Unavailable(f"the answer is packed as {packed!r}, which was not asked for")
    unpack = zlib.decompressobj(wbits=47) if packed not in ("", "identity") else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        room = BODY_BYTES + 1 - len(body)
        try:
            # a chunk of 64 kB may unpack into 2 MB: not on the loop
            body += await asyncio.to_thread(unpack.decompress, chunk, room) if unpack is not None else chunk[:room]
        except zlib.error as error:
            raise Unavailable(f"the answer cannot be unpacked: {error}") from error
        if len(body) > BODY_BYTES:
            return bytes(body[:BODY_BYTES]), True
    return bytes(body), False


async def _settle() -> None:
    """Let the generators inside of httpx close: those of an answer not read to its end are left to the loop."""
    for _ in range(GENERATORS):
        await asyncio.sleep(0)


def parsed(url: str) -> httpx.URL:
    """The address without its fragment; `InvalidInput` when it is none."""
    try:
        return httpx.URL(url.strip()).copy_with(fragment=None)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url[:200]!r} is no address: {error}") from error


def _client() -> httpx.AsyncClient:
    """A client for one call. No connection is used twice: another host at the same address must prove its own name."""
    return httpx.AsyncClient(
        headers=HEADERS,
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        trust_env=False,
    )
