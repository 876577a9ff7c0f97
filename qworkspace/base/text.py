"""Text that comes from outside, made storable, and how much of a model's window it takes."""

from __future__ import annotations

from typing import Any

# control characters but tab and line end, and the marks that make a text read differently from what it is
_HIDDEN = (*range(9), *range(11, 32), *range(0x7F, 0xA0), *range(0x2028, 0x202F))
_SHOWN = {code: f"\\u{code:04x}" for code in (*_HIDDEN, *range(0x2066, 0x206A))}


def clean_text(text: str) -> str:
    """`text` as valid UTF-8: surrogate pairs become their character, lone surrogates U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_value(value: Any) -> Any:
    """A JSON value with all its texts, keys included, made valid UTF-8."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_value(key): clean_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_value(item) for item in value]
    return value


def visible(text: str) -> str:
    """`text` as it is safe to print: what would steer a terminal, or turn the reading direction, shows as `\\u001b`."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def estimate_text(text: str) -> int:
    """About how many tokens `text` is: four characters each in ASCII, one character each in Chinese or Japanese."""
    if text.isascii():
        return (len(text) + 3) // 4
    extra = len(text.encode("utf-8", "replace")) - len(text)
    wide = min(len(text), extra // 2 + 1)
    return wide + (len(text) - wide + 3) // 4
