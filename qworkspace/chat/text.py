"""Text that comes in pieces: halves of one character that were sent apart are joined again."""

from __future__ import annotations

from qworkspace.base.text import clean_text


class Mender:
    """Makes pieces valid one after another; a high surrogate at the end of a piece waits for the next one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown after this piece."""
        if piece.isascii() and not self._held:
            return piece
        piece = self._held + piece
        self._held = piece[-1] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        return clean_text(piece[:-1] if self._held else piece)

    def rest(self) -> str:
        """What is left at the end: a lone half."""
        held, self._held = self._held, ""
        return clean_text(held)
