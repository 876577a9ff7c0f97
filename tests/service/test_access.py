"""Tokens, cookies, pairing, sizes, and that no secret is ever shown: against real daemons."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home, write_json
from tests.support.guarded import KEY, GuardedHome, guarded_home
from tests.support.model_process import ModelProcess
from tests.support.raw import Answer, Raw, head, read_answer

PUBLIC = {"/healthz", "/readyz", "/api/pair"}
CHAT = "/api/agents/default/chat"


def raw_of(daemon: DaemonProcess, *, token: bool = True, address: str = "127.0.0.1") -> Raw:
    return Raw(daemon.port, daemon.token if token else "", address)


def operations(raw: Raw, **named: str) -> Iterator[tuple[str, str]]:
    """Every (method, address) that the daemon describes, with these names in it, else with made-up ones."""
    for path, methods in json.loads(raw.ask("GET", "/openapi.json").body)["paths"].items():
        address = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: named.get(found[1], "x1"), path)
        yield from ((method.upper(), address) for method in methods)


# beyond the loopback


def test_on_all_addresses_nothing_answers_without_the_token(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(arguments=["--host", "0.0.0.0"]).start()
    raw, stranger = raw_of(daemon, address="127.0.0.2"), raw_of(daemon, token=False, address="127.0.0.2")
    assert raw.json("POST", "/api/agents/default/chat", {"message": "hello", "stream": False}).status == 200
    found = list(operations(raw))
    assert len(found) > 30
    for method, address in [*found, ("GET", "/nowhere"), ("POST", "/"), ("GET", "/assets"), ("PROPFIND", "/")]:
        answer = stranger.json(method, address, {})
        expected = {400, 403} if address == "/api/pair" else {200, 405} if address in PUBLIC else {401}
        assert answer.status in expected, (method, address, answer.status)
        assert answer.status != 401 or answer.headers["www-authenticate"].startswith("Bearer")
    assert [stranger.ask("GET", page).status for page in ("/", "/healthz", "/readyz")] == [200, 200, 200]
    assert daemon.token not in stranger.ask("GET", "/readyz").text
    assert stranger.ask("GET", "/healthz", host="evil.example").status == 421
    foreign = ("Origin", "http://evil.example")
    assert raw.json("POST", "/api/agents/default/chat", {"message": "x"}, foreign).status == 403
    assert len(daemon.get("/api/agents/default/sessions")["sessions"]) == 1


@pytest.mark.parametrize(("host", "arguments"), [("0.0.0.0", ()), ("127.0.0.1", ("--host", "::"))])
def test_without_a_token_it_listens_on_the_loopback_only(
    tmp_path: Path, make_daemon: MakeDaemon, host: str, arguments: tuple[str, ...]
) -> None:
    home = write_home(tmp_path / "home", config={"server": {"host": host, "auth": "off"}})
    daemon = make_daemon(home, arguments=arguments)
    with pytest.raises(AssertionError, match="ended with 1"):
        daemon.start()
    assert "Traceback" not in daemon.text()
    assert "server.auth" in daemon.text() and '"off" is possible on the loopback only' in daemon.text()


# tokens, cookies and codes


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    home = write_home(tmp_path_factory.mktemp("access") / "home", config={"server": {"keep_alive": 1}})
    with DaemonProcess(home) as daemon:
        yield daemon


def own(raw: Raw) -> tuple[tuple[str, str], tuple[str, str]]:
    """What a browser adds to a request of the console's own page."""
    return ("Origin", f"http://127.0.0.1:{raw.port}"), ("Sec-Fetch-Site", "same-origin")


def paired(daemon: DaemonProcess) -> tuple[tuple[str, str], Answer]:
    """The cookie of a freshly paired browser as its header, and the answer that set it."""
    raw = raw_of(daemon)
    code = json.loads(raw.ask("POST", "/api/pairing").body)["code"]
    answer = raw.json("POST", "/api/pair", {"code": code, "name": "a test"}, *own(raw), token=False)
    assert answer.status == 200, answer.text
    return ("Cookie", answer.headers["set-cookie"].partition(";")[0]), answer


