"""The readable text of a web page, as light markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_SKIPPED = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "head", "nav", "form"}
_BLOCKS = {
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "dd",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
}
_BLOCKS |= {"header", "hr", "main", "ol", "p", "pre", "section", "table", "tr", "ul", "caption", "details", "summary"}
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_SPACE = re.compile(r"[ \t\r\n\f\v\u00a0]+")
_GAPS = re.compile(r"\n{3,}")


def html_text(source: str) -> tuple[str, str]:
    """(title, text): without scripts, styles and navigation; headings and list items keep their marks."""
    reader = _Reader()
    reader.feed(source)
    reader.close()
    lines = [_SPACE.sub(" ", line).strip() for line in "".join(reader.text).split("\n")]
    title = " ".join("".join(reader.title).split()) or " ".join("".join(reader.heading).split())
    return title[:300], _GAPS.sub("\n\n", "\n".join(lines)).strip()


class _Reader(HTMLParser):
    """Collects text. An unclosed skipped element ends with the next block that cannot stand in it, or `body`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.title: list[str] = []
        self.heading: list[str] = []
        self._skipped: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._skipped.clear()
        if tag in _SKIPPED:
            self._skipped.append(tag)
        elif tag in ("title", "h1"):
            self._inside = tag if not (self.title if tag == "title" else self.heading) else ""
        if not self._skipped:
            self.text.append(self._opening(tag))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._skipped:
            self.text.append(self._opening(tag))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped:
            while self._skipped.pop() != tag:
                continue
        elif not self._skipped:
            self.text.append("\n\n" if tag in _BLOCKS or tag in _HEADINGS else "")
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "title":
            self.title.append(data)
        elif self._inside == "h1":
            self.heading.append(data)
        if not self._skipped and self._inside != "title":
            self.text.append(_SPACE.sub(" ", data))

    def _opening(self, tag: str) -> str:
        if tag in _HEADINGS:
            return f"\n\n{_HEADINGS[tag]}"
        if tag == "li":
            return "\n- "
        if tag in ("td", "th"):
            return " | "
        return "\n" if tag == "br" else "\n\n" if tag in _BLOCKS else ""
