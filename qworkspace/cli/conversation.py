"""A turn as the terminal sees it: printed as it streams, stopped by Ctrl-C, re-joined when the connection is lost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from qworkspace.cli.client import DaemonClient, LostConnection, NoDaemon, ServerEvent
from qworkspace.cli.output import ask, note, print_text
from qworkspace.errors import QworkspaceError

ENDS = {"turn.completed": "completed", "turn.failed": "failed", "turn.cancelled": "cancelled"}
REJOIN_SECONDS = 60.0
PAUSE_SECONDS = 0.5
SHORT = 160

Stream = AbstractContextManager[Iterator[ServerEvent]]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a turn ended, and the data of its last event."""

    status: str
    data: dict[str, Any] = field(default_factory=dict)


class Printer:
    """The answer on stdout, what happens around it on stderr."""

    def __init__(self, *, quiet: bool = False, interactive: bool | None = None) -> None:
        self._quiet = quiet
        self._fresh = True
        self.interactive = sys.stdin is not None and sys.stdin.isatty() if interactive is None else interactive

    def text(self, text: str) -> None:
        if self._quiet or not text:
            return
        print_text(text, end="")
        self._fresh = text.endswith("\n")

    def aside(self, text: str) -> None:
        """A remark on a line of its own."""
        if self._quiet:
            return
        self.end_line()
        note(text)

    def end_line(self) -> None:
        if not self._fresh:
            self.text("\n")


class Conversation:
    """Turns of one session."""

    def __init__(
        self,
        client: DaemonClient,
        *,
        agent: str,
        session: str,
        printer: Printer,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.agent = agent
        self.session = session
        self._client = client
        self._printer = printer
        self._pause = pause
        self._last_id = ""
        self._said = ""

    def say(self, message: str) -> Ended:
        """One turn to its end, whatever happens to the connection. Ctrl-C stops the turn, not the program."""
        self._last_id = self._said = ""
        body = {"session_id": self.session, "message": message, "stream": True}
        stream: Stream = self._client.stream("POST", f"/api/agents/{self.agent}/chat", body=body)
        while True:
            ended = self._follow(stream)
            if ended is not None:
                self._printer.end_line()
                return ended
            stream = self._rejoined()

    def _follow(self, stream: Stream) -> Ended | None:
        """Print the events; how the turn ended, or None when the connection was lost before."""
        try:
            with stream as events:
                for event in events:
                    self._last_id = event.id or self._last_id
                    self._show(event)
                    if event.type in ENDS:
                        return self._end(event)
        except KeyboardInterrupt:
            self._stop()
        except (LostConnection, NoDaemon):
            if not self._last_id:
                raise
        return None

    def _stop(self) -> None:
        self._client.close()
        self._printer.aside("(stopping)")
        self._client.post(f"/api/agents/{self.agent}/sessions/{self.session}/stop")

    def _rejoined(self) -> Stream:
        """The rest of the stream; waits up to a minute for a daemon that comes back."""
        if not self._last_id:
            raise LostConnection("the connection was lost before the turn began; look with: qworkspace sessions show")
        waited, told = 0.0, False
        while self._client_is_away():
            if waited >= REJOIN_SECONDS:
                raise NoDaemon(self._client.home, "the daemon has ended and did not come back")
            if not told:
                self._printer.aside("(connection lost; waiting for the daemon)")
                told = True
            self._pause(PAUSE_SECONDS)
            waited += PAUSE_SECONDS
        path = f"/api/agents/{self.agent}/sessions/{self.session}/stream"
        return self._client.stream("GET", path, headers={"Last-Event-ID": self._last_id})

    def _client_is_away(self) -> bool:
        try:
            self._client.get("/readyz")
        except QworkspaceError:
            return True
        return False

    def _end(self, event: ServerEvent) -> Ended:
        status, data = ENDS[event.type], event.data
        whole = str(data.get("text") or "")
        if whole.startswith(self._said):
            self._printer.text(whole[len(self._said) :])
        if status == "failed":
            again = " (sending it again may help)" if data.get("retryable") else ""
            self._printer.aside(f"error: {data.get('message', 'the turn failed')}{again}")
        elif status == "cancelled":
            self._printer.aside("(stopped)")
        return Ended(status, data)

    def _show(self, event: ServerEvent) -> None:
        data = event.data
        if event.type == "text.delta":
            text = str(data.get("text", ""))
            self._said += text
            self._printer.text(text)
        elif event.type == "tool.call":
            self._printer.aside(f"· {data.get('name')} {_short(data.get('args'))}")
        elif event.type == "tool.result" and data.get("outcome") != "ok":
            self._printer.aside(f"· {data.get('name')}: {data.get('outcome')}: {_short(data.get('text'))}")
        elif event.type == "tool.approval":
            self._approve(data)
        elif event.type == "notice":
            self._printer.aside(f"({data.get('message')})")

    def _approve(self, data: dict[str, Any]) -> None:
        id = data.get("approval_id")
        self._printer.aside(f"May {self.agent} use {data.get('name')}?  {data.get('reason') or ''}".rstrip())
        for line in whole(data.get("args") or {}):  # a person answers for all of it, so all of it is shown
            self._printer.aside(line)
        if not self._printer.interactive:
            self._printer.aside(f"(waiting; answer with: qworkspace approvals answer {id} allow --home …)")
            return
        answer = ask("[y]es, [a]lways, [N]o: ").lower()
        body = {"decision": "allow" if answer[:1] in ("y", "a") else "deny", "remember": answer[:1] == "a"}
        try:
            self._client.post(f"/api/approvals/{id}", body)
        except QworkspaceError as error:
            self._printer.aside(f"(not taken: {error.message})")


def whole(args: dict[str, Any]) -> Iterator[str]:
    """The arguments of a call in full, each beginning on a line of its own."""
    for key, value in args.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"  {key}: " + text.replace("\n", "\n    ")


def _short(value: Any) -> str:
    """One line of a tool's arguments or result."""
    if isinstance(value, dict):
        value = "  ".join(f"{key}={item!r}" for key, item in value.items())
    text = " ".join(str(value or "").split())
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"