def test_the_cookie_stays_with_the_browser_and_the_page(running: DaemonProcess) -> None:
    cookie, answer = paired(running)
    flags = {flag.strip().lower() for flag in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    assert not any(flag.startswith("domain") for flag in flags)
    name, _, secret = cookie[1].partition("=")
    assert str(running.port) in name and secret not in answer.text
    stored = b"".join(path.read_bytes() for path in (running.home / ".daemon").glob("home.db*"))
    assert secret.encode() not in stored and secret not in running.text()


def test_a_cookie_counts_for_the_own_page_only(running: DaemonProcess) -> None:
    raw, (cookie, _) = raw_of(running, token=False), paired(running)
    foreign, own_page = ("Origin", "http://127.0.0.1:1"), own(raw)
    rename = {"title": "taken over"}
    target = "/api/agents/default/sessions/s1"
    assert raw.ask("GET", "/api/status", cookie).status == 200
    assert raw.ask("GET", "/api/status", cookie, *own_page).status == 200
    assert raw.json("PATCH", target, rename, cookie, *own_page).status == 404  # it got in; there is no such session
    for site in ("cross-site", "same-site"):
        assert raw.ask("GET", "/api/status", cookie, ("Sec-Fetch-Site", site)).status == 403
        assert raw.ask("GET", "/api/events", cookie, ("Sec-Fetch-Site", site)).status == 403
        assert raw.json("PATCH", target, rename, cookie, own_page[0], ("Sec-Fetch-Site", site)).status == 403
    for origin in (foreign, ("Origin", "null"), ("Origin", f"https://evil.example:{raw.port}")):
        assert raw.json("PATCH", target, rename, cookie, origin).status == 403
        assert raw.ask("GET", "/api/status", cookie, origin).status == 403
    assert raw.json("PATCH", target, rename, cookie).status == 403  # it must say where it comes from
    assert raw.ask("POST", "/api/pairing", cookie, *own_page).status == 403  # the token itself is needed
    assert raw.json("POST", "/api/token/rotate", {}, cookie, *own_page).status == 403
    wrong = (cookie[0], cookie[1][:-1] + ("a" if cookie[1][-1] != "a" else "b"))
    assert raw.ask("GET", "/api/status", wrong).status == 401


def test_a_code_pairs_one_browser_once(running: DaemonProcess) -> None:
    raw = raw_of(running)
    facts = json.loads(raw.ask("POST", "/api/pairing").body)
    code = {"code": facts["code"]}
    assert raw.json("POST", "/api/pair", code, ("Origin", "http://evil.example"), token=False).status == 403
    assert raw.json("POST", "/api/pair", code, host="evil.example", token=False).status == 421
    assert raw.json("POST", "/api/pair", code, *own(raw), token=False).status == 200
    assert raw.json("POST", "/api/pair", code, *own(raw), token=False).code == "invalid_pairing_code"
    assert facts["link"].endswith(f"/#pair={facts['code']}") and "?" not in facts["link"]
    log = (running.home / ".daemon/log/qworkspace.log").read_text(encoding="utf-8")
    assert facts["code"] not in log and facts["code"] not in running.text()


def test_codes_do_not_pile_up_and_end_with_the_daemon(running: DaemonProcess) -> None:
    raw = raw_of(running)
    codes = [json.loads(raw.ask("POST", "/api/pairing").body)["code"] for _ in range(21)]
    assert raw.json("POST", "/api/pair", {"code": codes[0]}, *own(raw), token=False).status == 403
    running.restart()
    assert raw.json("POST", "/api/pair", {"code": codes[-1]}, *own(raw), token=False).status == 403


def test_a_new_token_closes_the_old_one_at_once(running: DaemonProcess) -> None:
    old, (cookie, _) = raw_of(running), paired(running)
    rotated = old.json("POST", "/api/token/rotate", {})
    assert rotated.status == 200 and running.token != old.token and running.token not in rotated.text
    assert old.ask("GET", "/api/status").status == 401
    assert old.ask("GET", "/api/status", cookie, token=False).status == 200
    new = raw_of(running)
    assert new.json("POST", "/api/token/rotate", {"revoke_browsers": True}).status == 200
    newest = raw_of(running)
    assert newest.ask("GET", "/api/status", cookie, token=False).status == 401
    assert newest.ask("GET", "/api/status").status == 200
    assert [token for token in (old.token, new.token, newest.token) if token in running.said()] == []


@pytest.mark.parametrize("way", ["token", "cookie"])
def test_streams_end_with_the_token_or_the_browser(running: DaemonProcess, way: str) -> None:
    raw, (cookie, answer) = raw_of(running), paired(running)
    host = ("Host", f"127.0.0.1:{raw.port}")
    proof = cookie if way == "cookie" else ("Authorization", f"Bearer {raw.token}")
    with closing(raw.connect()) as stream:
        stream.sendall(head("GET", "/api/events", [host, proof]))
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        if way == "cookie":
            browser = json.loads(answer.body)["id"]
            assert raw.ask("DELETE", f"/api/browsers/{browser}").status == 204
        else:
            assert raw.json("POST", "/api/token/rotate", {}).status == 200
        while stream.recv(65536):  # to its end, or to the time limit of the socket, which raises
            pass


# sizes and shapes


@pytest.fixture
def raw(running: DaemonProcess) -> Iterator[Raw]:
    with running.unsurprised():
        yield raw_of(running)


def test_bodies_over_the_limit_are_refused_announced_chunked_and_slow(raw: Raw, running: DaemonProcess) -> None:
    kind, uploads = ("Content-Type", "application/json"), "/api/agents/default/uploads?name=big.bin"
    announced = [("Host", f"127.0.0.1:{raw.port}"), kind, ("Authorization", f"Bearer {raw.token}")]
    huge = [*announced, ("Content-Length", "999999999999")]
    assert raw.send(head("POST", CHAT, huge)).status == 413  # before a byte of it was sent
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    for target in (CHAT, uploads):
        begin = head("POST", target, [*announced, ("Transfer-Encoding", "chunked")])
        assert raw.send(begin, *[chunk] * 12).status == 413, target
    begin = head("POST", uploads, [*announced, ("Transfer-Encoding", "chunked")])
    with closing(raw.connect()) as slow:
        slow.sendall(begin + b"5\r\nhello")
        assert running.chat("meanwhile", session="s2")["status"] == "completed"
    uploaded = uploaded_files(running)
    assert not [name for name in uploaded if name.endswith(".part") or "big" in name], uploaded


def uploaded_files(daemon: DaemonProcess) -> list[str]:
    """What was uploaded, once the daemon has noticed who left."""
    folder, end = daemon.home / "workspaces/default/files/uploads", time.monotonic() + 10
    while list(folder.glob(".*.part")) and time.monotonic() < end:
        time.sleep(0.05)
    return [path.name for path in folder.iterdir()]


def test_who_is_not_known_cannot_make_the_daemon_hold_much(raw: Raw, running: DaemonProcess) -> None:
    body = json.dumps({"code": "x" * 200_000}).encode()
    kind = ("Content-Type", "application/json")
    assert raw.ask("POST", "/api/pair", kind, body=body, token=False).status == 413
    assert raw.json("POST", "/api/pair", {"code": "wrong"}, token=False).status == 403


def test_floods_of_headers_are_refused(raw: Raw, running: DaemonProcess) -> None:
    many = [(f"X-{number}", "x" * 500) for number in range(2000)]
    assert raw.ask("GET", "/api/status", *many).status in (400, 431, 0)
    assert raw.ask("GET", "/api/status", ("X-Long", "x" * 200_000)).status in (400, 431, 0)
    assert raw.ask("GET", "/" + "x" * 200_000).status in (400, 414, 431, 0)
    with closing(raw.connect()) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert running.request("GET", "/api/status").status_code == 200


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /api/pair HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/pair HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"POST /api/pair HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"\0" * 100_000,
    ],
)
def test_what_is_no_http_is_refused_without_ado(raw: Raw, running: DaemonProcess, bytes_sent: bytes) -> None:
    assert raw.send(bytes_sent).status in (0, 400, 401, 421, 431, 501)


