"""One daemon per home: an operating-system lock decides, the file's content only tells who holds it."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from qworkspace.errors import Conflict, StorageError

_LOCKED_BYTE = 1 << 30  # Windows locks bytes, and a locked one cannot be read: take one beyond the content
_LENGTH = 512  # bytes; always so many, so that a later holder can tell who it is on a full disk, too
_PATIENCE = 0.3  # seconds; `is_held` of another process holds the lock for an instant


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote the lock file last: true of the present only while the lock is held."""

    pid: int
    since: str
    address: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} since {self.since}" + (f" at {self.address}" if self.address else "")


class Locked(Conflict):
    """Another process holds the lock; `holder` is who, when it has said so."""

    code = "home_locked"

    def __init__(self, path: Path, holder: Holder | None) -> None:
        super().__init__(f"a daemon already uses {str(path.parent.parent)!r}: {holder or 'unknown process'}")
        self.holder = holder


class HomeLock:
    """An exclusive lock that ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.since = ""
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, since: str) -> None:
        """Take the lock now or raise `Locked`; `StorageError` when the file cannot be written."""
        descriptor = self._open()
        if not _lock_within(descriptor, _PATIENCE):
            os.close(descriptor)
            raise Locked(self.path, read_holder(self.path))
        self._descriptor, self.since = descriptor, since
        self.tell(Holder(os.getpid(), since))

    def tell(self, holder: Holder) -> None:
        """Write who holds the lock, for the second one that asks."""
        assert self._descriptor is not None, "only the holder tells"
        self._write(json.dumps(asdict(holder)).encode())

    def release(self) -> None:
        """Give the lock back and leave a blank file. Idempotent."""
        if self._descriptor is None:
            return
        self._write(b"")
        os.close(self._descriptor)
        self._descriptor = None

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(
                f"the home {str(self.path.parent.parent)!r} is not writable ({error.strerror}): {str(self.path)!r}; "
                "give it to this user, or choose another one with --home",
                path=str(self.path),
            ) from error

    def _write(self, content: bytes) -> None:
        assert self._descriptor is not None
        content = content.ljust(_LENGTH)
        try:
            os.pwrite(self._descriptor, content, 0) if hasattr(os, "pwrite") else self._seek_and_write(content)
            os.ftruncate(self._descriptor, len(content))
        except OSError:
            return  # a full disk: the lock holds all the same, only its description is missing

    def _seek_and_write(self, content: bytes) -> None:
        assert self._descriptor is not None
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, content)


def read_holder(path: Path) -> Holder | None:
    """Who wrote the lock file, or None when nobody did or it is not readable."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Holder(int(found["pid"]), str(found["since"]), str(found.get("address", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock at this moment."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        _lock(descriptor, shared=True)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_within(descriptor: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            _lock(descriptor)
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        else:
            return True


def _lock(descriptor: int, *, shared: bool = False) -> None:
    if sys.platform == "win32":
        import msvcrt  # there is no other lock on that platform

        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # POSIX only

        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
