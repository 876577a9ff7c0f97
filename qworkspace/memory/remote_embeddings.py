"""Vectors from a provider's OpenAI-compatible endpoint `/embeddings`."""

from __future__ import annotations

import base64
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from qworkspace.base.clock import Clock
from qworkspace.base.tasks import SingleFlight, Threads
from qworkspace.config.models import EmbeddingConfig, ProviderConfig, is_loopback
from qworkspace.errors import ModelError

if TYPE_CHECKING:
    import httpx2
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

ADDRESSES = {
    "openai": "https://api.openai.com/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "ollama": "http://127.0.0.1:11434/v1",
}
ATTEMPTS = 4
FIRST_PAUSE = 1.0  # seconds, doubled with each try
LONGEST_PAUSE = 60.0  # a provider that wants more is given up on; the error says when to come again
LONGEST = 6_000  # characters of a text; the usual limit is 8,192 tokens
MOST_AT_ONCE = 128  # texts; a larger answer would hold the interpreter for too long while it is parsed
SHORTENED = 3  # how often a single text that is refused is halved
QUESTIONS_KEPT = 64
LONGEST_REASON = 300
_TRY_AGAIN = frozenset({408, 409, 425, 429})
_TOO_MUCH = frozenset({400, 413, 422})


def address_of(provider: ProviderConfig) -> str | None:
    """The base URL of its OpenAI-compatible endpoints; None when its type has none."""
    standard = ADDRESSES.get(provider.type)
    return None if standard is None else (provider.base_url or standard).rstrip("/")


