"""The text of documents: plain text, markdown, HTML and PDF. Everything here blocks: call it in a thread."""

from __future__ import annotations

import codecs
import logging
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from qworkspace.base.html import TOKENS, readable
from qworkspace.base.text import clean_text

if TYPE_CHECKING:
    from pypdf import PdfReader

logger = logging.getLogger(__name__)

LARGEST = 20_000_000  # bytes of a document
MOST_PAGES = 200  # of a PDF
MOST_SECONDS = 30.0  # for a PDF, looked at between its pages
MOST_TEXT = 2_000_000  # characters; what follows is left out, and said so
TEXT = frozenset({".txt", ".text", ".md", ".markdown", ".rst", ".org", ".log", ".csv", ".tsv"})
HTML = frozenset({".html", ".htm", ".xhtml"})
PDF = ".pdf"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{2,40})""", re.IGNORECASE)
_TITLE = re.compile(r"^#\s+(.+?)\s*#*\s*$", re.MULTILINE)
_FRONT = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)\n", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:\s*[\"']?(.+?)[\"']?\s*$", re.MULTILINE)


class Unreadable(Exception):
    """The document holds no text that can be read; its text says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a document says. `left_out` tells what of it was not read; empty when all was."""

    title: str
    text: str
    pages: int = 0
    left_out: str = ""


def is_readable_kind(path: Path) -> bool:
    """Whether documents with that ending are read."""
    ending = path.suffix.lower()
    return ending in TEXT or ending in HTML or ending == PDF


def read_document(data: bytes, name: str, elapsed: Callable[[], float]) -> Document:
    """What the document with these bytes says; `Unreadable`. `elapsed` are the seconds since the reading began."""
    ending = Path(name).suffix.lower()
    if ending == PDF:
        return _pdf(data, name, elapsed)
    if ending in HTML:
        return _page(decoded(data, _declared(data)), name)
    text = decoded(data)
    return _document(_title(text) or Path(name).stem, text)


def decoded(data: bytes, declared: str = "") -> str:
    """The text of bytes in the declared encoding, UTF-8, UTF-16, UTF-32 or GB18030; `Unreadable` for anything else."""
    marked = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "")
    guesses = [marked] if marked else [declared, "utf-8", _sixteen_bits(data), "gb18030", "cp1252"]
    for encoding in filter(None, guesses):
        try:
            text = data.decode(encoding)
        except (UnicodeError, LookupError):
            continue
        if _is_text(text):
            return clean_text(text.replace("\r\n", "\n").replace("\r", "\n"))
    raise Unreadable("it is no text in UTF-8, UTF-16 or GB18030")


def _sixteen_bits(data: bytes) -> str:
    """UTF-16 without its mark: every other byte of Western text and line ends is zero."""
    sample = data[:4_000]
    if len(sample) < 4 or len(data) % 2:
        return ""
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) < len(sample) / 40 or min(even, odd) * 4 > max(even, odd):
        return ""
    return "utf-16-le" if odd > even else "utf-16-be"


def _declared(data: bytes) -> str:
    found = _CHARSET.search(data[:4_000])
    return found[1].decode("ascii") if found else ""


def _is_text(text: str) -> bool:
    sample = text[:20_000]
    control = sum(unicodedata.category(char) in ("Cc", "Cn") and char not in "\t\n\r\f\x1b" for char in sample)
    return control * 100 <= len(sample)


def _title(text: str) -> str:
    head = text[:20_000]
    front = _FRONT.match(head)
    named = _FRONT_TITLE.search(front[1]) if front else None
    found = named or _TITLE.search(head)
    return " ".join(found[1].split())[:300] if found else ""


def _document(title: str, text: str, *, pages: int = 0, left_out: str = "") -> Document:
    text = clean_text(text).replace("\0", "").strip()
    if not text:
        raise Unreadable("it holds no text")
    if len(text) > MOST_TEXT:
        text, left_out = text[:MOST_TEXT], left_out or f"what follows the first {MOST_TEXT:,} characters"
    return Document(" ".join(clean_text(title).split())[:300], text, pages, left_out)


def _page(source: str, name: str) -> Document:
    page = readable(source)
    left_out = "perhaps the end of the page, which is very large" if source.count("<") > TOKENS // 2 else ""
    return _document(page.title or _title(page.text) or Path(name).stem, page.text, left_out=left_out)


def _pdf(data: bytes, name: str, elapsed: Callable[[], float]) -> Document:
    import pypdf  # heavy, and only needed by who drops a PDF

    # it warns of every small fault that it overlooks
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("it is encrypted; save it without a password")
        return _pages(reader, name, elapsed)
    except Unreadable:
        raise
    except pypdf.errors.DependencyError as error:
        raise Unreadable("it is encrypted; save it without a password") from error
    except Exception as error:  # an edge: a damaged file makes the library fail in any way
        logger.info("the PDF %s cannot be read", name, exc_info=error)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Unreadable(f"the PDF is damaged: {reason}") from error


def _pages(reader: PdfReader, name: str, elapsed: Callable[[], float]) -> Document:
    total = len(reader.pages)
    texts: list[str] = []
    for page in reader.pages[:MOST_PAGES]:
        if elapsed() > MOST_SECONDS or sum(map(len, texts)) > MOST_TEXT:
            break
        texts.append(page.extract_text())
    if not any(text.strip() for text in texts):
        raise Unreadable("the PDF holds only images, or nothing; it needs text recognition first")
    left_out = f"the pages after {len(texts)} of {total}" if len(texts) < total else ""
    title = str(reader.metadata.title or "") if reader.metadata else ""
    return _document(title or Path(name).stem, "\n\n".join(texts), pages=total, left_out=left_out)
