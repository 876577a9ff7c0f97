"""A note's bytes on the disk: read with limits, appended in one write, exchanged so that nothing in between is lost."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qworkspace.base.files import make_directory, storage_error, storing, sync_directory
from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidPath, StorageError, TooLarge
from qworkspace.memory.notes import LARGEST

_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_NOT_HERE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a note's bytes are made of its text: a byte order mark, CRLF at each line's end, bytes that are no UTF-8."""

    bom: bool = False
    crlf: bool = False
    broken: bool = False

    def encode(self, text: str) -> bytes:
        if self.crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        data = text.encode("utf-8", "surrogateescape") if self.broken and _kept(text) else clean_text(text).encode()
        return _BOM + data if self.bom else data


def decode(data: bytes) -> tuple[str, Layout]:
    """The text, which `Layout.encode` turns into the very same bytes again."""
    bom = data.startswith(_BOM)
    body = data[len(_BOM) :] if bom else data
    crlf = body.count(b"\r\n") == body.count(b"\n") > 0
    text = body.decode("utf-8", "surrogateescape")
    broken = not _plain(text)
    return (text.replace("\r\n", "\n") if crlf else text), Layout(bom, crlf, broken)


def read_note(path: Path) -> bytes | None:
    """All bytes; None when there is no such file. `TooLarge`, `InvalidPath` when it is no regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN | _BINARY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot read {str(path)!r}: {error.strerror}", path=str(path)) from error
    try:
        return read_all(descriptor, path)
    finally:
        os.close(descriptor)


def read_all(descriptor: int, path: Path) -> bytes:
    """The bytes of an open note from its beginning on."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidPath(f"{path.name!r} is no regular file", path=str(path))
    expect_size(found.st_size, path.name)
    pieces, at = [], 0
    while piece := os.pread(descriptor, 1 << 20, at) if hasattr(os, "pread") else _read_at(descriptor, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def expect_size(size: int, name: str) -> None:
    """`TooLarge` when a note of so many bytes is too large."""
    if size > LARGEST:
        raise TooLarge(
            f"{name!r} would have {size / 1e6:.1f} MB; a note has at most {LARGEST // 1_000_000} MB: split it",
            size=size,
            limit=LARGEST,
        )


@dataclass(frozen=True, slots=True)
class Landed:
    """Where a block begins, and whether that is the beginning of a line, in the file that has the name."""

    start: int
    begins_line: bool
    in_place: bool


def append_block(path: Path, block: bytes) -> Landed:
    """Add `block` in one write, durably.

    `StorageError` when the disk refuses; then nothing is added.
    """
    make_directory(path.parent)
    with storing(path):
        new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _OPEN | _BINARY, 0o666)
        try:
            start = _append(descriptor, block, path)
            if new:
                sync_directory(path.parent)
            return Landed(start, _begins_line(descriptor, start, block), _is_at(descriptor, path))
        finally:
            os.close(descriptor)


def _append(descriptor: int, block: bytes, path: Path) -> int:
    written = 0
    try:
        written = os.write(descriptor, block)
        if written == len(block):
            os.fsync(descriptor)
            return os.lseek(descriptor, 0, os.SEEK_CUR) - written
        raise OSError(errno.ENOSPC, "no space left")
    except OSError as error:
        start = os.lseek(descriptor, 0, os.SEEK_CUR) - written
        if written and os.fstat(descriptor).st_size == start + written:
            os.ftruncate(descriptor, start)
        if start == 0 and os.fstat(descriptor).st_size == 0 and path.exists():
            path.unlink()  # it was made for this
        raise storage_error(error, path) from error


def _begins_line(descriptor: int, start: int, block: bytes) -> bool:
    return start == 0 or block.startswith((b"\n", b"\r\n")) or _read_at(descriptor, start - 1, 1) == b"\n"


def _is_at(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = path.stat()
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _read_at(descriptor: int, at: int, size: int = 1 << 20) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, at)
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.read(descriptor, size)


@dataclass(slots=True)
class Displaced:
    """What a change has taken from its place: its bytes then (None: there was nothing), and the open file.

    Whoever had that file open goes on writing to it: `descriptor` is for looking again. `aside` still names it.
    """

    data: bytes | None
    descriptor: int | None = None
    aside: Path | None = None

    def forget_name(self) -> None:
        if self.aside is not None:
            self.aside.unlink(missing_ok=True)
            self.aside = None

    def close(self) -> None:
        """Free the file. Idempotent."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def put(path: Path, expected: bytes | None, new: bytes | None, aside: Path) -> Displaced:
    """Put `new` (None: nothing) in the note's place in one step; what was there is in the answer, by its name `aside`.

    Where `expected` is None and something is there, it stays and is the answer. `StorageError` changes nothing.
    """
    with storing(path):
        make_directory(path.parent)
        if new is None:
            return _take_away(path, aside)
        try:
            _draft(aside, new, path)
            return _make(path, aside) if expected is None else _exchange(path, aside)
        except BaseException:
            if _content(aside) == new:  # else it is what was taken from there
                aside.unlink(missing_ok=True)
            raise


def _take_away(path: Path, aside: Path) -> Displaced:
    try:
        path.replace(aside)
    except FileNotFoundError:
        return Displaced(None)
    sync_directory(path.parent)
    return _opened(aside)


def _make(path: Path, aside: Path) -> Displaced:
    """The draft becomes the note unless somebody has made one meanwhile."""
    try:
        os.link(aside, path)
    except FileExistsError:
        aside.unlink()
        return Displaced(read_note(path))
    except OSError:
        if path.exists():
            raise
        aside.replace(path)  # no links on this file system
    aside.unlink(missing_ok=True)
    sync_directory(path.parent)
    return Displaced(None)


def _exchange(path: Path, aside: Path) -> Displaced:
    if not path.exists():
        aside.replace(path)
        sync_directory(path.parent)
        return Displaced(None)
    if not _swap(aside, path):
        held = _opened(path)
        aside.replace(path)
        sync_directory(path.parent)
        return held
    sync_directory(path.parent)
    return _opened(aside)


def _opened(path: Path) -> Displaced:
    descriptor = os.open(path, os.O_RDONLY | _OPEN | _BINARY)
    try:
        return Displaced(read_all(descriptor, path), descriptor, path if path.name.startswith(".") else None)
    except BaseException:
        os.close(descriptor)
        raise


def _draft(aside: Path, content: bytes, path: Path) -> None:
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        mode = None
    aside.unlink(missing_ok=True)
    descriptor = os.open(
        aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN | _BINARY, 0o666 if mode is None else 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            aside.chmod(mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _content(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None


def _swap(a: Path, b: Path) -> bool:
    """Exchange two files in one step; False where the system cannot."""
    call = _swapper()
    if call is None:
        return False
    code = call(os.fsencode(a), os.fsencode(b))
    if code == 0:
        return True
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(b))


def _swapper() -> Callable[[bytes, bytes], int] | None:
    """A function that gives an `errno`. Python has none of its own."""
    if not sys.platform.startswith(("linux", "darwin")):
        return None
    import ctypes  # heavy for what most processes never do

    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        rename = getattr(library, "renamex_np", None)
        return rename and (lambda a, b: ctypes.get_errno() if rename(a, b, 2) else 0)
    rename = getattr(library, "renameat2", None)
    return rename and (lambda a, b: ctypes.get_errno() if rename(-100, a, -100, b, 2) else 0)


def _plain(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kept(text: str) -> bool:
    """Whether all lone surrogates stand for bytes of the note."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
