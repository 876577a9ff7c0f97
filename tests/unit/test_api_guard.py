"""Who is let in: by host, origin, token and cookie; what is too large; what every answer carries."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.api.guard import Access, host_name, is_own_origin
from tests.support.api import HOST, ApiBench

BODY = {"message": "hello", "stream": False}
OWN = f"http://{HOST}"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        yield bench


def code_of(answer: Any) -> str:
    return str(answer.json()["error"]["code"])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "0.0.0.0:8420", "localhost.evil.example", "", "["]
)
async def test_foreign_hosts_are_refused_everywhere(bench: ApiBench, host: str) -> None:
    for path in ("/api/status", "/healthz", "/", "/v1/models"):
        answer = await bench.ask("GET", path, headers={"host": host})
        assert (answer.status_code, code_of(answer)) == (421, "unknown_host")


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "127.0.0.1:9999", "[::1]:8420", "[::1]"])
async def test_loopback_names_with_any_port_are_known(bench: ApiBench, host: str) -> None:
    assert (await bench.ask("GET", "/api/status", headers={"host": host})).status_code == 200


def test_configured_names() -> None:
    access = Access.of("192.168.1.5", allowed_hosts=["Box.local", "tunnel.example:8443"])
    for host in ("192.168.1.5:8420", "box.local", "BOX.local:80", "tunnel.example:8443", "localhost:8420"):
        assert access.knows(host, "192.168.1.5"), host
    for host in ("tunnel.example", "tunnel.example:80", "192.168.1.6", "box.local.evil"):
        assert not access.knows(host, "192.168.1.5"), host


def test_a_daemon_on_all_addresses_knows_the_one_that_was_used() -> None:
    access = Access.of("0.0.0.0", auth="off")
    assert access.knows("192.168.1.5:8420", "192.168.1.5")
    assert not access.knows("192.168.1.6:8420", "192.168.1.5")
    assert not access.knows("0.0.0.0:8420", "192.168.1.5")
    assert not access.open, "auth off holds on the loopback only"
    assert Access.of("127.0.0.1", auth="off").open


FOREIGN = ["https://evil.example", "null", f"http://{HOST}.evil", "http://localhost:3000", "file://", "http://["]
KINDS = ["application/json", "text/plain", "multipart/form-data; boundary=x", ""]


@pytest.mark.parametrize("origin", FOREIGN)
async def test_foreign_origins_are_refused(bench: ApiBench, origin: str) -> None:
    for method, kind in itertools.product(("GET", "POST", "OPTIONS"), KINDS):
        headers = {"origin": origin, "content-type": kind}
        answer = await bench.ask(method, "/console/chat", content=b"{}", headers=headers)
        assert (answer.status_code, code_of(answer)) == (403, "foreign_origin"), (method, kind)
        assert "access-control-allow-origin" not in answer.headers


async def test_the_own_origin_is_welcome(bench: ApiBench) -> None:
    assert (await bench.ask("POST", "/console/chat", json=BODY, headers={"origin": OWN})).status_code == 200


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "key", "KEY", "%74oken"])
async def test_a_token_in_an_address_is_refused_and_not_logged(
    bench: ApiBench, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for query in (f"{name}=wrong", f"{name}={bench.token}"):
        answer = await bench.ask("GET", f"/api/status?{query}")
        assert (answer.status_code, code_of(answer)) == (400, "token_in_query")
        assert bench.token not in answer.text
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("httpx")]
    assert bench.token not in "".join(ours)


async def test_the_token_under_any_name_is_refused(bench: ApiBench) -> None:
    answer = await bench.ask("GET", f"/api/events?session={bench.token}")
    assert code_of(answer) == "token_in_query"
    assert (await bench.ask("GET", "/api/agents?cursor=default")).status_code == 200


PRIVATE = [
    ("GET", "/api/status"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/api/nowhere"),
    ("GET", "/v1/models"),
    ("POST", "/console/chat"),
    ("POST", "/api/pairing"),
    ("GET", "/api/app.js"),
    ("POST", "/"),
]


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", "Basic dG9rZW4=", b"Bearer \xe9"])
async def test_nothing_private_answers_without_the_token(bench: ApiBench, authorization: str | bytes | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    for method, path in PRIVATE:
        answer = await bench.ask(method, path, token=False, headers=headers, json=BODY)
        assert (answer.status_code, code_of(answer)) == (401, "unauthenticated"), path
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_refusals_are_logged_once_a_minute(bench: ApiBench, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        await bench.ask("GET", "/api/status", token=False)
    assert [record.message for record in caplog.records if "access token" in record.message] == [
        "1 request(s) without a valid access token refused"
    ]


async def test_public_addresses(bench: ApiBench) -> None:
    for path in ("/healthz", "/readyz", "/"):
        assert (await bench.ask("GET", path, token=False)).status_code == 200


async def test_without_authentication_on_the_loopback_foreign_pages_stay_out(bench: ApiBench) -> None:
    bench.api.access = Access.of("127.0.0.1", auth="off")
    assert (await bench.ask("GET", "/api/status", token=False)).status_code == 200
    foreign = await bench.ask(
        "POST", "/console/chat", token=False, json=BODY, headers={"origin": "https://evil.example"}
    )
    assert foreign.status_code == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=latin-1"]
)
async def test_json_addresses_take_json_only(bench: ApiBench, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = await bench.ask("POST", "/console/chat", content=b'{"message":"x"}', headers=headers)
    assert (answer.status_code, code_of(answer)) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"message": NaN}',
        b'\xff{"message":"x"}',
        b"[" * 5000,
        b'{"message":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
async def test_what_is_no_json_is_refused(bench: ApiBench, raw: bytes) -> None:
    answer = await bench.ask("POST", "/console/chat", content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, code_of(answer)) == (400, "invalid_json")


async def test_large_bodies_are_refused_announced_or_not(bench: ApiBench) -> None:
    bench.api.access = Access.of("127.0.0.1", max_body=10_000)
    whole = b'{"message":"' + b"x" * 20_000 + b'","stream":false}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 1000):
            yield whole[start : start + 1000]

    for content in (whole, pieces()):
        answer = await bench.ask("POST", "/console/chat", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, code_of(answer)) == (413, "too_large")
        assert answer.json()["error"]["details"]["limit"] == 10_000
    assert (await bench.ask("GET", "/api/agents/default/sessions")).json()["sessions"] == []


async def test_every_answer_has_its_security_headers(bench: ApiBench) -> None:
    for path, status in (("/healthz", 200), ("/api/status", 200), ("/api/none", 404), ("/", 200), ("/nothing.js", 404)):
        answer = await bench.ask("GET", path)
        assert answer.status_code == status
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == ("no-cache" if path == "/" else "no-store")


async def test_websockets_are_refused(bench: ApiBench) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await bench.app({"type": "websocket", "path": "/api/events", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_unexpected_errors_have_an_id_that_is_in_the_log(
    bench: ApiBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(bench.manager, "states", broken)
    answer = await bench.ask("GET", "/api/status")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "internal_error")
    assert "secret detail" not in answer.text
    assert "Traceback" not in answer.text
    assert error["details"]["id"] in error["message"]
    assert error["details"]["id"] in caplog.text


async def test_other_methods_are_told_what_is_possible(bench: ApiBench) -> None:
    answer = await bench.ask("DELETE", "/api/status")
    assert (answer.status_code, code_of(answer), answer.headers["allow"]) == (405, "method_not_allowed", "GET")
    assert (await bench.ask("HEAD", "/api/status")).status_code == 200
    assert (await bench.ask("HEAD", "/api/events")).status_code == 405


async def test_before_the_daemon_is_ready_only_health_answers(tmp_path: Path) -> None:
    bench = ApiBench(tmp_path / "home")
    health = await bench.ask("GET", "/healthz", token=False)
    assert (health.status_code, health.json()) == (200, {"status": "starting", "version": "1.2.3"})
    for path in ("/readyz", "/api/status", "/v1/models"):
        early = await bench.ask("GET", path)
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) >= 1
    assert code_of(await bench.ask("GET", "/api/status")) == "unavailable"
    assert (await bench.ask("GET", "/healthz", headers={"host": "evil.example"})).status_code == 421
    async with bench:
        assert (await bench.ask("GET", "/readyz")).json() == {"status": "ready", "version": "1.2.3", "degraded": []}
        bench.api.close()
        assert (await bench.ask("GET", "/readyz")).status_code == 503


@given(st.text(max_size=40))
def test_a_host_is_parsed_or_refused(text: str) -> None:
    name = host_name(text)
    assert name is None or (name != "" and name == name.lower())


@given(st.text(max_size=60), st.sampled_from(["127.0.0.1:8420", "localhost", "[::1]:8420"]))
def test_only_one_origin_is_ones_own(text: str, host: str) -> None:
    assert not is_own_origin(text, host) or text.lower().partition("://")[2].startswith(host.partition(":8420")[0])
    assert is_own_origin(f"http://{host}", host)
    assert not is_own_origin(f"http://{host}@evil.example", host)
    assert not is_own_origin(f"http://{host}/x", host)