class RemoteEmbedder:
    """A provider's embedding model. A batch that is refused as too large is halved; text that is too long is cut."""

    strong = True
    ready = True

    def __init__(self, config: EmbeddingConfig, provider: ProviderConfig, *, threads: Threads, clock: Clock) -> None:
        assert config.name, "a remote embedder has a model"
        self.id = "/".join([config.provider, config.name, *([str(config.dimensions)] if config.dimensions else [])])
        self.dimensions = config.dimensions or 0
        self._config = config
        self._provider = provider
        self._address = address_of(provider) or ""
        self._threads = threads
        self._clock = clock
        self._at_once = min(config.batch_size, MOST_AT_ONCE)
        self._client: httpx2.AsyncClient | None = None
        self._connecting: SingleFlight[httpx2.AsyncClient] = SingleFlight()
        self._closed = False
        self._questions: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row of length 1 for each text, of zeros for a blank one."""
        await self._connected()
        wanted = [index for index, text in enumerate(texts) if text.strip()]
        rows: list[NDArray[np.float32]] = []
        while len(rows) < len(wanted):
            batch = [_clean(texts[index]) for index in wanted[len(rows) : len(rows) + self._at_once]]
            rows.extend(await self._embed(batch))
        return await self._threads.run(_placed, len(texts), wanted, rows, self.dimensions)

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question, in one try; the last ones are kept."""
        known = self._questions.get(text)
        if known is not None:
            self._questions.move_to_end(text)
            return known
        await self._connected()
        if not text.strip():
            blank: NDArray[np.float32] = (await self._threads.run(_placed, 1, [], [], self.dimensions))[0]
            return blank
        vector = (await self._embed([_clean(text)], attempts=1))[0]
        self._questions[text] = vector
        if len(self._questions) > QUESTIONS_KEPT:
            self._questions.popitem(last=False)
        return vector

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _embed(self, batch: list[str], *, attempts: int = ATTEMPTS) -> list[NDArray[np.float32]]:
        shortened = 0
        while True:
            try:
                return await self._with_retries(batch, attempts)
            except ModelError as error:
                if error.status not in _TOO_MUCH or shortened == SHORTENED:
                    raise
            if len(batch) > 1:
                half = (len(batch) + 1) // 2
                found = await self._embed(batch[:half], attempts=attempts)
                self._at_once = min(self._at_once, half)
                return found + await self._embed(batch[half:], attempts=attempts)
            shortened += 1
            batch = [batch[0][: max(1, len(batch[0]) // 2)]]

    async def _with_retries(self, batch: list[str], attempts: int) -> list[NDArray[np.float32]]:
        tries = 0
        while True:
            tries += 1
            try:
                return await self._request(batch)
            except ModelError as error:
                pause = max(FIRST_PAUSE * 2.0 ** (tries - 1), error.retry_after or 0.0)
                if not error.retryable or tries >= attempts or pause > LONGEST_PAUSE:
                    raise
                logger.info("%s; trying again in %.0f s", error.message, pause)
            await self._clock.sleep(pause)

    async def _request(self, batch: list[str]) -> list[NDArray[np.float32]]:
        import httpx2  # heavy; `_connected` has imported it in a thread

        client = await self._connected()
        body: dict[str, Any] = {"model": self._config.name, "input": batch, "encoding_format": self._encoding}
        if self._config.dimensions:
            body["dimensions"] = self._config.dimensions
        try:
            answer = await client.post(f"{self._address}/embeddings", json=body)
        except httpx2.TimeoutException as error:
            raise self._error("no answer in time", code="model_timeout", retryable=True) from error
        except httpx2.TransportError as error:
            reason = f"cannot reach the provider: {error}"
            raise self._error(reason, code="model_unreachable", retryable=True) from error
        if answer.status_code != 200:
            raise self._refused(answer)
        try:
            vectors = await self._threads.run(_vectors, answer.content, len(batch))
        except (ValueError, KeyError, TypeError) as error:
            raise self._error(f"the provider's answer makes no sense: {error}") from error
        return self._checked(vectors)

    def _checked(self, vectors: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        length = vectors[0].shape[0]
        if self.dimensions and length != self.dimensions:
            raise self._error(f"its vectors have {length} numbers, not {self.dimensions}; check embedding.dimensions")
        self.dimensions = length
        return vectors

    def _refused(self, answer: httpx2.Response) -> ModelError:
        status = answer.status_code
        what = "the provider refused the request"
        if status in (401, 403):
            what = f"the provider refused the key; check providers.{self._config.provider}.api_key"
        elif status == 404:
            what = "the provider does not have this model, or no endpoint /embeddings"
        elif status == 429:
            what = "too many requests"
        return self._error(
            f"{what} ({status}): {_reason(answer.text)}",
            status=status,
            retryable=status in _TRY_AGAIN or status >= 500,
            retry_after=_retry_after(answer.headers.get("retry-after"), self._clock),
        )

    def _error(self, reason: str, **facts: Any) -> ModelError:
        key = self._key
        return ModelError(f"{self.id}: {reason.replace(key, '••••••') if key else reason}", **facts)

    @property
    def _key(self) -> str:
        key = self._provider.api_key
        return key.get_secret_value() if key is not None else ""

    @property
    def _encoding(self) -> str:
        """Packed vectors are a third of the text, but not every compatible server knows them."""
        return "base64" if urlsplit(self._address).hostname == "api.openai.com" else "float"

    async def _connected(self) -> httpx2.AsyncClient:
        if self._client is not None:
            return self._client
        missing = self._provider.missing_variables()
        if missing:
            reason = f"${{{missing[0]}}} is neither in the environment nor in secrets.json"
            raise ModelError(f"{self.id}: {reason}", code="no_key")  # not masked: the name stands where the key would
        return await self._connecting.run("", self._connect)

    async def _connect(self) -> httpx2.AsyncClient:
        client = await self._threads.run(partial(_client, self._provider, self._address, self._key))
        if self._closed:
            await client.aclose()
            raise self._error("the daemon is stopping")
        self._client = client
        return client


def _client(provider: ProviderConfig, address: str, key: str) -> httpx2.AsyncClient:
    """Reads certificates from disk and imports: for a thread."""
    import httpx2  # heavy
    import numpy as np  # noqa: F401  heavy; the answers need it

    where = urlsplit(address)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    headers |= {name.lower(): value.get_secret_value() for name, value in provider.headers.items()}
    return httpx2.AsyncClient(
        headers=headers,
        verify=where.scheme == "https",
        trust_env=not is_loopback(where.hostname or ""),
        timeout=httpx2.Timeout(provider.timeouts.first_token, connect=provider.timeouts.connect),
        follow_redirects=True,
    )


def _clean(text: str) -> str:
    return text[:LONGEST].encode("utf-8", "replace").decode("utf-8")


def _vectors(content: bytes, count: int) -> list[NDArray[np.float32]]:
    """The vectors of an answer in the order of the texts, each of length 1."""
    import numpy as np  # heavy

    data = sorted(json.loads(content)["data"], key=lambda item: item.get("index", 0))
    if len(data) != count:
        raise ValueError(f"{len(data)} vectors for {count} texts")
    rows = []
    for item in data:
        value = item["embedding"]
        packed = isinstance(value, str)
        row = np.frombuffer(base64.b64decode(value), "<f4") if packed else np.asarray(value, np.float32)
        norm = float(np.linalg.norm(row))
        if row.ndim != 1 or not row.size or not np.isfinite(norm):
            raise ValueError("a vector is no list of numbers")
        rows.append((row / (norm or 1.0)).astype(np.float32))
    if len({row.shape for row in rows}) != 1:
        raise ValueError("vectors of different lengths")
    return rows


def _placed(
    count: int, places: Sequence[int], rows: Sequence[NDArray[np.float32]], dimensions: int
) -> NDArray[np.float32]:
    """A table of `count` rows with these at their places, zeros elsewhere."""
    import numpy as np  # heavy

    table = np.zeros((count, dimensions), np.float32)
    if places:
        table[list(places)] = rows
    return table


def _reason(text: str) -> str:
    """The provider's own sentence, without what surrounds it."""
    try:
        said = json.loads(text)
        error = said.get("error", said)
        text = error if isinstance(error, str) else str(error.get("message", text))
    except (ValueError, AttributeError):
        pass
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"


def _retry_after(value: str | None, clock: Clock) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - clock.now()).total_seconds())
    except (ValueError, TypeError):
        return None
