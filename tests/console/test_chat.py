"""A conversation in the browser: streaming, stopping, permissions, keyboard, hostile text, two tabs."""

from __future__ import annotations

import re

from playwright.sync_api import BrowserContext, expect

from tests.console.browser import Chat, pair, words
from tests.console.conftest import NewContext, Script
from tests.service.test_inbox import until
from tests.support.daemon import DaemonProcess

MARKDOWN = """\
# Plan

Two **bold** words, `code`, and [a link](https://example.org/x).

1. first
   - inner
2. second

```python
print("<b>not bold</b>")
```

| a | b |
|---|--:|
| 1 | 中文 |
"""
HOSTILE = """\
<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2"> <iframe src="https://example.org"></iframe>

[click](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>) ![x](https://example.org/x.png)

[\u202egnp.exe](https://example.org) \u202e reversed

| <svg onload=window.hacked=5> |
|---|
| <a href="javascript:window.hacked=6">x</a> |

```<script>
</code></pre><script>window.hacked = 7</script>
```
"""


def test_an_answer_grows_while_it_is_written_and_ends_as_stored(chat: Chat) -> None:
    chat.say("[[long:80]][[slow:0.01]]").wait_for_words(3)
    expect(chat.stop).to_be_visible()
    assert len(chat.shown().split()) < 80
    chat.wait_for("completed")
    assert chat.shown() == words(80) == chat.stored()
    expect(chat.stop).to_be_hidden()
    expect(chat.page.get_by_role("button", name=re.compile("long:80", re.I)).first).to_be_visible()


def test_what_memory_gave_to_an_answer_is_shown_also_later(chat: Chat, daemon: DaemonProcess) -> None:
    memory = "/api/agents/default/memory"
    note = {"text": "# Garden\n\n- The quinces are <b>ripe</b> in October\n"}
    assert daemon.request("PUT", f"{memory}/files/memory/2026-05-01.md", json=note).is_success
    until(lambda: daemon.request("POST", f"{memory}/search", json={"query": "quinces"}).json()["results"])
    chat.say("When are the quinces ripe?").wait_for("completed")
    told = chat.turn.locator(".sources")
    told.get_by_text("From memory").click()
    expect(told.get_by_text("memory/2026-05-01.md:1–3")).to_be_visible()
    expect(told.get_by_text("quinces are <b>ripe</b> in October")).to_be_visible()
    chat.page.reload()
    chat.turn.locator(".sources").get_by_text("What went into this answer").click()
    expect(chat.turn.locator(".sources").get_by_text("quinces are <b>ripe</b> in October")).to_be_visible()


def test_markdown_becomes_headings_lists_tables_and_code(chat: Chat, script: Script) -> None:
    script([{"text": MARKDOWN, "chunk": 3}])
    chat.say("plan").wait_for("completed")
    answer = chat.turn.locator(".md")
    expect(answer.get_by_role("heading", name="Plan")).to_be_visible()
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("ol ul li")).to_have_text("inner")
    expect(answer.locator("pre")).to_have_text('print("<b>not bold</b>")\n')
    expect(answer.get_by_role("cell")).to_have_text(["1", "中文"])
    link = answer.get_by_role("link", name="a link")
    assert (link.get_attribute("rel") or "").startswith("noopener")
    streamed = answer.inner_html()
    chat.page.reload()
    expect(answer.get_by_role("cell")).to_have_count(2)
    assert answer.inner_html() == streamed


def test_stop_keeps_what_was_said(chat: Chat) -> None:
    chat.say("[[long:2000]][[slow:0.01]]").wait_for_words(5)
    chat.page.keyboard.press("Escape")
    chat.wait_for("cancelled")
    assert chat.shown() == chat.stored() != ""
    expect(chat.turn).to_contain_text("Stopped.")
    chat.say("go on").wait_for("completed")
    assert chat.shown() == "echo: go on"


def test_a_second_message_waits_for_the_first_and_stop_ends_both(chat: Chat, script: Script) -> None:
    script([{"text": "well, ", "end": "stall"}])
    chat.say("first")
    expect(chat.turn.locator(".md")).to_have_text("well,")
    chat.say("second")
    expect(chat.turn).to_contain_text("Waiting for the answer before this one")
    chat.stop.click()
    expect(chat.page.locator(".turn[data-state=cancelled]")).to_have_count(2)
    expect(chat.stop).to_be_hidden()
    stored = chat.daemon.messages(session=chat.session)
    assert [m["text"] for m in stored if m["role"] == "user"] == ["first", "second"]


def test_tools_ask_for_permission_in_the_conversation(chat: Chat) -> None:
    command = '[[tool:run_shell {"command": "echo hi > made.txt"}]]'
    chat.say(command)
    card = chat.page.get_by_role("region", name="May I use run_shell?")
    expect(card).to_contain_text("echo hi > made.txt")
    card.get_by_role("button", name="Deny").click()
    chat.wait_for("completed")
    expect(card).to_contain_text("Denied.")
    expect(chat.turn.locator(".tool")).to_have_attribute("data-outcome", "denied")
    chat.say(command)
    chat.page.reload()
    card.last.get_by_role("button", name="Allow").click()
    chat.wait_for("completed")
    expect(chat.turn.locator(".tool")).to_have_attribute("data-outcome", "ok")
    assert chat.daemon.get("/api/approvals")["approvals"] == []


