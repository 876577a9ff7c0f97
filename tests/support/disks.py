"""Small disks that can be filled, and directories that cannot be written: mounted for one test, by root on Linux."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

Kind = Literal["tmpfs", "ext4"]
FILLER = ".filler"


def why_not(kind: Kind = "tmpfs") -> str:
    """Why such disks cannot be mounted here; empty when they can."""
    if not sys.platform.startswith("linux"):
        return "mounting small disks is done on Linux only"
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "mounting a small disk needs root and `mount`"
    if kind == "ext4" and shutil.which("mkfs.ext4") is None:
        return "there is no mkfs.ext4"
    with tempfile.TemporaryDirectory() as place:
        try:
            with SmallDisk(Path(place) / "disk", kind=kind):
                return ""
        except subprocess.CalledProcessError as error:
            return f"this machine does not let a {kind} be mounted: {error.stderr.decode().strip()}"


class SmallDisk:
    """A file system of a few megabytes at `place` while the context lasts."""

    def __init__(self, place: Path, *, megabytes: int = 8, kind: Kind = "tmpfs") -> None:
        self.place = place
        self._megabytes = megabytes
        self._kind = kind
        self._image = place.with_name(f"{place.name}.image")

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        if self._kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "tmpfs", self.place)
        else:
            with self._image.open("wb") as image:
                image.truncate(self._megabytes * 1_000_000)
            _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", self._image)
            _run("mount", "-o", "loop,errors=remount-ro", self._image, self.place)
            (self.place / "lost+found").rmdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        unmount(self.place)
        self._image.unlink(missing_ok=True)

    def fill(self) -> None:
        """Leave not one byte."""
        with (self.place / FILLER).open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())

    def free(self) -> None:
        """All that `fill` took."""
        (self.place / FILLER).unlink()


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Nothing at `place` can be written, not even by root, while the context lasts."""
    _run("mount", "--bind", place, place)
    try:
        _run("mount", "-o", "remount,bind,ro", place)
        yield
    finally:
        unmount(place)


def unmount(place: Path) -> None:
    """At once if that is possible, else as soon as nobody uses it."""
    if subprocess.run(["umount", place], capture_output=True).returncode != 0:
        _run("umount", "--lazy", place)


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
