"""Whatever happens to the connection, the answer ends as exactly the stored text."""

from __future__ import annotations

import random

from playwright.sync_api import Route, expect

from tests.console.browser import Chat, pair, words
from tests.console.conftest import NewContext
from tests.console.proxy import Wire
from tests.support.daemon import DaemonProcess


def test_reloads_in_the_middle_of_an_answer_lose_and_double_nothing(chat: Chat) -> None:
    moments = sorted(random.Random(4).sample(range(1, 160), 5))
    chat.say("[[long:260]][[slow:0.008]]")
    for moment in moments:
        chat.wait_for_words(moment)
        chat.page.reload()
    chat.wait_for("completed")
    assert chat.shown() == words(260) == chat.stored()
    expect(chat.page.locator(".turn")).to_have_count(1)


def test_cut_connections_lose_and_double_nothing(new_context: NewContext, daemon: DaemonProcess) -> None:
    with Wire(daemon.port) as wire:
        context = new_context()
        pair(context, daemon, wire.url)
        chat = Chat(context.new_page(), daemon, wire.url).open()
        chat.say("[[long:300]][[slow:0.008]]")
        for moment in sorted(random.Random(7).sample(range(1, 220), 6)):
            chat.wait_for_words(moment)
            wire.cut()
        chat.wait_for("completed")
        assert chat.shown() == words(300) == chat.stored()
        context.close()


def test_while_the_network_is_away_the_page_says_so_and_catches_up(
    new_context: NewContext, daemon: DaemonProcess
) -> None:
    with Wire(daemon.port) as wire:
        context = new_context()
        pair(context, daemon, wire.url)
        chat = Chat(context.new_page(), daemon, wire.url).open()
        chat.say("[[long:150]][[slow:0.008]]").wait_for_words(20)
        wire.cut(stay=True)
        expect(chat.page.get_by_text("The connection to the daemon is lost")).to_be_visible()
        chat.box.fill("said while away")
        chat.box.press("Enter")
        wire.mend()
        chat.page.get_by_role("button", name="Try now").click()
        first, second = chat.page.locator(".turn").all()
        expect(first).to_have_attribute("data-state", "completed")
        expect(second).to_have_attribute("data-state", "completed")
        assert first.locator(".md").inner_text() == words(150)
        assert chat.shown() == "echo: said while away" == chat.stored()
        expect(chat.page.get_by_text("The connection to the daemon is lost")).to_be_hidden()
        context.close()


def test_a_message_is_said_once_whatever_is_lost_of_its_sending(chat: Chat) -> None:
    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    chat.page.route("**/chat", lose_the_answer, times=1)
    chat.say("said once").wait_for("completed")
    chat.page.route("**/chat", lambda route: route.abort())
    chat.say("sent before a reload")
    chat.page.unroute_all()
    chat.page.reload()
    chat.wait_for("completed")
    expect(chat.turn).to_contain_text("echo: sent before a reload")
    stored = chat.daemon.messages(session=chat.session)
    assert [m["text"] for m in stored if m["role"] == "user"] == ["said once", "sent before a reload"]
    expect(chat.page.locator(".turn")).to_have_count(2)


def test_an_answer_that_a_crash_interrupts_is_resumed_by_a_button(chat: Chat, daemon: DaemonProcess) -> None:
    chat.say("[[tool:current_time]][[long:70]][[slow:0.02]]").wait_for_words(15)
    daemon.kill()
    daemon.start()
    chat.wait_for("interrupted")
    expect(chat.turn.locator(".tool")).to_have_count(1)
    chat.turn.get_by_role("button", name="Resume").click()
    chat.wait_for("completed")
    assert chat.shown() == words(70) == chat.stored()
    expect(chat.turn.locator(".tool")).to_have_count(1)
    expect(chat.turn.get_by_role("button", name="Resume")).to_have_count(0)
