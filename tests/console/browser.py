"""The console in a real browser, as a person uses it: by what is seen and by the keyboard."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Playwright, Request, expect

from tests.support.daemon import DaemonProcess

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 20_000


def launch(playwright: Playwright) -> Browser:
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


class Watch:
    """What no page may do: ask another host, break its own policy, or fail in a script."""

    def __init__(self, context: BrowserContext) -> None:
        self.complaints: list[str] = []
        context.on("request", self._request)
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(f"script error: {error.error}"))

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname not in ("127.0.0.1", "localhost"):
            self.complaints.append(f"request to {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            self.complaints.append(message.text)


def pair(context: BrowserContext, daemon: DaemonProcess, url: str = "") -> None:
    """Give the context the cookie that a pairing link gives."""
    code = daemon.request("POST", "/api/pairing").json()["code"]
    base = url or daemon.url
    answer = context.request.post(f"{base}/api/pair", data={"code": code}, headers={"Origin": base})
    assert answer.ok, answer.text()


class Chat:
    """One tab of the console."""

    def __init__(self, page: Page, daemon: DaemonProcess, url: str = "") -> None:
        self.page = page
        self.daemon = daemon
        self.url = url or daemon.url

    def open(self, agent: str = "default", session: str = "") -> Chat:
        self.page.goto(f"{self.url}/#/{agent}{'/' + session if session else ''}")
        expect(self.box).to_be_visible()
        return self

    @property
    def box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def turn(self) -> Locator:
        """The newest turn."""
        return self.page.locator(".turn").last

    @property
    def stop(self) -> Locator:
        return self.page.get_by_role("button", name="Stop")

    @property
    def sessions(self) -> Locator:
        return self.page.get_by_role("navigation", name="Conversations").get_by_role("link")

    @property
    def agent(self) -> str:
        return self._address()[0]

    @property
    def session(self) -> str:
        return self._address()[1]

    def say(self, text: str) -> Chat:
        count = self.page.locator(".turn").count()
        self.box.fill(text)
        self.box.press("Enter")
        expect(self.page.locator(".turn")).to_have_count(count + 1)
        return self

    def wait_for(self, state: str) -> Chat:
        """Wait until the newest turn has ended like that."""
        expect(self.turn).to_have_attribute("data-state", state)
        return self

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE_MS / 1000) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"waited in vain until {what}"
            self.page.wait_for_timeout(15)

    def wait_for_words(self, count: int) -> None:
        """Wait until the newest answer has that many words."""
        self.wait_until(lambda: len(self.shown().split()) >= count, f"{count} words are shown")

    def shown(self) -> str:
        """The newest answer's text, as it is seen."""
        return "\n\n".join(self.turn.locator(".md").all_inner_texts())

    def stored(self) -> str:
        """The newest turn's answer, as the daemon keeps it."""
        messages = self.daemon.messages(agent=self.agent, session=self.session)
        said = [m["text"] for m in messages if m["turn_id"] == messages[-1]["turn_id"] and m["role"] == "assistant"]
        return "\n\n".join(text for text in said if text)

    def _address(self) -> tuple[str, str]:
        found = re.search(r"#/([^/]+)/([^/]+)$", self.page.url)
        assert found is not None, f"no conversation is open at {self.page.url}"
        return found[1], found[2]


def words(count: int) -> str:
    """What the scripted model answers to `[[long:count]]`."""
    return " ".join(f"word{number}" for number in range(count))
