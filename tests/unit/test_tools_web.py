"""`web_fetch`: public addresses only, checked where the connection goes, and readable text."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.chat.tools import web
from qworkspace.chat.tools.addresses import is_public
from qworkspace.config.models import AgentConfig
from qworkspace.plugins.extensions import ToolContext
from tests.support.tools import call, make_workspace, tool_context

Reply = Callable[[str, str], bytes]


def reply(body: bytes, kind: str = "text/plain", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"Content-Type: {kind}"] * bool(kind) + [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def server(answer: Reply, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, list[str]]]:
    """A web server whose answer is made from path and Host header; its port, and the requests that it got."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        seen.append(head)
        name = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
        try:
            writer.write(answer(head.split()[1], name))
            await writer.drain()
        except ConnectionError:
            pass  # the reader has seen enough
        finally:
            writer.close()

    running = await asyncio.start_server(serve, host, 0)
    async with running:
        yield running.sockets[0].getsockname()[1], seen


def context_with(tmp_path: Path, **settings: Any) -> ToolContext:
    config = AgentConfig.model_validate({"tools": {"web_fetch": settings}} if settings else {})
    return tool_context(make_workspace(tmp_path / "home"), config)


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return context_with(tmp_path, allow_private=True)


async def test_a_page_is_read_as_text_with_its_address(context: ToolContext):
    page = b'<html><head><title>Hi</title></head><body><p>Hello <a href="/x">there</a></p></body></html>'
    async with server(lambda path, host: reply(page, "text/html; charset=utf-8")) as (port, seen):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/a?b=1#part")
    assert output.outcome == "ok"
    assert output.text == (
        f"http://localhost:{port}/a?b=1 (HTTP 200, text/html, {len(page)} bytes)\n\n"
        f"# Hi\n\nHello [there](http://localhost:{port}/x)"
    )
    assert seen[0].startswith("GET /a?b=1 HTTP/1.1") and f"host: localhost:{port}" in seen[0].lower()


async def test_private_addresses_are_refused_before_anything_is_sent(tmp_path: Path):
    context = context_with(tmp_path)
    async with server(lambda path, host: reply(b"inside")) as (port, seen):
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]"):
            output = await call(context, "web_fetch", url=f"http://{host}:{port}/")
            assert output.outcome in ("denied", "error"), host
            assert "inside" not in output.text
    assert seen == []
    denied = await call(context, "web_fetch", url="http://169.254.169.254/latest/meta-data/")
    assert denied.outcome == "denied" and "allow_private" in denied.text


async def test_the_address_that_was_checked_is_the_one_connected_to(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
):
    """A name server that gives another address at each question gets one question per hop."""
    answers = iter(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
    asked: list[Any] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "rebind.localhost":
            asked.append(host)
            host = next(answers)
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    async with server(lambda path, host: reply(b"first")) as (port, seen):
        output = await call(context, "web_fetch", url=f"http://rebind.localhost:{port}/")
    assert output.text.endswith("first") and asked == ["rebind.localhost"]
    assert f"host: rebind.localhost:{port}" in seen[0].lower()


async def test_a_redirect_into_a_private_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from qworkspace.chat.tools import fetching

    monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.1")
    async with server(lambda path, host: reply(b"secret"), "127.0.0.2") as (inside, reached):
        location = f"http://127.0.0.2:{inside}/"
        async with server(lambda path, host: reply(b"", status="302 Found", Location=location)) as (port, _):
            output = await call(context_with(tmp_path), "web_fetch", url=f"http://127.0.0.1:{port}/")
    assert output.outcome == "denied" and reached == []


async def test_redirects_are_followed_and_told(context: ToolContext):
    def answer(path: str, host: str) -> bytes:
        step = int(path.strip("/") or 0)
        return reply(b"arrived") if step == 3 else reply(b"", status="301 Moved", Location=f"/{step + 1}")

    async with server(answer) as (port, seen):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
    assert output.text.startswith(f"http://localhost:{port}/3 (HTTP 200") and output.text.endswith("arrived")
    assert len(seen) == 4


async def test_redirects_without_an_end_are_left(context: ToolContext):
    async with server(lambda path, host: reply(b"", status="302 Found", Location=path + "x")) as (port, seen):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
    assert output.outcome == "error" and "redirects" in output.text and len(seen) == 6


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://example.org/", "http://user:pw@localhost/", "http://[x/", "//"]
)
async def test_redirects_to_what_is_no_web_address_are_refused(context: ToolContext, location: str):
    async with server(lambda path, host: reply(b"", status="302 Found", Location=location)) as (port, _):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
    assert output.outcome == "error" and "root:" not in output.text


