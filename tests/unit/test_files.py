"""Paths that stay inside, writes that are whole, documents with versions."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qworkspace.base.files import JsonDocument, Root, make_directory, read_text, storage_error, write_atomic
from qworkspace.errors import InvalidConfig, InvalidInput, InvalidPath, NotFound, StorageError, VersionMismatch

# fmt: off
NASTY = st.sampled_from([
    "..", ".", "", "a", "in", "out", "loop", "up", "a b", "...", "..\u2215", "\uff0e\uff0e", "C:", "con", "nul.txt",
    "\\", "a\\..\\b", "\0", "a\0b", "%2e%2e", "é", "e\u0301", "\u202egpj", "\ud800", "x" * 256, "file", "$HOME",
])
# fmt: on
PATHS = st.one_of(st.lists(NASTY, max_size=6).map("/".join), st.text(max_size=60))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A root with symlinks inside, out of it, and in a circle; a secret beside it."""
    with tempfile.TemporaryDirectory() as name:
        outside = Path(name).resolve()
        (outside / "secret").write_text("secret")
        root = outside / "root"
        (root / "a").mkdir(parents=True)
        (root / "file").write_text("text")
        (root / "in").symlink_to("a")
        (root / "out").symlink_to(outside)
        (root / "up").symlink_to("..")
        (root / "loop").symlink_to("loop")
        (root / "dangling").symlink_to(outside / "not-there")
        yield root


@given(PATHS)
@example("out/secret")
@example("in/../../secret")
@example("/etc/passwd")
@example("a/" + "b/" * 600)
def test_whatever_the_name_the_path_lies_inside(place: Path, name: str) -> None:
    root = Root(place)
    try:
        path = root.resolve(name)
    except InvalidPath:
        return
    assert path == root.path or root.path in path.parents
    assert Path(os.path.realpath(path)) == path
    assert ".." not in path.parts
    assert root.resolve(root.relative(path)) == path


@given(PATHS)
def test_a_link_itself_lies_inside_too(place: Path, name: str) -> None:
    root = Root(place)
    try:
        path = root.resolve(name, follow=False)
    except InvalidPath:
        return
    assert path == root.path or Path(os.path.realpath(path.parent)).is_relative_to(root.path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("/etc/passwd", "relative"),
        ("//server/share", "relative"),
        ("..", r"'\.\.'"),
        ("a/../b", r"'\.\.'"),
        ("a\\b", "use '/'"),
        ("C:/x", "drive"),
        ("c:x", "drive"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("a\u2028b", "control"),
        ("safe\u202etxt.exe", "control"),
        ("a.", "dot or a space"),
        ("a /b", "dot or a space"),
        ("...", "dot or a space"),
        ("CON", "device"),
        ("nul.txt", "device"),
        ("a/Com1.log", "device"),
        ("x" * 256, "255"),
        ("é" * 128, "255"),
        ("a/" * 600, "1024"),
        ("\ud800", "UTF-8"),
        ("out/secret", "symbolic link"),
        ("dangling", "symbolic link"),
        ("loop", "symbolic link"),
        ("loop/x", "symbolic link"),
    ],
)
def test_what_is_refused_and_why(place: Path, name: str, reason: str) -> None:
    with pytest.raises(InvalidPath, match=reason):
        Root(place).resolve(name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (".", "."),
        ("./file", "file"),
        ("a//b/./c", "a/b/c"),
        ("in/new.md", "a/new.md"),
        ("up/root/file", "file"),  # where it ends counts
        ("console.md", "console.md"),
        (".hidden", ".hidden"),
        ("日本語.md", "日本語.md"),
        ("a/👩‍💻.md", "a/👩‍💻.md"),
        ("~/x", "~/x"),
        ("not/yet/there", "not/yet/there"),
    ],
)
def test_what_is_accepted_and_where_it_leads(place: Path, name: str, found: str) -> None:
    root = Root(place)
    assert root.relative(root.resolve(PurePosixPath(name))) == found
    assert root.relative(root.resolve(name)) == found


def test_a_link_can_be_looked_at_without_being_followed(place: Path) -> None:
    root = Root(place)
    assert root.resolve("out", follow=False) == place / "out"
    with pytest.raises(InvalidPath):
        root.resolve("out/secret", follow=False)


def test_a_root_behind_a_link_is_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    root = Root(tmp_path / "link")
    assert root.resolve("x") == tmp_path / "real" / "x"
    assert root.relative(tmp_path / "link" / "x") == "x"
    with pytest.raises(InvalidPath, match="is outside of"):
        root.relative(tmp_path / "other")


# writing and reading


