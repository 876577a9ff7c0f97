"""Coming in: the one-time link, the page without it, the first message, a daemon that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.browser import Chat, pair
from tests.console.conftest import NewContext
from tests.support.daemon import DaemonProcess


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon on a new home: no model is configured."""
    with DaemonProcess(tmp_path_factory.mktemp("fresh") / "home") as daemon:
        yield daemon


def link(daemon: DaemonProcess) -> str:
    return str(daemon.request("POST", "/api/pairing").json()["link"])


def test_the_link_lets_this_browser_in_and_leaves_no_code_behind(new_context: NewContext, fresh: DaemonProcess) -> None:
    context = new_context()
    page = context.new_page()
    page.goto(link(fresh))
    chat = Chat(page, fresh)
    expect(chat.box).to_be_visible()
    assert "pair" not in page.url
    page.go_back()
    assert "pair" not in page.url
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    chat.open()
    expect(page.get_by_text("Pair this browser")).to_have_count(0)


def test_without_the_cookie_the_page_says_what_to_do(new_context: NewContext, fresh: DaemonProcess) -> None:
    page = new_context().new_page()
    used = link(fresh)
    pair_once = new_context().new_page()
    pair_once.goto(used)
    expect(Chat(pair_once, fresh).box).to_be_visible()
    page.goto(used)
    expect(page.get_by_role("alert")).to_contain_text("does not work")
    assert "pair" not in page.url
    expect(page.get_by_text("qworkspace console", exact=True)).to_be_visible()
    page.get_by_label("Pairing link or code").fill(link(fresh))
    page.keyboard.press("Enter")
    expect(Chat(page, fresh).box).to_be_visible()


def test_a_revoked_browser_is_asked_to_pair_again(new_context: NewContext, fresh: DaemonProcess) -> None:
    context = new_context()
    pair(context, fresh)
    chat = Chat(context.new_page(), fresh).open()
    for known in fresh.get("/api/browsers")["browsers"]:
        fresh.request("DELETE", f"/api/browsers/{known['id']}")
    chat.box.fill("hello?")
    chat.box.press("Enter")
    expect(chat.page.get_by_text("Pair this browser")).to_be_visible()


def test_a_first_message_is_answered_and_tells_how_to_connect_a_model(
    new_context: NewContext, fresh: DaemonProcess
) -> None:
    context = new_context()
    pair(context, fresh)
    chat = Chat(context.new_page(), fresh).open()
    chat.page.get_by_role("button", name="How to connect one").click()
    expect(chat.page.get_by_role("dialog")).to_contain_text("config.json")
    chat.page.keyboard.press("Escape")
    chat.page.get_by_role("button", name="What can you do for me?").click()
    chat.box.press("Enter")
    chat.wait_for("completed")
    stored = chat.stored()
    assert "offline" in chat.shown()
    assert stored.split()[0] == chat.shown().split()[0]
    expect(chat.sessions).to_have_count(1)
    expect(chat.sessions).to_contain_text("What can you do for me?")


def test_a_page_without_its_daemon_says_so_and_comes_in_by_itself(
    new_context: NewContext, fresh: DaemonProcess
) -> None:
    context = new_context()
    pair(context, fresh)
    chat = Chat(context.new_page(), fresh).open()
    fresh.terminate()
    expect(chat.page.get_by_text("The connection to the daemon is lost")).to_be_visible()
    expect(chat.page.get_by_text("Reconnecting…")).to_be_visible()
    chat.box.fill("are you back?")
    chat.box.press("Enter")
    expect(chat.turn).to_contain_text("Waiting for the daemon…")
    fresh.start()
    chat.wait_for("completed")
    assert [m["role"] for m in fresh.messages(session=chat.session)] == ["user", "assistant"]
    expect(chat.page.get_by_text("The connection to the daemon is lost")).to_be_hidden()
