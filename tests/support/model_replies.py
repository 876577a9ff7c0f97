"""What a scripted model answers: replies as data, and the answer when nothing was scripted."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

End = Literal["finish", "stall", "drop"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `args` may be raw text, to send what is no JSON."""

    name: str
    args: dict[str, Any] | str = field(default_factory=dict)
    id: str = ""

    @property
    def arguments(self) -> str:
        return self.args if isinstance(self.args, str) else json.dumps(self.args, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: reasoning, then text, then calls; `end` says what happens after that.

    `chunk` is the size of a piece of text in characters (0: one piece per word), `fragment` that of a piece of a call's
    arguments, `delay` the seconds before each piece, `first_delay` those before the headers. `stall` sends nothing more
    and keeps the line, `drop` cuts it.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    chunk: int = 0
    fragment: int = 12
    delay: float = 0.0
    first_delay: float = 0.0
    end: End = "finish"
    finish_reason: str = ""
    usage: tuple[int, int] | None = None
    status: int = 200
    error_code: str = ""
    message: str = ""
    retry_after: str | None = None
    headers_first: bool = True

    @property
    def pieces(self) -> list[str]:
        """The text as it is streamed."""
        if self.chunk:
            return [self.text[at : at + self.chunk] for at in range(0, len(self.text), self.chunk)]
        return re.findall(r"\s*\S+|\s+\Z", self.text)


def text(words: str, **options: Any) -> Reply:
    """Answer with text."""
    return Reply(text=words, **options)


def calls(*wanted: Call, **options: Any) -> Reply:
    """Answer with tool calls."""
    return Reply(calls=wanted, **options)


def error(status: int, code: str = "", message: str = "", *, retry_after: str | None = None) -> Reply:
    """Answer with an error status."""
    return Reply(status=status, error_code=code, message=message, retry_after=retry_after)


def too_long() -> Reply:
    """The error of a prompt that exceeds the window."""
    return error(400, "context_length_exceeded", "This model's maximum context length is 8192 tokens.")


def stall(words: str = "", *, headers: bool = True) -> Reply:
    """Say `words`, then nothing more; without `headers` not even the status line comes."""
    return Reply(text=words, end="stall", headers_first=headers)


def drop(words: str = "") -> Reply:
    """Say `words`, then cut the connection."""
    return Reply(text=words, end="drop")


def empty() -> Reply:
    """Finish without having said anything."""
    return Reply()


def from_json(data: dict[str, Any]) -> Reply:
    """A reply as `POST /script` takes it: the fields of `Reply`, calls as objects."""
    fields = dict(data)
    if "calls" in fields:
        fields["calls"] = tuple(Call(**call) for call in fields["calls"])
    if fields.get("usage") is not None:
        fields["usage"] = tuple(fields["usage"])
    return Reply(**fields)


_DIRECTIVE = re.compile(
    r"\[\[(tool:\w+|parallel|slow|long|error|stall|drop|think)\s*:?\s*(\{.*?\}|[\d.]*)\s*\]\]", re.DOTALL
)


def default_reply(body: dict[str, Any]) -> Reply:
    """Echo the last user text, steered by directives in it.

    `[[tool:NAME {json}]]` calls a tool first, several of them one after another (`[[parallel]]`: at once);
    `[[slow:0.05]]` waits before each word, `[[long:500]]` answers with so many words, `[[think]]` reasons first,
    `[[error:500]]`, `[[stall]]` and `[[drop]]` fail, after the tools. Who asks for facts to remember gets none.
    """
    if "long-term memory of an assistant" in plain(body["messages"][0]["content"]):
        return Reply(text='{"facts": []}')
    said, results = _last_exchange(body["messages"])
    directives = [(m[1], m[2]) for m in _DIRECTIVE.finditer(said)]
    wanted = [_call(name[5:], argument) for name, argument in directives if name.startswith("tool:")]
    flags = {name: argument for name, argument in directives if not name.startswith("tool:")}
    if len(results) < len(wanted):
        now = wanted if "parallel" in flags else wanted[len(results) : len(results) + 1]
        return Reply(calls=tuple(now))
    if "error" in flags:
        return error(int(flags["error"] or 500))
    words = "echo: " + " ".join(_DIRECTIVE.sub("", said).split())
    if results:
        words += " | " + results[-1]
    if "long" in flags:
        words = " ".join(f"word{n}" for n in range(int(flags["long"] or 100)))
    end: End = "stall" if "stall" in flags else "drop" if "drop" in flags else "finish"
    reasoning = "thinking about it" if "think" in flags else ""
    return Reply(text=words, delay=float(flags.get("slow") or 0), end=end, reasoning=reasoning)


def _call(name: str, argument: str) -> Call:
    return Call(name, argument or "{}")


def _last_exchange(messages: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The last user text and the tool results after it."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    if last < 0:
        return "", []
    return said(messages[last]["content"]), [plain(m["content"]) for m in messages[last + 1 :] if m["role"] == "tool"]


def said(content: Any) -> str:
    """What the person wrote, without what was looked up for it."""
    return plain(content).partition("<context>")[0].rstrip()


def plain(content: Any) -> str:
    """The text of a message's content, parts joined."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or [] if part.get("type") == "text")
