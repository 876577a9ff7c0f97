"""Files below a directory, reached from it step by step without following a link: nothing can be swapped on the way.

Names are lists of components that were resolved and judged before. A link met here was put there since: refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from qworkspace.base.files import storage_error
from qworkspace.errors import Conflict, Denied, InvalidInput, NotFound, TooLarge
from qworkspace.plugins.extensions import FileEntry

Kind = Literal["file", "directory", "link", "other"]
Stamp = tuple[int, int, int]
Parts = Sequence[str]
Check = Callable[[os.stat_result], None]

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_DIRECTORY = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | _NOFOLLOW | _BINARY | getattr(os, "O_NONBLOCK", 0)  # a pipe must not hold the thread up
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY


class Changed(Conflict):
    """The file is no longer the one that was read."""

    code = "file_changed"


class Directory:
    """An open directory. Where the system cannot work relative to one (Windows), its path stands in."""

    def __init__(self, path: Path, parent: Directory | None = None) -> None:
        self.path = path
        self._descriptor: int | None = None
        if os.open in os.supports_dir_fd:
            # the root itself may be reached over links: it is the person's
            name = path.name if parent is not None else path
            self._descriptor = os.open(name, _DIRECTORY, dir_fd=parent._descriptor if parent is not None else None)
        elif path.is_symlink() or not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))

    def enter(self, name: str) -> Directory:
        return Directory(self.path / name, self)

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        return os.open(self._at(name), flags, mode, dir_fd=self._descriptor)

    def status(self, name: str | None = None) -> os.stat_result:
        """Of the directory itself, or of a name in it, not following a link."""
        if name is not None:
            return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        return os.fstat(self._descriptor) if self._descriptor is not None else self.path.stat()

    def make(self, name: str) -> None:
        """Make the directory `name`, durably, unless there is something of that name."""
        with suppress(FileExistsError):
            os.mkdir(self._at(name), dir_fd=self._descriptor)
            self.sync()

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def sync(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def entries(self) -> list[FileEntry]:
        """What is in it, by name; a name that vanishes meanwhile is left out."""
        found = []
        with os.scandir(self._descriptor if self._descriptor is not None else self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append(FileEntry(entry.name, _kind(status.st_mode), status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: entry.name)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _at(self, name: str) -> str | Path:
        return name if self._descriptor is not None else self.path / name


class Beneath:
    """What lies below `root`. `check` sees every directory that is entered and every file, and may refuse it.

    All of it blocks: call it in a thread.
    """

    def __init__(self, root: Path, check: Check) -> None:
        self._root = root
        self._check = check

    def open(self, parts: Parts) -> int:
        """A descriptor of the regular file, for reading."""
        with _reading(parts), self._parent(parts) as directory:
            descriptor = directory.open(parts[-1], _READ)
            try:
                self._accept(os.fstat(descriptor), parts)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    def load(self, parts: Parts, limit: int) -> tuple[bytes, Stamp] | None:
        """The whole file and what tells it from a later one; None when it is not there."""
        try:
            descriptor = self.open(parts)
        except NotFound:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size > limit:
                raise TooLarge(f"{'/'.join(parts)!r} has {status.st_size:,} bytes; at most {limit:,} can be changed")
            return file.read(), _stamp(status)

    def replace(self, parts: Parts, data: bytes, expected: Stamp | Literal["any"] | None = "any") -> bool:
        """Put `data` in the file's place, durably, with its directories; True when it is new.

        A file with several names gets a life of its own: the other names keep the old content. `Changed` when it is
        not the `expected` one (None: not there).
        """
        with _writing(parts), self._parent(parts, create=True) as directory:
            present = self._present(directory, parts)
            temporary = f".{secrets.token_hex(8)}.tmp"
            try:
                _write(directory, temporary, data, present)
                present = self._present(directory, parts)
                if expected != "any" and (_stamp(present) if present else None) != expected:
                    raise Changed(f"{'/'.join(parts)!r} was changed by somebody else meanwhile")
                directory.rename(temporary, parts[-1])
            except BaseException:
                with suppress(OSError):
                    directory.unlink(temporary)
                raise
            directory.sync()
            return present is None

    def entries(self, parts: Parts) -> list[FileEntry]:
        """What is in the directory, by name."""
        with _reading(parts), self._entered(parts) as directory:
            return directory.entries()

    def remove(self, parts: Parts) -> None:
        """Take a file or a link away; nothing happens when it is gone."""
        with _writing(parts), self._parent(parts) as directory, suppress(FileNotFoundError):
            directory.unlink(parts[-1])

    def _present(self, directory: Directory, parts: Parts) -> os.stat_result | None:
        try:
            status = directory.status(parts[-1])
        except FileNotFoundError:
            return None
        self._accept(status, parts)
        return status

    def _accept(self, status: os.stat_result, parts: Parts) -> None:
        kind = _kind(status.st_mode)
        if kind == "link":
            raise Denied(f"{'/'.join(parts)!r} was replaced by a link just now")
        if kind != "file":
            what = "a directory" if kind == "directory" else "no regular file"
            raise InvalidInput(f"{'/'.join(parts)!r} is {what}")
        self._check(status)

    @contextmanager
    def _parent(self, parts: Parts, *, create: bool = False) -> Iterator[Directory]:
        if not parts:
            raise InvalidInput("'.' is a directory")
        with self._entered(parts[:-1], create=create) as directory:
            yield directory

    @contextmanager
    def _entered(self, parts: Parts, *, create: bool = False) -> Iterator[Directory]:
        directory = Directory(self._root)
        try:
            for name in parts:
                if create:
                    directory.make(name)
                inner = directory.enter(name)
                directory.close()
                directory = inner
                self._check(directory.status())
            yield directory
        finally:
            directory.close()


def _write(directory: Directory, name: str, data: bytes, like: os.stat_result | None) -> None:
    descriptor = directory.open(name, _NEW, 0o666 if like is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if like is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), like.st_mode & 0o777)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _kind(mode: int) -> Kind:
    if stat.S_ISLNK(mode):
        return "link"
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


@contextmanager
def _reading(parts: Parts) -> Iterator[None]:
    name = "/".join(parts) or "."
    try:
        yield
    except FileNotFoundError:
        raise NotFound("file", name, "list_files shows what there is") from None
    except PermissionError:
        raise Denied(f"the system does not let {name!r} be read") from None
    except OSError as error:
        raise _explained(error, name) from error


@contextmanager
def _writing(parts: Parts) -> Iterator[None]:
    name = "/".join(parts)
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EISDIR):
            raise _explained(error, name) from error
        raise storage_error(error, Path(name)) from error


def _explained(error: OSError, name: str) -> InvalidInput:
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return InvalidInput(f"a part of {name!r} is not a directory, or was replaced by a link just now")
    return InvalidInput(f"{name!r}: {error.strerror or error}")
