"""Files: paths confined to a root, atomic writes, versioned JSON documents."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidConfig, InvalidInput, InvalidPath, NotFound, StorageError, VersionMismatch

M = TypeVar("M")

LONGEST_NAME = 255  # bytes of one component, on every common file system
LONGEST_PATH = 1024  # bytes of a whole relative path
LOOKS = 5  # at a path whose links are changed meanwhile
# Windows gives these to devices, with any extension; a workspace may move to such a machine
_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\.|\Z)", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_REFUSED = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission to write",
    errno.EPERM: "writing is not permitted",
    errno.EIO: "the disk reports an error",
    errno.ENOENT: "the directory is gone",
    errno.EMFILE: "too many files are open",
}


def real_path(path: Path) -> Path:
    """`path` with its symlinks followed; `InvalidPath` when another process changes a link at every look."""
    for _ in range(LOOKS):
        # between its two looks at one component `realpath` may find the link gone, or become a directory
        with suppress(OSError):
            return Path(os.path.realpath(path))
    raise InvalidPath(f"{str(path)!r} keeps being changed by somebody else; try again later")


class Root:
    """A directory that paths from outside are confined to."""

    def __init__(self, path: Path) -> None:
        self.path = real_path(path)

    def resolve(self, name: str | PurePosixPath, *, follow: bool = True) -> Path:
        """The absolute path of `name`, which is relative with `/` between components; `.` is the root itself.

        `InvalidPath` when it is malformed or when it, its symlinks followed, lies outside. With `follow=False` the
        last component may be a symlink to anywhere: the answer is the link itself, to be looked at or removed.
        """
        parts = components(str(name))
        if not parts:
            return self.path
        lexical = self.path.joinpath(*parts)
        checked = lexical if follow else lexical.parent
        real = real_path(checked)
        if not real.is_relative_to(self.path) or _loops(real):
            raise InvalidPath(f"{str(name)!r} leads out of its directory through a symbolic link", path=str(name))
        return real if follow else real / parts[-1]

    def relative(self, path: Path) -> str:
        """`path` as seen from the root, with `/` between components; `InvalidPath` when it lies outside."""
        for spelling in (path, real_path(path)):
            if spelling.is_relative_to(self.path):
                return spelling.relative_to(self.path).as_posix()
        raise InvalidPath(f"{str(path)!r} is outside of {str(self.path)!r}")


def components(name: str) -> list[str]:
    """The components of a relative path; `.` and repeated slashes mean nothing. `InvalidPath` when malformed."""
    if not name:
        raise InvalidPath("the path is empty")
    reason = _fault(name)
    if reason is not None:
        raise InvalidPath(f"{name[:200]!r} is not a path here: {reason}", path=name[:200])
    return [part for part in name.split("/") if part not in ("", ".")]


def _fault(name: str) -> str | None:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if size > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} bytes"
    if name.startswith("/"):
        return "it must be relative"
    if "\\" in name:
        return "use '/' between components"
    if _DRIVE.match(name):
        return "it begins with a drive"
    if any(_unprintable(char) for char in name):
        return "it holds control characters"
    return next(filter(None, map(_component_fault, name.split("/"))), None)


def _unprintable(char: str) -> bool:
    """Control characters, line separators, and the marks that make a name read differently from what it is."""
    if char.isascii():
        return char < " " or char == "\x7f"
    return unicodedata.category(char) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(char) in _DIRECTIONS


def _component_fault(part: str) -> str | None:
    if part in ("", "."):
        return None
    if part == "..":
        return "'..' is not allowed"
    if part != part.rstrip(" ."):
        return f"{part!r} ends with a dot or a space"
    if _DEVICES.match(part):
        return f"{part!r} is the name of a device on some systems"
    if len(part.encode("utf-8")) > LONGEST_NAME:
        return f"a component is longer than {LONGEST_NAME} bytes"
    return None


def _loops(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def storage_error(error: OSError, path: Path) -> StorageError:
    """What a failed write of `path` means to a person."""
    reason = _REFUSED.get(error.errno or 0) or error.strerror or str(error)
    return StorageError(f"cannot write {str(path)!r}: {reason}", path=str(path), reason=reason)


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """An `OSError` of the block, which writes `path`, becomes a `StorageError`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def make_directory(path: Path, *, mode: int = 0o700) -> None:
    """Make `path` and its parents unless they are there; new ones get `mode`."""
    if path.is_dir():
        return
    with storing(path):
        make_directory(path.parent, mode=mode)
        path.mkdir(mode=mode, exist_ok=True)


def write_atomic(path: Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace the file by `data`, durably: after a crash it holds the old content or the new one, whole.

    The mode of an existing file stays unless `mode` is given. A symlink is replaced, not followed.
    """
    content = clean_text(data).encode("utf-8") if isinstance(data, str) else data
    with storing(path):
        temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
        try:
            _write_new(temporary, content, _mode_of(path) if mode is None else mode)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def _write_new(path: Path, content: bytes, mode: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            path.chmod(mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _mode_of(path: Path) -> int | None:
    try:
        return path.lstat().st_mode & 0o777 if not path.is_symlink() else None
    except FileNotFoundError:
        return None


def sync_file(path: Path) -> None:
    """Make the content of the file durable."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make new, renamed and removed entries of the directory durable, where the system can."""
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """The file's text: UTF-8 with or without BOM, CRLF read as LF. `InvalidInput` when it is not UTF-8."""
    return _decoded(path.read_bytes(), path)


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"{str(path)!r} is not UTF-8 text: byte {data[error.start]:#04x} in line {line}"
        raise InvalidInput(message, code="not_utf8", path=str(path), line=line) from None


class JsonDocument(Generic[M]):
    """One JSON file that people and the daemon edit. Its version is a hash of its content; "" is "no file yet".

    Reading and writing block: call them in a thread. Writers of one process take turns.
    """

    def __init__(
        self,
        path: Path,
        *,
        parse: Callable[[Any], M],
        dump: Callable[[M], Any],
        default: Callable[[], M] | None = None,
        mode: int | None = None,
    ) -> None:
        self.path = path
        self._parse = parse
        self._dump = dump
        self._default = default
        self._mode = mode
        self._lock = threading.Lock()

    def load(self) -> tuple[M, str]:
        """The value and its version; `InvalidConfig` with line and column when it does not parse."""
        data = self._bytes()
        if data is not None:
            return self._parse(self._json(data)), _version(data)
        if self._default is None:
            raise NotFound("file", self.path.name)
        return self._default(), ""

    def save(self, value: M, expected_version: str | None) -> str:
        """Write `value` if the file is still at `expected_version` (None: whatever it holds); the new version.

        `VersionMismatch` names the current version. A file that does not parse is never overwritten.
        """
        text = json.dumps(self._dump(value), ensure_ascii=False, indent=2) + "\n"
        data = clean_text(text).encode("utf-8")
        with self._lock:
            present = self._bytes()
            current = _version(present) if present is not None else ""
            if expected_version is not None and expected_version != current:
                message = f"{self.path.name} has changed since it was read; read it again"
                raise VersionMismatch(message, current=current, file=str(self.path))
            if present is not None:
                self._json(present)
            write_atomic(self.path, data, mode=self._mode)
        return _version(data)

    def _bytes(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _json(self, data: bytes) -> Any:
        try:
            return json.loads(_decoded(data, self.path))
        except json.JSONDecodeError as error:
            raise InvalidConfig(error.msg, file=self.path, line=error.lineno, column=error.colno) from None
        except RecursionError:
            raise InvalidConfig("nested too deeply", file=self.path) from None


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