def test_a_failed_turn_says_why_and_can_be_sent_again(chat: Chat, script: Script) -> None:
    script([{"status": 401, "error_code": "invalid_api_key", "message": "Incorrect API key provided."}])
    chat.say("hello").wait_for("failed")
    expect(chat.turn.get_by_role("alert")).to_contain_text("Incorrect API key")
    script(None)
    chat.turn.get_by_role("button", name="Send again").click()
    expect(chat.page.locator(".turn")).to_have_count(2)
    chat.wait_for("completed")
    assert chat.shown() == "echo: hello"


def test_hostile_text_stays_text(chat: Chat, script: Script) -> None:
    script([{"text": HOSTILE, "chunk": 5}])
    chat.say(HOSTILE).wait_for("completed")
    for element in ("script", "iframe", "img", "svg[onload]", "[onerror]", "a[href^=javascript]", "a[href^=data]"):
        expect(chat.turn.locator(element)).to_have_count(0)
    assert chat.page.evaluate("window.hacked") is None
    expect(chat.turn.locator(".md")).to_contain_text("<script>window.hacked = 1</script>")
    expect(chat.turn.get_by_role("link", name="gnp.exe")).to_contain_text("U+202E")


def test_all_of_it_works_from_the_keyboard(chat: Chat) -> None:
    page, keyboard = chat.page, chat.page.keyboard
    expect(chat.box).to_be_focused()
    keyboard.type("one")
    keyboard.press("Shift+Enter")
    keyboard.type("two")
    assert chat.box.input_value() == "one\ntwo"
    keyboard.press("Control+Enter")
    chat.wait_for("completed")
    keyboard.press("Control+Shift+O")
    expect(page.get_by_role("heading", name="Hello, I am Default.")).to_be_visible()
    keyboard.press("Control+k")
    expect(page.get_by_role("searchbox", name="Search conversations")).to_be_focused()
    keyboard.type("one two")
    expect(chat.sessions).to_have_count(1)
    keyboard.press("Tab")
    keyboard.press("Enter")
    expect(chat.turn).to_contain_text("echo: one two")
    expect(chat.box).to_be_focused()
    keyboard.press("Shift+Tab")
    expect(page.locator(":focus")).to_be_visible()
    page.get_by_role("link", name="Skip to the message box").focus()
    keyboard.press("Enter")
    expect(chat.box).to_be_focused()


def test_conversations_are_renamed_pinned_and_deleted(chat: Chat) -> None:
    chat.open("second").say("first of all").wait_for("completed")
    more = chat.page.get_by_role("button", name="Actions for")
    more.first.click()
    chat.page.get_by_role("menuitem", name="Rename").click()
    chat.page.get_by_role("dialog").get_by_role("textbox").fill("A better name")
    chat.page.keyboard.press("Enter")
    expect(chat.sessions).to_contain_text(["A better name"])
    expect(chat.page.get_by_role("main").get_by_role("button", name="A better name")).to_be_visible()
    more.first.click()
    chat.page.get_by_role("menuitem", name="Pin").click()
    expect(chat.page.get_by_text("Pinned")).to_be_visible()
    more.first.click()
    chat.page.get_by_role("menuitem", name="Delete").click()
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.sessions).to_have_count(0)
    expect(chat.page.get_by_role("heading", name="Hello, I am Second.")).to_be_visible()
    assert chat.daemon.get("/api/agents/second/sessions")["sessions"] == []


def test_two_tabs_show_the_same(chat: Chat, context: BrowserContext) -> None:
    chat.say("hello").wait_for("completed")
    other = Chat(context.new_page(), chat.daemon).open("default", chat.session)
    expect(other.turn).to_contain_text("echo: hello")
    chat.say("[[long:120]][[slow:0.01]]")
    expect(other.page.locator(".turn")).to_have_count(2)
    other.wait_for_words(2)
    other.stop.click()
    for tab in (chat, other):
        tab.wait_for("cancelled")
        assert tab.shown() == tab.stored()
    elsewhere = Chat(context.new_page(), chat.daemon).open()
    elsewhere.say("from another conversation").wait_for("completed")
    expect(chat.sessions.first).to_contain_text("from another conversation")
    expect(chat.sessions.first).to_contain_text("new")
    other.page.get_by_role("button", name="Actions for").first.click()
    other.page.get_by_role("menuitem", name="Delete").click()
    other.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(elsewhere.page.get_by_role("heading", name="Hello, I am Default.")).to_be_visible()


def test_the_page_speaks_chinese_and_fits_a_phone(new_context: NewContext, daemon: DaemonProcess) -> None:
    phone = new_context(
        locale="zh-CN", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    pair(phone, daemon)
    page = phone.new_page()
    page.goto(daemon.url)
    box = page.get_by_role("textbox", name="消息")
    box.fill("你好" * 200)
    page.get_by_role("button", name="发送", exact=True).click()
    expect(page.locator(".turn").last).to_have_attribute("data-state", "completed")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="显示对话列表").click()
    expect(page.get_by_role("navigation", name="对话").get_by_role("link").first).to_be_in_viewport()
    page.get_by_label("语言").select_option("English")
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_attached()
