"""HTML to readable text. One pass, in a time that grows with the length only, whatever the page holds.

The standard library's parser needs a minute for 40 kB of `<a <a <a`; a page comes from anybody.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urljoin

MAIN_CHARS = 400
TOKENS = 200_000

_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_NAME = re.compile(r"[a-zA-Z][^\s/>]{0,40}")
_REST = re.compile(r"""(?:[^"'<>=]+|="[^"]{0,9999}"|='[^']{0,9999}'|[="'])*+>""")
_HREF = re.compile(r"""\bhref\s{0,9}=\s{0,9}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_ALT = re.compile(r"""\balt\s{0,9}=\s{0,9}(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n\f\u00a0]+")

_RAW = frozenset({"script", "style", "textarea", "title", "noscript", "iframe", "template", "svg", "math", "object"})
_SKIPPED = frozenset({"nav", "footer", "aside", "form", "select", "button", "dialog", "head"})
_BLOCKS = frozenset(
    {"p", "div", "section", "article", "main", "header", "ul", "ol", "dl", "dt", "dd", "table", "tr", "blockquote"}
    | {"figure", "figcaption", "address", "fieldset", "details", "summary", "body", "html", "hr", "li", "pre", "br"}
    | {"h1", "h2", "h3", "h4", "h5", "h6"}
)
_PARAGRAPHS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "table", "blockquote", "pre", "ul", "ol"})


@dataclass(frozen=True, slots=True)
class Page:
    """A page's title and its text: headings with `#`, items with `-`, links as `[text](address)`."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text (`name` is empty), or a tag: `name`, `/name` when it closes; `data` holds what is in it."""

    name: str
    data: str


def tokens(page: str) -> Iterator[Token]:
    """The tags and texts of a page, in order. What scripts, styles and the like hold is one token each."""
    lowered = page.translate(_LOWER)
    position, size = 0, len(page)
    missing: set[str] = set()
    while position < size:
        start = page.find("<", position)
        if start < 0:
            yield Token("", page[position:])
            return
        if start > position:
            yield Token("", page[position:start])
        token, position = _tag(page, lowered, start, missing)
        yield token
        if token.name in _RAW and not token.data.endswith("/"):
            end = _find(lowered, f"</{token.name}", position, missing)
            end = size if end < 0 else end
            yield Token(f"={token.name}", page[position:end])
            position = end


def _tag(page: str, lowered: str, start: int, missing: set[str]) -> tuple[Token, int]:
    """The tag, comment or stray `<` at `start`, and where it ends."""
    if page.startswith("<!--", start):
        end = _find(lowered, "-->", start + 4, missing)
        return Token("!", ""), (end + 3 if end >= 0 else len(page))
    closing = page.startswith("/", start + 1)
    name = _NAME.match(lowered, start + 1 + closing)
    if name is None and not page.startswith(("<!", "<?", "</"), start):
        return Token("", "<"), start + 1
    end = _find(lowered, ">", start, missing)
    if end < 0:
        return Token("", page[start:]), len(page)
    if name is None:
        return Token("!", ""), end + 1
    behind = _REST.match(page, name.end())  # the first `>` may stand inside of a quoted value
    end = behind.end() - 1 if behind is not None else end
    return Token("/" * closing + name[0], page[name.end() : end]), end + 1


def _find(text: str, what: str, start: int, missing: set[str]) -> int:
    """`text.find`, but what was missed once is not looked for again: it cannot be further on either."""
    if what in missing:
        return -1
    found = text.find(what, start)
    if found < 0:
        missing.add(what)
    return found


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character number of thousands of digits
        return text


@dataclass(slots=True)
class _Writer:
    """Puts text together: white space collapsed, blocks in lines of their own."""

    parts: list[str] = field(default_factory=list)
    pre: int = 0

    def text(self, data: str) -> None:
        data = _unescaped(data)
        if self.pre:
            self.parts.append(data)
            return
        data = _SPACE.sub(" ", data)
        if data.startswith(" ") and (not self.parts or self.parts[-1].endswith((" ", "\n"))):
            data = data[1:]
        if data:
            self.parts.append(data)

    def line(self, lines: int = 1) -> None:
        """Begin a new line; with two, after an empty one."""
        have, index = 0, len(self.parts)
        while index and have < lines and not self.parts[index - 1].strip("\n"):
            index -= 1
            have += len(self.parts[index])
        if self.parts and have < lines:
            self.parts.append("\n" * (lines - have))

    def result(self, begin: int = 0, end: int | None = None) -> str:
        lines = [line.rstrip() for line in "".join(self.parts[begin:end]).split("\n")]
        kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
        return "\n".join(kept).strip()


class _Renderer:
    """Turns tokens into text and remembers where the page's main part is."""

    def __init__(self, base: str) -> None:
        self.out = _Writer()
        self.title = ""
        self._base = base
        self._skip = ""
        self._depth = 0
        self._link: tuple[str, int] | None = None
        self._main: tuple[int, int] | None = None
        self._begun: int | None = None

    def take(self, token: Token) -> None:
        if token.name == "=title":
            self.title = self.title or _SPACE.sub(" ", _unescaped(token.data)).strip()
        elif self._skip:
            self._skipping(token.name)
        elif not token.name:
            self.out.text(token.data)
        elif token.name in _SKIPPED:
            self._skip, self._depth = token.name, 1
        elif token.name[0] == "=":
            if token.name == "=textarea":
                self.out.text(token.data)
        elif token.name[0] == "/":
            self._close(token.name[1:])
        else:
            self._open(token)

    def page(self) -> Page:
        if self._begun is not None and self._main is None:
            self._main = (self._begun, len(self.out.parts))
        main = self.out.result(*self._main) if self._main is not None else ""
        return Page(self.title, main if len(main) >= MAIN_CHARS else self.out.result())

    def _skipping(self, name: str) -> None:
        if name == self._skip:
            self._depth += 1
        elif name == f"/{self._skip}" or (self._skip == "head" and name in ("body", "h1", "p", "div")):
            self._depth -= 1
            self._skip = self._skip if self._depth else ""

    def _open(self, token: Token) -> None:
        name = token.name
        if name in _BLOCKS:
            self.out.line(2 if name in _PARAGRAPHS else 1)
        if name in ("main", "article") and self._begun is None and self._main is None:
            self._begun = len(self.out.parts)
        if name == "a" and (href := _HREF.search(token.data)):
            self._link = (_unescaped(next(filter(None, href.groups()), "")), len(self.out.parts))
        elif name == "img" and (alt := _ALT.search(token.data)) and any(alt.groups()):
            self.out.text(f"[picture: {next(filter(None, alt.groups()))}]")
        elif name == "li":
            self.out.parts.append("- ")
        elif name in ("td", "th") and self.out.parts and not self.out.parts[-1].endswith("\n"):
            self.out.parts.append(" | ")
        elif name[0] == "h" and name[1:].isdigit():
            self.out.parts.append("#" * min(6, int(name[1:])) + " ")
        elif name == "pre":
            self.out.parts.append("```\n")
            self.out.pre += 1

    def _close(self, name: str) -> None:
        if name == "pre" and self.out.pre:
            self.out.pre -= 1
            self.out.parts.append("\n```")
        if name == "a" and self._link is not None:
            self._end_link(*self._link)
            self._link = None
        if name in _BLOCKS:
            self.out.line(2 if name in _PARAGRAPHS else 1)
        if name in ("main", "article") and self._begun is not None and self._main is None:
            self._main = (self._begun, len(self.out.parts))

    def _end_link(self, address: str, begin: int) -> None:
        text = "".join(self.out.parts[begin:])
        if not text.strip() or "\n" in text or address.startswith(("#", "javascript:", "data:")):
            return
        try:
            address = urljoin(self._base, address.strip())
        except ValueError:
            return  # no address: the text stays
        if address != text.strip():
            self.out.parts[begin:] = [f"[{text.strip()}]({address})" + " " * text.endswith(" ")]


def readable(page: str, base: str = "") -> Page:
    """What a person would read of the page; `base` is its own address, for links."""
    renderer = _Renderer(base)
    for token in islice(tokens(page), TOKENS):
        renderer.take(token)
    return renderer.page()