async def test_a_redirect_does_not_get_around_the_policy(tmp_path: Path):
    async with server(lambda path, host: reply(b"evil")) as (evil, reached):
        location = f"http://127.0.0.1:{evil}/"
        async with server(lambda path, host: reply(b"", status="302 Found", Location=location)) as (port, _):
            for decision, outcome in (("deny", "denied"), ("ask", "ok")):
                policy = [{"pattern": "http://127.0.0.1*", "decision": decision}]
                context = context_with(tmp_path / decision, allow_private=True, policy=policy)
                output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
                assert output.outcome == outcome and location in output.text
    assert reached == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/", "http://", "javascript:x", "http://u:p@localhost/", "x", "http://a b/"]
)
async def test_other_addresses_are_refused(context: ToolContext, url: str):
    assert (await call(context, "web_fetch", url=url)).outcome == "error"


async def test_a_large_answer_is_cut_and_told(context: ToolContext, monkeypatch: pytest.MonkeyPatch):
    from qworkspace.chat.tools import fetching

    monkeypatch.setattr(fetching, "BODY_BYTES", 1_000)
    async with server(lambda path, host: reply(b"x" * 100_000)) as (port, _):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
    assert output.text.endswith("x\n[only the first 1,000 bytes were read]") and output.text.count("x") > 999


async def test_a_packed_answer_is_unpacked_and_a_bomb_is_not(context: ToolContext):
    bomb = await asyncio.to_thread(gzip.compress, b"a" * 50_000_000, 1)
    packed = {
        "/gz": (gzip.compress(b"hello"), "gzip"),
        "/z": (zlib.compress(b"hello"), "deflate"),
        "/bomb": (bomb, "gzip"),
    }
    packed |= {"/bad": (b"no gzip", "gzip"), "/br": (b"x", "br")}

    def answer(path: str, host: str) -> bytes:
        return reply(packed[path][0], Content_Encoding=packed[path][1])

    async with server(answer) as (port, _):
        outputs = {path: await call(context, "web_fetch", url=f"http://localhost:{port}{path}") for path in packed}
    assert outputs["/gz"].text.endswith("\n\nhello") and outputs["/z"].text.endswith("\n\nhello")
    assert "[only the first 2,000,000 bytes were read]" in outputs["/bomb"].text
    assert len(outputs["/bomb"].text) < 2_001_000
    assert outputs["/bad"].outcome == outputs["/br"].outcome == "error"


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("grün".encode("latin-1"), "text/plain; charset=ISO-8859-1", "grün"),
        ("<meta charset='windows-1251'><p>мир".encode("cp1251"), "text/html", "мир"),
        ("日本".encode("shift_jis"), "text/plain; charset=shift_jis", "日本"),
        ("é".encode(), "text/plain; charset=unicode_escape", "é"),
        ("é".encode(), "text/plain; charset=utf-nonsense", "é"),
        (b'{"a": 1}', "application/vnd.api+json", '{"a": 1}'),
        (b"<html><p>no type</p>", "", "no type"),
        (b"", "text/plain", "[no text]"),
        (b"\x1b[31mred\x1b[0m\xff", "text/plain", "red\ufffd"),
    ],
)
async def test_text_in_many_forms(context: ToolContext, body: bytes, kind: str, text: str):
    async with server(lambda path, host: reply(body, kind)) as (port, _):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
    assert output.text.split("\n\n", 1)[1] == text


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"\x89PNG\r\n\x1a\n", "image/png"), (b"%PDF-1.7", "text/plain"), (b"a\0b", "text/html"), (b"x", "video/mp4")],
)
async def test_what_is_no_text_is_refused_with_its_type(context: ToolContext, body: bytes, kind: str):
    async with server(lambda path, host: reply(body, kind)) as (port, _):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/a")
    assert output.outcome == "error" and "is no text" in output.text and f"{len(body)} bytes" in output.text


async def test_an_error_page_is_an_error_with_its_text(context: ToolContext):
    async with server(lambda path, host: reply(b"<p>gone</p>", "text/html", "404 Not Found")) as (port, _):
        output = await call(context, "web_fetch", url=f"http://localhost:{port}/")
    assert output.outcome == "error" and "HTTP 404" in output.text and output.text.endswith("gone")


async def test_a_server_that_does_not_answer_takes_no_longer_than_the_limit(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(web, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        output = await call(context, "web_fetch", url=f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert output.outcome == "error" and "0.5 s" in output.text


async def test_hosts_that_are_not_there_are_an_answer(context: ToolContext):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert "cannot be reached" in (await call(context, "web_fetch", url=f"http://127.0.0.1:{port}/")).text
    assert "no host" in (await call(context, "web_fetch", url="http://no-such-host.example/")).text
    assert (await call(context, "web_fetch", url=f"http://{'a' * 70}.example/")).outcome == "error"


PRIVATE = [
    *[
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "0.0.0.0",
    ],
    *[
        "255.255.255.255",
        "224.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "240.0.0.1",
        "168.63.129.16",
        "::1",
        "::",
        "fe80::1%eth0",
    ],
    *["fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"],
    *["2002:c0a8:101::1", "2001:db8::1", "::7f00:1", "no address", "", "2001:0:7f00:1::1"],
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_addresses_that_are_public(address: str):
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_in_any_wrapping_is_judged_alike(address: Any):
    for form in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert is_public(form) == is_public(str(address))
