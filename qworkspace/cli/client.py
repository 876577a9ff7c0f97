"""The command line's side of the daemon: where it is, its token, one request, one event stream."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from qworkspace.base.lock import is_held, read_holder
from qworkspace.base.text import clean_text, clean_value
from qworkspace.cli.up import home_directory
from qworkspace.config.secrets import Secrets
from qworkspace.errors import QworkspaceError, Unavailable

TIMEOUT = httpx.Timeout(10.0, read=120.0)
STREAM_TIMEOUT = httpx.Timeout(10.0, read=60.0)  # the daemon sends a comment every 15 s


class NoDaemon(Unavailable):
    """No daemon serves the home; the message says how to start one."""

    code = "no_daemon"

    def __init__(self, home: Path, reason: str = "no daemon is running") -> None:
        super().__init__(f"{reason} for {str(home)!r}; start it with: qworkspace up --home {home}")


class LostConnection(Unavailable):
    """The daemon stopped answering in the middle of something."""

    code = "lost_connection"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream."""

    id: str
    type: str
    data: dict[str, Any]


def daemon_address(home: Path) -> str | None:
    """The URL of the daemon that holds the home's lock; None when nobody does."""
    lock = home / ".daemon" / "lock"
    holder = read_holder(lock) if is_held(lock) else None
    return holder.address if holder is not None and holder.address else None


class DaemonClient:
    """Requests to the daemon of a home, with its access token."""

    def __init__(self, home: str | Path, *, environ: Mapping[str, str] = os.environ) -> None:
        self.home = home_directory(home)
        self._token = Secrets(self.home / "secrets.json", environ=environ)
        self._http: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back. Idempotent; the next request opens another one."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer of a GET."""
        return self.request("GET", path, query={key: value for key, value in query.items() if value is not None})

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON answer of a POST."""
        return self.request("POST", path, body={} if body is None else body)

    def request(self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer, None when there is none; the daemon's own error as `QworkspaceError`."""
        return self._answer(method, path, json=clean_value(body), params=clean_value(query) or None)

    def send_text(self, method: str, path: str, text: str, *, kind: str, query: Mapping[str, Any] | None = None) -> Any:
        """Like `request`, with a body of that content type that goes out as it is: errors can name its lines."""
        headers = {"Content-Type": kind}
        return self._answer(method, path, content=clean_text(text).encode(), headers=headers, params=query or None)

    def _answer(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._client().request(method, path, **options)
        except httpx.TransportError as error:
            raise self._lost(error) from error
        _check(answer)
        return answer.json() if answer.content else None

    @contextmanager
    def stream(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Iterator[ServerEvent]]:
        """The events of an answer; `LostConnection` when it breaks off."""
        accepting = {"Accept": "text/event-stream", **(headers or {})}
        request = self._client().stream(method, path, json=clean_value(body), headers=accepting, timeout=STREAM_TIMEOUT)
        try:
            with request as answer:
                if answer.status_code != 200:
                    answer.read()
                    _check(answer)
                yield read_events(lines_of(answer.iter_text()))
        except httpx.TransportError as error:
            self.close()
            raise self._lost(error) from error

    def _client(self) -> httpx.Client:
        if self._http is None:
            address = daemon_address(self.home)
            if address is None:
                raise NoDaemon(self.home)
            headers = {"Authorization": f"Bearer {self._token.token()}"}
            self._http = httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT, trust_env=False)
        return self._http

    def _lost(self, error: Exception) -> QworkspaceError:
        self.close()
        if daemon_address(self.home) is None:
            return NoDaemon(self.home, "the daemon has ended")
        return LostConnection(f"the daemon did not answer ({error or type(error).__name__}); see: qworkspace doctor")


def _check(answer: httpx.Response) -> None:
    """Raise what the daemon says is wrong."""
    if answer.is_success:
        return
    try:
        error = answer.json()["error"]
        message, code, details = str(error["message"]), str(error["code"]), dict(error.get("details") or {})
    except (ValueError, KeyError, TypeError):
        raise QworkspaceError(f"the daemon answered {answer.status_code}: {answer.text[:200]}") from None
    failure = QworkspaceError(message, code=code)
    failure.details = details
    raise failure


def lines_of(pieces: Iterator[str]) -> Iterator[str]:
    """Lines that end with a line feed only: texts hold other separators, which are no ends of lines here."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole


def read_events(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """Server-sent events from the lines of an answer; comments are left out."""
    id, type, data = "", "message", list[str]()
    for line in lines:
        if not line:
            if data:
                yield ServerEvent(id, type, json.loads("\n".join(data)))
            type, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            id = value
        elif name == "event":
            type = value
        elif name == "data":
            data.append(value)
