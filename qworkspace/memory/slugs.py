"""Names of notes made from titles, and the days that names of notes speak of."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from datetime import date

LONGEST_SLUG = 60  # characters; in UTF-8 below the 255 bytes of a file name
_DAY = re.compile(r"(?<!\d)(\d{4})[-_]?(\d{2})[-_]?(\d{2})(?!\d)")
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)\Z")


def slug(title: str) -> str:
    """A file name for `title`, in its own script: lower case, dashes between words, never empty or a device's name.

    Titles that differ in case, width or punctuation alone have the same slug.
    """
    text = unicodedata.normalize("NFKC", title).casefold()
    text = unicodedata.normalize("NFC", "".join(char if _stays(char) else "-" for char in text))
    words = "-".join(filter(None, text.split("-")))
    if not words:
        return "topic-" + hashlib.sha256(title.encode("utf-8", "replace")).hexdigest()[:8]
    if len(words) > LONGEST_SLUG:
        ending = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:6]
        words = f"{words[: LONGEST_SLUG - 7].rstrip('-')}-{ending}"
    return f"{words}-note" if _DEVICES.match(words) else words


def day_of(name: str) -> date | None:
    """The day in a note's name, `memory/2026-01-02.md`; None when there is none."""
    for year, month, day in _DAY.findall(name.rpartition("/")[2]):
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None


def _stays(char: str) -> bool:
    return unicodedata.category(char)[0] in "LNM"
