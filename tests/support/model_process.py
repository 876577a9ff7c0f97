"""The scripted model server as a process of its own, for tests that are not asynchronous."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Any, Self

import httpx


class ModelProcess:
    """Runs while the context lasts; `url` is the base URL for a provider. See `tests/support/model_server.py`."""

    def __init__(self) -> None:
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.model_server"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http://"), "the model server did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def script(self, replies: list[dict[str, Any]] | None) -> None:
        """What it answers, one reply per request; None for the default, which does what the message says."""
        httpx.post(self._control("/script"), json={"replies": replies}, timeout=5).raise_for_status()

    def requests(self) -> list[dict[str, Any]]:
        """The chat requests that came, oldest first."""
        found: Any = httpx.get(self._control("/requests"), timeout=5).raise_for_status().json()
        return list(found["requests"] if isinstance(found, dict) else found)

    def _control(self, path: str) -> str:
        return self.url.removesuffix("/v1") + path