def test_a_write_replaces_the_whole_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("a long old content")
    path.chmod(0o640)
    write_atomic(path, "new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_atomic(path, b"\xff\x00", mode=0o600)
    assert path.read_bytes() == b"\xff\x00"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_longest_possible_name_can_be_written(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("x" * 255), "content")
    assert (tmp_path / ("x" * 255)).read_text() == "content"


def test_a_link_is_replaced_and_what_it_led_to_is_untouched(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to("target")
    os.link(tmp_path / "target", tmp_path / "hard")
    write_atomic(tmp_path / "link", "new")
    write_atomic(tmp_path / "hard", "new")
    assert (tmp_path / "target").read_text() == "precious"
    assert not (tmp_path / "link").is_symlink()


def test_lone_surrogates_become_replacement_characters(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", "a\ud83db \ud83d\ude00")
    assert read_text(tmp_path / "f") == "a\ufffdb 😀"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_disk_that_refuses_is_explained_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match=r"cannot write .*/f'") as caught:
            write_atomic(path, "new")
    assert caught.value.details["path"] == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert path.read_text() == "old"
    write_atomic(path, "new")
    assert path.read_text() == "new"


def test_a_missing_directory_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the directory is gone"):
        write_atomic(tmp_path / "gone" / "f", "x")
    assert "disk is full" in storage_error(OSError(errno.ENOSPC, "x"), tmp_path).message


def test_new_directories_are_private(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        make_directory(tmp_path / "file" / "x")


def test_bom_and_crlf_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_text(tmp_path / "f") == "one\ntwo\n"


def test_text_that_is_not_utf8_is_located(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthr\xe9e")
    with pytest.raises(InvalidInput, match="byte 0xe9 in line 3") as caught:
        read_text(tmp_path / "f")
    assert caught.value.code == "not_utf8"


# documents


def _document(path: Path, **more: Any) -> JsonDocument[dict[str, Any]]:
    return JsonDocument(path, parse=dict, dump=dict, **more)


def test_a_document_is_saved_against_the_version_it_was_read_at(tmp_path: Path) -> None:
    document = _document(tmp_path / "d.json", default=dict)
    value, version = document.load()
    assert (value, version) == ({}, "")
    version = document.save({"a": "ü"}, version)
    assert document.load() == ({"a": "ü"}, version)
    assert "ü" in (tmp_path / "d.json").read_text(encoding="utf-8")


def test_a_stale_version_is_refused_and_the_current_one_named(tmp_path: Path) -> None:
    document = _document(tmp_path / "d.json", default=dict)
    document.save({"mine": 1}, "")
    _, stale = document.load()
    (tmp_path / "d.json").write_text('{"theirs": 2}')
    with pytest.raises(VersionMismatch, match=r"d\.json has changed") as caught:
        document.save({"mine": 2}, stale)
    assert document.load() == ({"theirs": 2}, caught.value.details["current"])
    document.save({"mine": 2}, caught.value.details["current"])
    with pytest.raises(VersionMismatch):
        document.save({"mine": 3}, "")


def test_a_file_that_does_not_parse_is_located_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text('{\n  "a": 1,\n}')
    document = _document(path, default=dict)
    with pytest.raises(InvalidConfig) as caught:
        document.load()
    assert (caught.value.line, caught.value.column) == (3, 1)
    with pytest.raises(InvalidConfig):
        document.save({}, None)
    assert path.read_text() == '{\n  "a": 1,\n}'
    path.write_text("[" * 200_000)
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        document.load()


def test_a_missing_document_without_a_default_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no file 'd\.json'"):
        _document(tmp_path / "d.json").load()


def test_writers_that_agree_on_versions_lose_nothing(tmp_path: Path) -> None:
    document = _document(tmp_path / "d.json", default=lambda: {"n": 0}, mode=0o600)

    def count() -> None:
        while True:
            value, version = document.load()
            try:
                document.save({"n": value["n"] + 1}, version)
            except VersionMismatch:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(count) for _ in range(40)]:
            done.result()
    assert document.load()[0] == {"n": 40}
    assert stat.S_IMODE((tmp_path / "d.json").stat().st_mode) == 0o600


def test_a_link_that_goes_away_while_it_is_followed_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = Root(tmp_path)
    (root.path / "door").symlink_to("../elsewhere")
    real_readlink = os.readlink

    def vanishing(path: str) -> str:
        Path(path).unlink()
        return real_readlink(path)

    monkeypatch.setattr(os, "readlink", vanishing)
    assert root.resolve("door/a.txt") == root.path / "door/a.txt"


def test_a_link_that_never_holds_still_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = Root(tmp_path)
    (root.path / "door").symlink_to("files")

    def vanishing(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", vanishing)
    with pytest.raises(InvalidPath, match="keeps being changed"):
        root.resolve("door/a.txt")
