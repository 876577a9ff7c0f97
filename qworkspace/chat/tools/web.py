"""`web_fetch`: a page of the open Internet as text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field

from qworkspace.base.html import readable
from qworkspace.base.text import clean_text
from qworkspace.chat.tools.guard import by_policy
from qworkspace.chat.tools.output import answers, plain
from qworkspace.chat.tools.text import binary_type
from qworkspace.errors import Denied, InvalidInput, Unavailable
from qworkspace.plugins.extensions import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from qworkspace.chat.tools.fetching import Answer, Fetcher

SECONDS = 20.0
ERROR_CHARS = 2_000
NAME = "web_fetch"

_HTML = ("text/html", "application/xhtml+xml")
_TEXT = ("application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml")
_CHARSETS = ("utf", "iso-8859-", "iso8859", "latin", "ascii", "us-ascii", "windows-", "cp", "shift_jis", "shift-jis")
_MORE_CHARSETS = ("sjis", "euc-", "euc_", "gb", "big5", "koi8-", "iso-2022-", "macintosh")


class WebFetch(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    url: Annotated[str, Field(min_length=1, max_length=4_096, description="http or https address")]


@answers
async def web_fetch(context: ToolContext, args: WebFetch) -> ToolOutput:
    """The page's text, with the address where it was found in the end."""
    try:
        async with asyncio.timeout(SECONDS):
            answer = await (await asyncio.to_thread(_fetcher, context, args.url)).get(args.url)
    except TimeoutError:
        raise Unavailable(f"{args.url} was not read within {SECONDS:g} s") from None
    if isinstance(answer, str):
        return ToolOutput(f"{args.url} redirects to {answer}; to read that, fetch it by its own address")
    return await asyncio.to_thread(_output, answer)


def _fetcher(context: ToolContext, start: str) -> Fetcher:
    # loaded when a page is first read: it brings httpx, which is heavy
    from qworkspace.chat.tools.fetching import Fetcher

    return Fetcher(lambda url: _may_move(context, start, url), private=_allows_private(context))


def _may_move(context: ToolContext, start: str, url: str) -> bool:
    """Whether a redirect may be followed without asking: the policy was applied to the first address only."""
    verdict = by_policy(WEB_FETCH, context.config.tools.get(NAME), canonical(url), None)
    if verdict.decision == "deny":
        raise Denied(f"{start} redirects to {url}: {verdict.reason}")
    return verdict.decision == "allow" or _site(url) == _site(start)


def _site(url: str) -> str:
    return (urlsplit(url).hostname or "").removeprefix("www.")


def _allows_private(context: ToolContext) -> bool:
    settings = context.config.tools.get(NAME)
    return settings is not None and (settings.model_extra or {}).get("allow_private") is True


def _output(answer: Answer) -> ToolOutput:
    text = plain(_text(answer))
    cut = f"\n[only the first {len(answer.body):,} bytes were read]" if answer.cut else ""
    kind = answer.media_type or "unknown type"
    head = f"{answer.url} (HTTP {answer.status}, {kind}, {len(answer.body):,} bytes)"
    if answer.status >= 400:
        return ToolOutput(f"{head}\n{text[:ERROR_CHARS]}".strip(), "error")
    return ToolOutput(f"{head}\n\n{text or '[no text]'}{cut}")


def _text(answer: Answer) -> str:
    """What the answer says; `InvalidInput` when it is no text."""
    kind = answer.media_type
    textual = not kind or kind.startswith("text/") or kind in _TEXT or kind.endswith(("+json", "+xml"))
    found = binary_type(answer.body, urlsplit(answer.url).path)
    if (not textual and kind not in _HTML) or found is not None:
        raise InvalidInput(f"{answer.url} is no text: {kind or found}, {len(answer.body):,} bytes{'+' * answer.cut}")
    text = _decoded(answer)
    if kind in _HTML or (not kind and text.lstrip()[:15].lower().startswith(("<!doctype html", "<html"))):
        page = readable(text, answer.url)
        return f"# {page.title}\n\n{page.text}" if page.title else page.text
    return text


def _decoded(answer: Answer) -> str:
    charset = answer.charset or _declared(answer.body) or "utf-8"
    if not charset.startswith(_CHARSETS + _MORE_CHARSETS):
        charset = "utf-8"
    try:
        return clean_text(answer.body.decode("utf-8-sig" if charset in ("utf-8", "utf8") else charset, "replace"))
    except LookupError:
        return answer.body.decode("utf-8-sig", "replace")


def _declared(body: bytes) -> str:
    """The charset of a page's `<meta>`, which stands within its first kilobyte."""
    head = body[:1024].decode("ascii", "replace").lower()
    _, found, rest = head.partition("charset=")
    return rest.lstrip("\"' ")[:20].split('"')[0].split("'")[0].split(";")[0].split(">")[0].strip() if found else ""


def canonical(url: str) -> str:
    """The address as rules see it: scheme and host in lower case, no user, no fragment."""
    try:
        parts = urlsplit(url.strip())
        host = parts.netloc.rpartition("@")[2].lower()
    except ValueError:
        return url
    return urlunsplit((parts.scheme.lower(), host, parts.path or "/", parts.query, ""))


WEB_FETCH = Tool(
    name=NAME,
    description="Read a web page or text file from the Internet. Pages come as readable text with their links.",
    args=WebFetch,
    run=web_fetch,
    effect="network",
    target=lambda args: canonical(args.url),
)