def test_garbage_after_a_refusal_is_no_surprise(raw: Raw, running: DaemonProcess) -> None:
    host = f"127.0.0.1:{raw.port}"
    with closing(raw.connect()) as connection:
        connection.sendall(head("POST", "/api/status", [("Host", host), ("Transfer-Encoding", "chunked")]))
        assert read_answer(connection).status == 401
        connection.sendall(b"this is no chunk\r\n")
        assert read_answer(connection).status in (0, 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "a/b"])
def test_json_addresses_take_nothing_else(raw: Raw, running: DaemonProcess, kind: str) -> None:
    headers = [("Content-Type", kind)] if kind else []
    for target in (CHAT, "/console/chat", "/v1/chat/completions", "/api/agents", "/api/pair", "/api/token/rotate"):
        answer = raw.ask("POST", target, *headers, body=b'{"message": "smuggled"}')
        assert answer.status == 415, (target, answer.text)
    assert running.get("/api/agents/default/sessions?query=smuggled")["sessions"] == []


# secrets


@pytest.fixture
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


LITERAL = "literal-canary-of-a-bot-token-1234"
IN_A_WRONG_PLACE = "literal-canary-in-a-wrong-place-99"
AGENT = {
    "channels": {"chat": {"enabled": False, "bot_token": LITERAL, "nested": [{"password": LITERAL}]}},
    "env": {"WHATEVER": LITERAL},
}


