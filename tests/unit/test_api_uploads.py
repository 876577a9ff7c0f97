"""Files for messages: kept whole under a name that is free, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.api.guard import Access
from tests.support.api import ApiBench

ADDRESS = "/api/agents/default/uploads"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        yield bench


def kept(bench: ApiBench) -> dict[str, bytes]:
    folder = bench.home / "workspaces" / "default" / "files" / "uploads"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


async def test_a_form_with_files(bench: ApiBench) -> None:
    large = bytes(range(256)) * 4000
    files = [
        ("file", ("notes.txt", b"hello", "text/plain")),
        ("file", ("photo.png", large, "image/png")),
        ("other", (None, b"just a field")),
    ]
    answer = await bench.ask("POST", ADDRESS, files=files)
    assert answer.status_code == 201
    assert answer.json()["files"] == [
        {"path": "files/uploads/notes.txt", "name": "notes.txt", "media_type": "text/plain", "size": 5},
        {"path": "files/uploads/photo.png", "name": "photo.png", "media_type": "image/png", "size": len(large)},
    ]
    assert kept(bench) == {"notes.txt": b"hello", "photo.png": large}


async def test_an_upload_is_a_part_of_a_message(bench: ApiBench) -> None:
    path = (await bench.ask("POST", f"{ADDRESS}?name=a.txt", content=b"x")).json()["files"][0]["path"]
    body = {"message": [{"type": "file", "path": path}], "stream": False}
    assert (await bench.ask("POST", "/console/chat", json=body)).json()["status"] == "completed"


async def test_the_body_itself_as_a_file(bench: ApiBench) -> None:
    answer = await bench.ask("POST", ADDRESS, content=b"x", headers={"X-File-Name": "%E4%BD%A0.md"})
    assert answer.json()["files"][0]["name"] == "你.md"
    assert answer.json()["files"][0]["media_type"] == "text/markdown"
    assert (await bench.ask("POST", ADDRESS, content=b"x")).json()["error"]["details"]["field"] == "name"


async def test_nothing_is_replaced_even_by_uploads_at_once(bench: ApiBench) -> None:
    await asyncio.gather(*(bench.ask("POST", f"{ADDRESS}?name=a.txt", content=str(n).encode()) for n in range(4)))
    found = kept(bench)
    assert sorted(found) == ["a-2.txt", "a-3.txt", "a-4.txt", "a.txt"]
    assert sorted(found.values()) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["..", ".", "", "/", ".env", "a\x00b", "x" * 300, "con", "a/..", "a\nb"])
async def test_names_that_are_none_are_refused(bench: ApiBench, name: str) -> None:
    if name.isprintable():  # a client writes other characters as %00
        form = await bench.ask("POST", ADDRESS, files=[("file", (name, b"x"))])
        assert form.status_code == 400
    assert (await bench.ask("POST", ADDRESS, content=b"x", params={"name": name})).status_code == 400
    assert kept(bench) == {}


@pytest.mark.parametrize("name", ["../../agent.json", "/etc/passwd", "..\\..\\agent.json", "C:\\x\\agent.json"])
async def test_only_the_last_part_of_a_name_counts(bench: ApiBench, name: str) -> None:
    before = (bench.home / "workspaces" / "default" / "agent.json").read_bytes()
    answer = await bench.ask("POST", ADDRESS, content=b"evil", params={"name": name})
    assert answer.json()["files"][0]["path"].startswith("files/uploads/")
    assert (bench.home / "workspaces" / "default" / "agent.json").read_bytes() == before


async def test_a_folder_that_leads_out_is_not_written_to(bench: ApiBench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (bench.home / "workspaces" / "default" / "files").symlink_to(outside)
    answer = await bench.ask("POST", f"{ADDRESS}?name=a.txt", content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_path")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=b", b"nonsense"),
        ("multipart/form-data; boundary=b", b'--b\r\ncontent-disposition: form-data; filename="a"\r\n\r\ncut'),
        ("multipart/form-data", b"--b--"),
        ("multipart/form-data; boundary=b", b"--b--\r\n"),
        ("multipart/form-data; boundary=" + "b" * 5000, b"x"),
    ],
)
async def test_broken_forms_leave_nothing_behind(bench: ApiBench, kind: str, body: bytes) -> None:
    answer = await bench.ask("POST", ADDRESS, content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert kept(bench) == {}


async def test_files_over_the_limit_leave_nothing_behind(bench: ApiBench) -> None:
    bench.api.access = Access.of("127.0.0.1", max_body=1_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000

    answer = await bench.ask("POST", f"{ADDRESS}?name=a.txt", content=pieces())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert kept(bench) == {}
