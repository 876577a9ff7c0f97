"""Vectors in Chroma: a directory of the home, or a server.

Heavy: imports numpy; chromadb, an extra, is imported when the first store is opened.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray

from qworkspace.errors import Unavailable
from qworkspace.memory.vectors import NEAREST, Near, moved

EXTRA = "pip install 'qworkspace[chroma]'"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # of a server that is busy with a large batch; nobody's thread waits longer
_PAGE = 5_000
_FEW = 1_000  # chunks of a filter whose vectors are fetched; with more, what Chroma finds is filtered
_NOTHING = Near(np.empty(0, np.int64), np.empty(0, np.float32))
_HNSW = {"space": "ip", "ef_construction": 100, "ef_search": 200}


class ChromaHome:
    """The one client of a daemon for one place: many clients on a directory are hundreds of threads and files.

    A directory belongs to one process. The client is made when the first store is opened.
    """

    def __init__(self, directory: Path, *, url: str | None = None, owner: str = "") -> None:
        self._directory = directory
        self._url = url
        self._owner = owner
        self._lock = threading.Lock()
        self._client: Any = None

    def open(self, agent_id: str, embedder_id: str) -> ChromaVectors:
        """The agent's vectors by that embedder. Those of its former embedders are deleted. Blocks."""
        mine = f"qw-{_short(f'{self._owner}/{agent_id}')}-"
        name = mine + _short(embedder_id)
        with self._lock, self._named_errors():
            client = self._connected()
            most = client.get_max_batch_size()
            for other in _collections(client):
                if other.startswith(mine) and other != name:
                    client.delete_collection(other)

        def make() -> Any:
            return client.get_or_create_collection(
                name,
                embedding_function=None,
                configuration={"hnsw": _HNSW},
                metadata={"agent": agent_id, "embedder": embedder_id},
            )

        def drop() -> None:
            client.delete_collection(name)

        return ChromaVectors(make, drop, most=most, errors=self._named_errors)

    def close(self) -> None:
        """End the client with its threads. Idempotent. Blocks."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _connected(self) -> Any:
        if self._client is None:
            try:
                import chromadb  # heavy and optional
                from chromadb.config import Settings
            except ImportError as error:
                raise Unavailable(
                    f'memory.vector_store is "chroma", and chromadb is not installed: {EXTRA}', code="missing_extra"
                ) from error
            options: dict[str, Any] = {"_env_file": None, "anonymized_telemetry": False}  # else it reads ./.env
            settings = Settings(**options)
            if self._url is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._client = chromadb.PersistentClient(self._directory, settings=settings)
            else:
                self._client = _of_server(chromadb, self._url, settings)
        return self._client

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Failures of Chroma as `Unavailable`, with the place and what to do."""
        try:
            yield
        except Unavailable:
            raise
        except BaseException as error:
            if not _is_chromas(error):
                raise
            what = (
                f"is the server at {self._url} running?"
                if self._url
                else f"if this persists, delete {self._directory}: it is filled again from the notes"
            )
            raise Unavailable(f"Chroma failed: {error}; {what}", code="chroma_failed") from error


