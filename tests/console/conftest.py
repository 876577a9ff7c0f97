"""A browser, a daemon and a scripted model, shared by the tests of one file; each test has pages of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.console.browser import Chat, Watch, launch, pair
from tests.support.daemon import DaemonProcess, write_home

ROOT = Path(__file__).resolve().parents[2]
# little to draw: these tests read the page more than they look at it
CHEAP = {"viewport": {"width": 900, "height": 600}, "reduced_motion": "reduce"}
NewContext = Callable[..., BrowserContext]
Script = Callable[[Sequence[dict[str, Any]] | None], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/console/" in item.nodeid:
            item.add_marker("console")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def models() -> Iterator[str]:
    """The base URL of a scripted model server."""
    command = [sys.executable, "-m", "tests.support.model_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def script(models: str) -> Iterator[Script]:
    """Sets what the model answers, for this test."""

    def set_replies(replies: Sequence[dict[str, Any]] | None) -> None:
        httpx.post(models.removesuffix("/v1") + "/script", json={"replies": replies}).raise_for_status()

    yield set_replies
    set_replies(None)


@pytest.fixture(scope="module")
def daemon(models: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with two agents that speak through the scripted model."""
    home = write_home(
        tmp_path_factory.mktemp("console") / "home", models=models, agents=("default", "second"), memory=True
    )
    with DaemonProcess(home) as daemon:
        yield daemon


@pytest.fixture
def new_context(browser: Browser) -> Iterator[NewContext]:
    """Makes browser profiles; at the end of the test none of their pages may have done what no page may do."""
    made: list[tuple[BrowserContext, Watch]] = []

    def make(**options: Any) -> BrowserContext:
        context = browser.new_context(**(CHEAP | {"locale": "en-GB"} | options))
        made.append((context, Watch(context)))
        return context

    yield make
    for context, _ in made:
        context.close()
    assert [complaint for _, watch in made for complaint in watch.complaints] == []


@pytest.fixture
def context(new_context: NewContext, daemon: DaemonProcess) -> BrowserContext:
    """A paired browser profile."""
    context = new_context()
    pair(context, daemon)
    return context


@pytest.fixture
def chat(context: BrowserContext, daemon: DaemonProcess) -> Chat:
    """A tab with a new conversation."""
    return Chat(context.new_page(), daemon).open()
