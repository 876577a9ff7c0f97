"""The vector stores of a daemon: which one an agent gets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from qworkspace.config.models import MemoryConfig

if TYPE_CHECKING:
    from qworkspace.memory.chroma import ChromaHome
    from qworkspace.memory.vectors import VectorStore


class VectorStores:
    """Opens the store that an agent's configuration names. Chroma has one client for each place, made on first need.

    `directory` is where the home's own Chroma lives: `.daemon/chroma`. `owner` tells homes on one server apart.
    """

    def __init__(self, directory: Path, *, owner: str = "") -> None:
        self._directory = directory
        self._owner = owner
        self._lock = threading.Lock()
        self._places: dict[str | None, ChromaHome] = {}

    def open(self, settings: MemoryConfig, *, agent_id: str, embedder_id: str, dimensions: int) -> VectorStore:
        """The agent's vectors by that embedder. Blocks: run it in a thread.

        Raises `Unavailable` when chromadb is not installed, or its files or server cannot be used.
        """
        if settings.vector_store == "builtin":
            from qworkspace.memory.vectors import BuiltinVectors  # heavy: numpy

            return BuiltinVectors(dimensions)
        return self._place(settings.chroma_url).open(agent_id, embedder_id)

    def close(self) -> None:
        """End the clients of Chroma. Idempotent. Blocks."""
        with self._lock:
            while self._places:
                self._places.popitem()[1].close()

    def _place(self, url: str | None) -> ChromaHome:
        with self._lock:
            if url not in self._places:
                from qworkspace.memory.chroma import ChromaHome  # heavy: numpy

                owner = self._owner if url is not None else ""
                self._places[url] = ChromaHome(self._directory, url=url, owner=owner)
            return self._places[url]
