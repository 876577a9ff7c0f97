"""`/v1/embeddings` of the scripted model server, as strict as the strictest provider."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response


@dataclass(frozen=True, slots=True)
class Trouble:
    """What the next request meets instead of an answer, or, with status 200, before it."""

    status: int = 200
    delay: float = 0.0
    retry_after: str | None = None


@dataclass(slots=True)
class ScriptedEmbeddings:
    """Vectors of the words' hashes. `requests` are the bodies as they came, `embedded` counts the texts answered."""

    api_key: str | None = None
    models: tuple[str, ...] = ("e", "scripted-embedding")
    most: int = 64
    longest: int = 8_000
    size: int = 64
    troubles: list[Trouble] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    embedded: int = 0

    async def __call__(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        trouble = self.troubles.pop(0) if self.troubles else Trouble()
        await asyncio.sleep(trouble.delay)
        if trouble.status != 200:
            headers = {"retry-after": trouble.retry_after} if trouble.retry_after else {}
            return _refusal(trouble.status, "scripted failure", headers)
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return _refusal(401, "Incorrect API key provided.")
        texts = [body["input"]] if isinstance(body.get("input"), str) else body.get("input")
        wrong = self._wrong(body, texts)
        return wrong if wrong is not None else self._answer(body, texts)

    def _wrong(self, body: dict[str, Any], texts: Any) -> Response | None:
        if body.get("model") not in self.models:
            return _refusal(404, f"The model {body.get('model')!r} does not exist.")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            return _refusal(400, "'$.input' is invalid: it must hold texts, none of them empty.")
        if len(texts) > self.most:
            return _refusal(400, f"batch size is invalid, it should not be larger than {self.most}.")
        if any(len(text) > self.longest for text in texts):
            return _refusal(400, f"This model's maximum context length is {self.longest} characters.")
        return None

    def _answer(self, body: dict[str, Any], texts: list[str]) -> Response:
        self.embedded += len(texts)
        encode = body.get("encoding_format") == "base64"
        vectors = [embedding(words, body.get("dimensions") or self.size) for words in texts]
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if encode else vector}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": sum(map(len, texts)) // 4, "total_tokens": sum(map(len, texts)) // 4}
        return JSONResponse({"object": "list", "model": body.get("model"), "data": data, "usage": usage})


def embedding(words: str, size: int = 64) -> list[float]:
    """A unit vector made of the words' hashes: equal words give near vectors."""
    vector = [0.0] * size
    for word in words.lower().split() or [""]:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        vector[digest[0] % size] += 1.0 if digest[1] & 1 else -1.0
        vector[digest[2] % size] += 0.5
    norm = sum(value * value for value in vector) ** 0.5 or 1.0
    return [value / norm for value in vector]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status, headers)