class ChromaVectors:
    """One agent's collection. What it holds is kept beyond closing."""

    def __init__(
        self, make: Callable[[], Any], drop: Callable[[], None], *, most: int, errors: Callable[[], Any]
    ) -> None:
        self._make = make
        self._drop = drop
        self._most = most
        self._errors = errors
        with errors():
            self._collection = make()

    def stored(self) -> Mapping[int, str]:
        found: dict[int, str] = {}
        with self._errors():
            while page := self._collection.get(include=["metadatas"], limit=_PAGE, offset=len(found))["metadatas"]:
                found |= {int(row["no"]): str(row["hash"]) for row in page}
                if len(page) < _PAGE:
                    break
        return found

    def add(self, items: Sequence[tuple[int, str]], vectors: NDArray[np.floating[Any]]) -> None:
        rows = np.asarray(vectors, np.float32)
        with self._errors():
            for start in range(0, len(items), self._most):
                part = items[start : start + self._most]
                self._collection.upsert(
                    ids=[str(no) for no, _ in part],
                    embeddings=rows[start : start + len(part)],
                    metadatas=[{"no": no, "hash": digest} for no, digest in part],
                )

    def remove(self, chunk_nos: Collection[int]) -> None:
        names = [str(int(no)) for no in chunk_nos]
        with self._errors():
            for start in range(0, len(names), self._most):
                self._collection.delete(ids=names[start : start + self._most])

    def search(
        self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None = None, *, feedback: float = 0.0
    ) -> Near:
        with self._errors():
            if feedback:
                nearest = self._search(vector, NEAREST, allowed)
                vector = moved(vector, self._rows(nearest.chunk_nos)[1], feedback)
            return self._search(vector, k, allowed)

    def _search(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None) -> Near:
        if allowed is None:
            return self._query(vector, min(k, len(self)))
        if len(allowed) <= _FEW:
            return self._compared(vector, k, allowed)
        return self._filtered(vector, k, allowed)

    def similarities(self, vector: NDArray[np.float32], *, feedback: float = 0.0) -> Near | None:
        return None

    def clear(self) -> None:
        with self._errors():
            self._drop()
            self._collection = self._make()

    def close(self) -> None:
        """Nothing to free: the client belongs to the home."""

    def __len__(self) -> int:
        with self._errors():
            return int(self._collection.count())

    def _filtered(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64]) -> Near:
        """Ask for more and more until enough of them are allowed: an id filter of thousands is slower than that."""
        total, wanted = len(self), k * 2
        while True:
            near = self._query(vector, min(wanted, total))
            fits = np.flatnonzero(np.isin(near.chunk_nos, allowed))[:k]
            if len(fits) == k or wanted >= total:
                return Near(near.chunk_nos[fits], near.similarities[fits])
            wanted *= 4

    def _compared(self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64]) -> Near:
        """Fetched and compared here: Chroma's own id filter fails on a number that it does not hold (yet)."""
        nos, rows = self._rows(allowed)
        if not len(nos):
            return _NOTHING
        similarities = rows @ np.asarray(vector, np.float32)
        best = np.argsort(-similarities, kind="stable")[:k]
        return Near(nos[best], similarities[best])

    def _rows(self, chunk_nos: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(numbers, vectors) of those that it holds."""
        if not len(chunk_nos):
            return _NOTHING.chunk_nos, np.empty((0, 0), np.float32)
        found = self._collection.get(ids=[str(int(no)) for no in chunk_nos], include=["embeddings"])
        return np.array([int(name) for name in found["ids"]], np.int64), np.asarray(found["embeddings"], np.float32)

    def _query(self, vector: NDArray[np.float32], k: int) -> Near:
        if k < 1:
            return _NOTHING
        found = self._collection.query(
            query_embeddings=[np.asarray(vector, np.float32)], n_results=k, include=["distances"]
        )
        nos = np.array([int(name) for name in found["ids"][0]], np.int64)
        return Near(nos, 1.0 - np.array(found["distances"][0], np.float32))


def _of_server(chromadb: Any, url: str, settings: Any) -> Any:
    """A client that does not wait for ever: Chroma's own has no limit, and none that could be set."""
    where = urlsplit(url)
    ssl = where.scheme == "https"
    host, port = where.hostname or "", where.port or (443 if ssl else 8000)
    httpx.get(f"{where.scheme}://{where.netloc.rpartition('@')[2]}/api/v2/heartbeat", timeout=CONNECT_SECONDS)
    client = chromadb.HttpClient(host, port, ssl=ssl, settings=settings)
    client._server._session.timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    return client


def _collections(client: Any) -> list[str]:
    names: list[str] = []
    while page := client.list_collections(limit=_PAGE, offset=len(names)):
        names += [collection.name for collection in page]
        if len(page) < _PAGE:
            break
    return names


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _is_chromas(error: BaseException) -> bool:
    """Whether it comes from Chroma: its errors, its server's connection, its files, a panic of its Rust part."""
    name = type(error).__module__
    return isinstance(error, ValueError | OSError | httpx.HTTPError) or name.startswith(("chromadb", "pyo3_runtime"))
