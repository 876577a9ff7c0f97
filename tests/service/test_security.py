"""Foreign hosts and pages, names and paths from outside: against a real daemon, with requests as raw as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.daemon import DaemonProcess
from tests.support.guarded import GuardedHome, guarded_home
from tests.support.raw import Answer, Raw, head

HELLO = {"message": "hello", "session_id": "s1", "stream": False}
CHAT = "/api/agents/default/chat"

# raw targets: what a client library would tidy up before it is sent
ODD_NAMES = [
    "..",
    "%2e%2e",
    "..%2f..%2fsecrets.json",
    "%2e%2e%2f%2e%2e%2fsecrets.json",
    "..%5c..%5csecrets.json",
    "..\\..\\secrets.json",
    "../../secrets.json",
    "%2fetc%2fpasswd",
    "//etc/passwd",
    "c:%5cwindows%5cwin.ini",
    "default%00",
    "%00",
    "%c0%ae%c0%ae%c0%afsecrets.json",
    "%e0%80%ae%e0%80%ae",
    "..%252f..%252fsecrets.json",
    "..;/secrets.json",
    "%0d%0aSet-Cookie:%20a=b",
    "%ef%bc%8e%ef%bc%8e%ef%bc%8fsecrets.json",
    "%f0%9f%a6%8a" * 100,
    "a" * 4000,
]
NAMED = [
    "/api/agents/{}",
    "/api/agents/{}/config",
    "/api/agents/{}/sessions",
    "/api/agents/default/sessions/{}",
    "/api/agents/default/sessions/{}/messages",
    "/api/agents/default/sessions/{}/stream",
    "/api/agents/default/sessions/{}/turns",
    "/api/agents/default/sessions/s1/turns/{}",
    "/api/agents/default/turns/{}",
    "/api/agents/default/turns/{}/context",
    "/api/agents/default/memory/files/{}",
    "/api/agents/default/memory/history/{}",
    "/api/approvals/{}",
    "/v1/models/{}",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> GuardedHome:
    """A home full of secrets."""
    return guarded_home(tmp_path_factory.mktemp("security") / "home", models=None)


@pytest.fixture(scope="module")
def running(home: GuardedHome) -> Iterator[DaemonProcess]:
    with DaemonProcess(home.path) as daemon:
        daemon.chat("hello")
        yield daemon


@pytest.fixture
def daemon(running: DaemonProcess) -> Iterator[DaemonProcess]:
    """The daemon of this module."""
    with running.unsurprised():
        yield running


@pytest.fixture
def raw(daemon: DaemonProcess) -> Raw:
    return Raw(daemon.port, daemon.token)


def nothing_told(home: GuardedHome, answer: Answer) -> None:
    assert home.told(answer.text + str(dict(answer.headers))) == []
    assert "root:" not in answer.text


# who is meant, and who asks


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "a b", "[::"])
def test_requests_for_another_host_are_refused_with_the_token_too(raw: Raw, host: str) -> None:
    for target in ("/", "/healthz", "/api/status", CHAT):
        answer = raw.ask("GET", target, host=host.format(port=raw.port))
        assert answer.status in (421, 400), target
        assert "access-control-allow-origin" not in answer.headers
    assert raw.json("POST", CHAT, HELLO, host=host.format(port=raw.port)).status in (421, 400)


def test_one_host_must_be_named_once(raw: Raw) -> None:
    host = f"127.0.0.1:{raw.port}"
    for hosts in ([], [host, "evil.example"], ["evil.example", host]):
        lines = [("Host", name) for name in hosts]
        answer = raw.send(head("GET", "/api/status", [*lines, ("Authorization", f"Bearer {raw.token}")]))
        assert answer.status in (400, 421)
    target = f"http://evil.example:{raw.port}/api/status"
    assert raw.ask("GET", target).status in (400, 404)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "http://127.0.0.1.evil:{port}"]
)
def test_foreign_pages_are_refused_whatever_they_send(raw: Raw, daemon: DaemonProcess, origin: str) -> None:
    foreign = ("Origin", origin.format(port=raw.port))
    before = len(daemon.messages())
    form = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.txt"\r\n\r\nx\r\n--b--\r\n'
    message = json.dumps(HELLO).encode()
    sent = [
        raw.json("POST", CHAT, HELLO, foreign),
        raw.ask("POST", CHAT, ("Content-Type", "text/plain"), foreign, body=message),
        raw.ask("POST", CHAT, ("Content-Type", "application/x-www-form-urlencoded"), foreign, body=message),
        raw.ask("POST", CHAT, ("Content-Type", "multipart/form-data; boundary=b"), foreign, body=form),
        raw.ask(
            "POST",
            "/api/agents/default/uploads",
            ("Content-Type", "multipart/form-data; boundary=b"),
            foreign,
            body=form,
        ),
        *(raw.ask(method, "/api/status", foreign) for method in ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "BREW")),
        raw.ask("GET", "/healthz", foreign),
        raw.ask("GET", "/", foreign),
        raw.ask(
            "OPTIONS",
            CHAT,
            foreign,
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization"),
        ),
        raw.ask("GET", "/api/events", foreign, ("Upgrade", "websocket"), ("Connection", "Upgrade")),
    ]
    assert {answer.status for answer in sent} == {403}
    assert [name for answer in sent for name in answer.headers if name.startswith("access-control")] == []
    assert len(daemon.messages()) == before and list((daemon.home / "workspaces/default/files").iterdir()) == [
        daemon.home / "workspaces/default/files/notes.txt"
    ]


def test_a_page_of_the_daemon_may_use_it_and_nobody_is_offered_more(raw: Raw) -> None:
    own = ("Origin", f"http://127.0.0.1:{raw.port}")
    assert raw.json("POST", CHAT, HELLO, own).status == 200
    preflight = raw.ask("OPTIONS", CHAT, own, ("Access-Control-Request-Method", "POST"))
    assert preflight.status == 405
    assert [name for name in preflight.headers if name.startswith("access-control")] == []


def test_there_are_no_websockets(raw: Raw) -> None:
    upgrade = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")]
    key = ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
    assert raw.ask("GET", "/api/events", *upgrade, key, token=False).status == 401
    assert raw.ask("GET", "/api/status", *upgrade, key).status == 200


# tokens where they do not belong


def test_a_token_in_an_address_opens_nothing_and_is_written_nowhere(raw: Raw, daemon: DaemonProcess) -> None:
    token, wrong = raw.token, "qwt-somebody-elses-token-1234"
    targets = [f"/api/status?token={token}", f"/api/status?x={token}", f"/?access_token={token}", f"/healthz?t={token}"]
    targets += [f"/api/status?token={wrong}", f"/v1/models?api_key={token[:8]}%{ord(token[8]):x}{token[9:]}"]
    for target in targets:
        for with_token in (False, True):
            assert raw.ask("GET", target, token=with_token).code == "token_in_query", target
    raw.ask("GET", f"/api/agents/{token}")
    raw.ask("GET", f"/{token}", token=False)
    raw.ask("GET", "/api/status", ("Authorization", f"Basic {token}"), token=False)
    raw.ask("GET", "/api/status", ("Cookie", f"qworkspace_{raw.port}={token}"), token=False)
    raw.ask("GET", "/api/status", ("Authorization", f"Bearer {wrong}"), token=False)
    raw.send(f"GET /?token={token} HTTP/1.1\r\nbroken\r\n\r\n".encode())
    assert token not in daemon.said() and wrong not in daemon.said()


# names and paths


@pytest.mark.parametrize("template", [*NAMED, "/{}", "/assets/{}", "/{}/app.js", "/{}.js"])
def test_odd_names_lead_nowhere(raw: Raw, home: GuardedHome, template: str) -> None:
    for name in ODD_NAMES:
        answer = raw.ask("GET", template.format(name))
        assert answer.status in (400, 404), (name, answer.status, answer.text)
        nothing_told(home, answer)
        assert "set-cookie" not in answer.headers
    assert home.changes() == []


def test_odd_names_change_nothing(raw: Raw, home: GuardedHome) -> None:
    for name in ODD_NAMES:
        one = f"/api/agents/{name}"
        sent = [
            raw.json("POST", f"{one}/chat", HELLO),
            raw.json("PUT", f"{one}/config", {"id": "default"}),
            raw.json("PATCH", f"{one}/config", {"name": "x"}),
            raw.json("PATCH", one, {"name": "x"}),
            raw.ask("DELETE", f"{one}?files=true"),
            raw.ask("DELETE", f"/api/agents/default/sessions/{name}"),
            raw.json("POST", f"/api/approvals/{name}", {"decision": "allow"}),
            raw.ask("DELETE", f"/api/browsers/{name}"),
            raw.ask("POST", f"{one}/uploads?name=x.txt", ("Content-Type", "text/plain"), body=b"x"),
        ]
        assert {answer.status for answer in sent} <= {400, 404, 405}, name
    assert home.changes() == []


@pytest.mark.parametrize(
    "name", ["..", ".", "../other", "../../secrets.json", "/etc/passwd", "a/b", "a\\b", "a\0b", "\u2025", "x" * 200, ""]
)
def test_odd_names_in_bodies_and_headers_are_refused(raw: Raw, home: GuardedHome, name: str) -> None:
    plain = name.isascii() and "\0" not in name
    part = {"type": "file", "path": name}
    sent = [
        raw.json("POST", "/api/agents", {"id": name}),
        raw.json("POST", "/api/agents", {"id": "fresh", "template": name or "-"}),
        raw.json("POST", "/api/agents", {"id": "fresh", "copy": name}),
        raw.json("POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "x"}]}),
    ]
    if name not in ("", "x" * 200):
        sent += [raw.json("POST", CHAT, {**HELLO, "session_id": name})]
        sent += [raw.json("POST", CHAT, {**HELLO, "message": [{"type": "text", "text": "x"}, part]})]
    if plain and name:
        sent += [raw.json("POST", "/console/chat", HELLO, ("X-Agent-Id", name))]
        sent += [raw.json("POST", CHAT, {"message": "x", "stream": False}, ("X-Session-Id", name))]
        sent += [raw.ask("GET", "/api/agents/default/sessions/s1/stream", ("Last-Event-ID", name))]
    assert {answer.status for answer in sent} <= {400, 404}, [(answer.status, answer.text) for answer in sent]
    for answer in sent:
        nothing_told(home, answer)
    assert home.changes() == []


def test_cursors_and_event_ids_are_those_that_were_given_out(raw: Raw) -> None:
    one = "/api/agents/default"
    lists = [f"{one}/sessions", f"{one}/sessions/s1/messages", f"{one}/sessions/s1/turns", f"{one}/reloads"]
    odd = ["..%2f..", "%00", "bnVsbA", "WzFd", "W10", "x" * 600, "Wzk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5XQ", "%ff%fe"]
    odd += ["WyInOyBEUk9QIFRBQkxFIHR1cm5zOyAtLSJd", "LTE", "W3RydWVd", "9" * 40, "-1"]
    for name in [*lists, "/api/agents", "/api/approvals", "/api/inbox"]:
        for cursor in odd:
            answer = raw.ask("GET", f"{name}?cursor={cursor}")
            assert answer.status in (200, 400), (name, cursor, answer.text)
        assert raw.ask("GET", f"{name}?limit=1000000").status == 400
    for address in ("/api/agents/default/sessions/s1/stream", "/api/events"):
        for event in ("../..", "x", "1", ".", "x.-1", "x.1e9", "x." + "9" * 400, "\xe9.\xb2", "x" * 8000 + ".a"):
            answer = raw.ask("GET", address, ("Last-Event-ID", event))
            assert answer.status == 400, (event, answer.text)
    assert raw.ask("GET", "/api/agents/default/sessions/s1/stream", ("Last-Event-ID", "../../x.1")).status == 204


@pytest.mark.parametrize(
    "name", ["..", "../../x.txt", "..%5c..%5cx.txt", "/etc/x.txt", "%00.txt", ".hidden", "con.txt"]
)
def test_uploads_land_in_their_folder_or_nowhere(raw: Raw, home: GuardedHome, name: str) -> None:
    quoted = name.replace("%5c", "\\").replace("%00", "\0")
    form = (
        f'--b\r\nContent-Disposition: form-data; name="f"; filename="{quoted}"\r\n\r\nx\r\n'
        f"--b\r\nContent-Disposition: form-data; name=\"g\"; filename*=utf-8''..%2f..%2fy.txt\r\n\r\ny\r\n--b--\r\n"
    ).encode()
    sent = [
        raw.ask("POST", "/api/agents/default/uploads", ("Content-Type", "multipart/form-data; boundary=b"), body=form),
        raw.ask("POST", f"/api/agents/default/uploads?name={name}", ("Content-Type", "text/plain"), body=b"x"),
        raw.ask(
            "POST", "/api/agents/default/uploads", ("Content-Type", "text/plain"), ("X-File-Name", name), body=b"x"
        ),
    ]
    assert {answer.status for answer in sent} <= {201, 400}
    assert home.changes(expected=("home/workspaces/default/files/uploads/",)) == []


def test_links_that_lead_out_are_not_followed(raw: Raw, home: GuardedHome, daemon: DaemonProcess) -> None:
    files = home.workspace / "files"
    (files / "out.txt").symlink_to(home.path / "secrets.json")
    (files / "outside").symlink_to(home.outside)
    (files / "state").symlink_to(home.workspace / ".state")
    try:
        for path in ("out.txt", "files/out.txt", "files/outside/private.txt", "files/state/canary.txt"):
            answer = raw.json("POST", CHAT, {**HELLO, "message": [{"type": "file", "path": path}]})
            assert answer.status == 400, (path, answer.text)
            nothing_told(home, answer)
    finally:
        for link in ("out.txt", "outside", "state"):
            (files / link).unlink()


@pytest.mark.parametrize(
    "target", ["../../outside", "../../../.daemon", "../plugins", "../.state", "../../other/files"]
)
def test_an_uploads_folder_that_is_a_link_takes_nothing(raw: Raw, home: GuardedHome, target: str) -> None:
    uploads = home.workspace / "files" / "uploads"
    kept = uploads.with_name("uploads-before")
    if uploads.exists():
        uploads.rename(kept)
    uploads.symlink_to(target)
    expected = ("home/workspaces/default/files/uploads",)
    try:
        answer = raw.ask("POST", "/api/agents/default/uploads?name=x.txt", ("Content-Type", "text/plain"), body=b"x")
        assert answer.status == 400, answer.text
        assert home.changes(expected=expected) == []
    finally:
        uploads.unlink()
        if kept.exists():
            kept.rename(uploads)
