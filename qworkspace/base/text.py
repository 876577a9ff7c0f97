"""Text that comes from outside, made storable."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """`text` as valid UTF-8: surrogate pairs become their character, lone surrogates U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
