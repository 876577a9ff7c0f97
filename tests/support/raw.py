"""HTTP as bytes on a socket: requests that no client library would send as they stand."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Status 0: the connection was closed without one. A stream of events is not read, `body` is empty then."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def code(self) -> str:
        """The code of an error in the daemon's shape; empty for anything else."""
        try:
            found: Any = json.loads(self.body)
            return str(found["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return ""


@dataclass(frozen=True, slots=True)
class Raw:
    """Speaks to one port, with this token unless a request says otherwise."""

    port: int
    token: str = ""
    address: str = "127.0.0.1"

    def connect(self) -> socket.socket:
        """A connection; close it."""
        return socket.create_connection((self.address, self.port), timeout=SECONDS)

    def ask(
        self,
        method: str,
        target: str,
        *headers: tuple[str, str],
        body: bytes | None = None,
        host: str | None = None,
        token: bool = True,
    ) -> Answer:
        """One request with its target exactly as given, on a connection of its own."""
        lines = [("Host", host if host is not None else f"{self.address}:{self.port}"), *headers]
        if token and self.token:
            lines.append(("Authorization", f"Bearer {self.token}"))
        if body is not None and not any(name.lower() == "transfer-encoding" for name, _ in headers):
            lines.append(("Content-Length", str(len(body))))
        return self.send(head(method, target, lines) + (body or b""), method=method)

    def json(self, method: str, target: str, value: Any, *headers: tuple[str, str], **options: Any) -> Answer:
        """`ask` with a JSON body."""
        body = json.dumps(value).encode()
        return self.ask(method, target, ("Content-Type", "application/json"), *headers, body=body, **options)

    def send(self, *pieces: bytes, method: str = "GET") -> Answer:
        """Send these bytes and read one answer; what the daemon no longer wants to hear is not an error."""
        with self.connect() as connection:
            for piece in pieces:
                try:
                    connection.sendall(piece)
                except (BrokenPipeError, ConnectionResetError):
                    break
            return read_answer(connection, method)


def head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The request line and the headers."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def read_answer(connection: socket.socket, method: str = "GET") -> Answer:
    """The next answer on the connection."""
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        streams = headers.get("content-type", "").startswith("text/event-stream")
        return Answer(response.status, headers, b"" if streams else response.read())
    except (http.client.BadStatusLine, ConnectionResetError, http.client.IncompleteRead):
        return Answer(0, {}, b"")
    finally:
        response.close()
