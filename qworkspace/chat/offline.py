"""The built-in `offline` provider: no model, no network, an honest answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from qworkspace.chat.context import DEFAULT_WINDOW, estimate_message, estimate_prompt
from qworkspace.chat.wire import Finished, ModelEvent, Prompt, TextDelta
from qworkspace.config.models import ModelRef, Price, TimeoutsConfig
from qworkspace.sessions.models import Message, TextPart, Usage

OFFLINE = ModelRef(provider="offline", name="offline")
HITS_SHOWN = 5
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_GREETING = re.compile(
    r"\W*(hi+|hello|hey|good (morning|evening|afternoon|day)|greetings|howdy"
    r"|你好|您好|嗨|哈喽|早上好|下午好|晚上好|在吗)( there| qworkspace)?\W*\Z",
    re.IGNORECASE,
)
_THANKS = re.compile(r"\W*(thanks?( you)?|thx|cheers|谢谢|多谢|感谢)\W*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hit:
    """Something found in the agent's memory; `place` is where a person finds it again."""

    place: str
    text: str


Search = Callable[[str], Awaitable[Sequence[Hit]]]


@dataclass(frozen=True, slots=True)
class _Words:
    hello: str
    welcome: str
    no_model: str
    kept: str
    found: str
    how: str


_EXAMPLE = """```json
"providers": {
  "openai": {"type": "openai", "api_key": "${OPENAI_API_KEY}", "models": ["gpt-5-mini"]},
  "local": {"type": "ollama", "models": ["qwen3:8b"]}
},
"default_model": "openai/gpt-5-mini"
```"""
_ENGLISH = _Words(
    hello="Hello! I am here, but no language model is connected yet, so this is the built-in offline answer.",
    welcome="You are welcome.",
    no_model="This is the built-in offline answer: no language model is connected yet, so I cannot answer that.",
    kept="Your message is stored, and slash commands work (/help lists them).",
    found="This is what my memory holds about it:",
    how=(
        "To connect a model, add a provider to config.json, for example\n\n"
        f"{_EXAMPLE}\n\n"
        "The key itself belongs into the environment or into secrets.json. `qworkspace models list` shows what can "
        "be reached, `qworkspace models test` tries it."
    ),
)
_CHINESE = _Words(
    hello="你好！我在，不过还没有连接语言模型，所以这是内置的离线回答。",
    welcome="不客气。",
    no_model="这是内置的离线回答：还没有连接语言模型，因此我无法回答这个问题。",
    kept="你的消息已经保存，斜杠命令可以使用（输入 /help 查看）。",
    found="我的记忆里有这些相关内容：",
    how=(
        "要连接模型，请在 config.json 中添加一个 provider，例如\n\n"
        f"{_EXAMPLE}\n\n"
        "密钥放在环境变量或 secrets.json 中。`qworkspace models list` 列出可用的模型，"
        "`qworkspace models test` 进行测试。"
    ),
)


class OfflineModel:
    """`ChatModel` that answers from what is at hand. `search` finds memories for a question."""

    def __init__(self, ref: ModelRef = OFFLINE, *, search: Search | None = None) -> None:
        self.ref = ref
        self.context_window = DEFAULT_WINDOW
        self.price: Price | None = None
        self.vision = False
        self.timeouts = TimeoutsConfig()
        self._search = search

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        """The answer, a paragraph at a time."""
        question = _question(prompt.messages)
        text = answer(question, await self._looked_up(question))
        for piece in re.findall(r".+?(?:\n\n|\Z)", text, re.DOTALL):
            yield TextDelta(piece)
            await asyncio.sleep(0)
        message = Message(role="assistant", parts=(TextPart(text=text),))
        usage = Usage(
            input_tokens=estimate_prompt(prompt),
            output_tokens=estimate_message(message),
            requests=1,
            cost=0.0,
            estimated=True,
        )
        yield Finished(message, usage)

    async def _looked_up(self, question: str) -> Sequence[Hit]:
        return () if self._search is None or is_small_talk(question) else await self._search(question)


def is_small_talk(question: str) -> bool:
    """Whether nothing has to be looked up for it."""
    return _GREETING.match(question) is not None or _THANKS.match(question) is not None


def answer(question: str, hits: Sequence[Hit] = ()) -> str:
    """What is said without a model, in Chinese to who writes Chinese, else in English."""
    words = _CHINESE if _CJK.search(question) and not _KANA_OR_HANGUL.search(question) else _ENGLISH
    if _THANKS.match(question):
        return words.welcome
    if _GREETING.match(question):
        return f"{words.hello}\n\n{words.kept}\n\n{words.how}"
    if hits:
        found = "\n".join(f"- {' '.join(hit.text.split())} ({hit.place})" for hit in hits[:HITS_SHOWN])
        return f"{words.no_model}\n\n{words.found}\n\n{found}\n\n{words.how}"
    return f"{words.no_model} {words.kept}\n\n{words.how}"


def _question(messages: Sequence[Message]) -> str:
    """What the person wrote: the first text of the last message of theirs; later ones are context."""
    said = next((message.parts for message in reversed(messages) if message.role == "user"), ())
    return next((part.text for part in said if isinstance(part, TextPart)), "").strip()
