"""A note as the index reads it: as far as it is text, with the reason where it is not."""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "blank", "partial", "skipped"]

MOST_BYTES = 20_000_000
"""Of one note; what is beyond is not searched."""

FRESH_SECONDS = 2.0
"""A file that changed so shortly before it was read may change again without a new time stamp: it is read again."""

UNKNOWN = -1
BLANK = "it is blank"
_LOOK = 65_536
_ODD_SHARE = 0.2  # of replaced characters: more, and it is no text in another encoding but something else
_REASONS = {
    errno.EACCES: "there is no permission to read it",
    errno.EPERM: "there is no permission to read it",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.EISDIR: "it is a directory",
    errno.EIO: "the disk reports an error",
}


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells without reading that a file has not changed; `mtime` in ns, `UNKNOWN` when it cannot tell."""

    size: int
    mtime: int
    inode: int


@dataclass(frozen=True, slots=True)
class Note:
    """A note's text, a digest of its bytes, and why it is not all there (`reason`, empty for `ok`)."""

    stamp: Stamp
    digest: bytes
    text: str
    state: State
    reason: str = ""


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of the file; None when it is not there."""
    try:
        return _stamp(path.stat())
    except FileNotFoundError:
        return None
    except OSError:
        return Stamp(0, UNKNOWN, 0)


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino & 0x7FFF_FFFF_FFFF_FFFF)


def read_note(path: Path, now: float) -> Note | None:
    """The note as far as it can be read; None when it is not there. `now` is the time in seconds, for its stamp."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _skipped(Stamp(0, UNKNOWN, 0), _REASONS.get(error.errno or 0) or str(error.strerror))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        stamp = _stamp(found)
        if not stat.S_ISREG(found.st_mode):
            return _skipped(stamp, "it is not a regular file")
        try:
            data = file.read(MOST_BYTES + 1)
        except OSError as error:
            return _skipped(Stamp(0, UNKNOWN, 0), _REASONS.get(error.errno or 0) or str(error.strerror))
    if now - found.st_mtime < FRESH_SECONDS:
        stamp = Stamp(stamp.size, UNKNOWN, stamp.inode)
    return note_of(data, stamp)


def note_of(data: bytes, stamp: Stamp) -> Note:
    """The text of those bytes, at most `MOST_BYTES` of them."""
    digest = hashlib.blake2b(data, digest_size=16).digest()
    reasons = []
    if len(data) > MOST_BYTES:
        data = data[: data.rfind(b"\n", 0, MOST_BYTES) + 1] or data[:MOST_BYTES]
        reasons.append(f"only its first {MOST_BYTES // 1_000_000} MB are searched")
    text, reason = _decoded(data)
    if text is None:
        return Note(stamp, digest, "", "skipped", reason)
    if reason:
        reasons.append(reason)
    if not text.strip():
        return Note(stamp, digest, "", "blank", BLANK)
    return Note(stamp, digest, text, "partial" if reasons else "ok", "; ".join(reasons))


def _decoded(data: bytes) -> tuple[str | None, str]:
    """(text, what is wrong with it); no text when it is none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _lines(data.decode("utf-16", "replace")), ""
    if b"\0" in data[:_LOOK]:
        return None, "it is not text"
    try:
        return _lines(data.decode("utf-8-sig")), ""
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    text = data.decode("utf-8-sig", "replace")
    if text.count("\ufffd") > len(text) * _ODD_SHARE:
        return None, "it is not UTF-8 text"
    return _lines(text), f"it is not UTF-8 from line {line} on: such bytes are left out"


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _skipped(stamp: Stamp, reason: str) -> Note:
    return Note(stamp, b"", "", "skipped", reason)