@pytest.fixture
def secretive(tmp_path: Path, models: ModelProcess, make_daemon: MakeDaemon) -> tuple[GuardedHome, DaemonProcess]:
    """A home whose configuration holds secrets, literal and by name."""
    home = guarded_home(tmp_path / "home", models=models.url, agent=AGENT)
    return home, make_daemon(home.path).start()


def test_no_answer_event_or_line_of_the_log_shows_a_secret(
    secretive: tuple[GuardedHome, DaemonProcess], models: ModelProcess
) -> None:
    home, daemon = secretive
    raw = raw_of(daemon)
    authorization = ("Authorization", f"Bearer {raw.token}")
    with closing(raw.connect()) as following:
        following.sendall(head("GET", "/api/events", [("Host", f"127.0.0.1:{raw.port}"), authorization]))
        models.script([{"status": 401, "message": f"Incorrect API key provided: {KEY}."}])
        failed = daemon.chat("hello")
        models.script(None)
        config = json.loads(raw.ask("GET", "/api/agents/default/config").body)
        written = raw.json("PUT", "/api/agents/default/config", config | {"description": "changed"})
        wrong_key = raw.json("PATCH", "/api/agents/default/config", {"channels": [{"bot_token": IN_A_WRONG_PLACE}]})
        changed = config | {"channels": {"chat": {"bot_token": IN_A_WRONG_PLACE}}}
        planned = raw.json("POST", "/api/agents/default/plan", changed)
        kind = ("Content-Type", "application/json")
        broken = f'{{"channels": {{"chat": {{"bot_token": "{IN_A_WRONG_PLACE}" "x"}}}}}}'.encode()
        unplanned = raw.ask("POST", "/api/agents/default/plan", kind, body=broken)
        assert raw.ask("POST", "/api/agents/default/reload").status == 200
        _break_the_configuration(home.path)
        _await_problem(daemon)
        shown = _everything(raw, failed["turn_id"])
        heard = _heard(following, "problem.opened")
    assert failed["status"] == "failed" and "key" in failed["error"]["message"]
    assert planned.status == 200 and unplanned.status == 422
    assert written.status == 200 and wrong_key.status >= 400
    stored = json.loads((home.workspace / "agent.json").read_text(encoding="utf-8"))
    assert stored["channels"]["chat"]["bot_token"] == LITERAL  # the mask that came back stands for what was there
    shown |= {"events": heard, "config": json.dumps(config), "written": written.text}
    shown |= {"failed": json.dumps(failed), "output": daemon.text(), "wrong key": wrong_key.text}
    shown |= {"planned": planned.text, "unplanned": unplanned.text}
    log = daemon.home / ".daemon/log/qworkspace.log"
    shown["log"] = log.read_text(encoding="utf-8")
    telling = {name: home.told(text) for name, text in shown.items() if home.told(text)}
    assert telling == {}
    assert [name for name, text in shown.items() if LITERAL in text or IN_A_WRONG_PLACE in text] == []


def _break_the_configuration(home: Path) -> None:
    """Secrets where none belong: the error names the place, not what stands there."""
    config = json.loads((home / "config.json").read_text(encoding="utf-8"))
    config["providers"]["scripted"]["api_key"] = {"value": IN_A_WRONG_PLACE}
    write_json(home / "config.json", config)


def _await_problem(daemon: DaemonProcess) -> None:
    end = time.monotonic() + 20
    while not daemon.get("/api/status")["problems"] and time.monotonic() < end:
        time.sleep(0.1)
    assert daemon.get("/api/status")["problems"]


def _everything(raw: Raw, turn_id: str) -> dict[str, str]:
    """Every answer to a GET that the daemon describes, by address."""
    named = {"agent_id": "default", "session_id": "s1", "turn_id": turn_id}
    found = {a: raw.ask(m, a) for m, a in operations(raw, **named) if m == "GET"}
    assert found["/api/agents/default/config"].status == 200
    return {address: answer.text for address, answer in found.items()}


def _heard(connection: Any, until: str) -> str:
    """What the event stream said, up to an event of that type."""
    text = b""
    while until.encode() not in text:
        piece = connection.recv(65536)
        assert piece, text
        text += piece
    return bytes(text).decode("utf-8", "replace")
