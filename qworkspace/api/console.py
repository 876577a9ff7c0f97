"""The console's static files: public, and allowed to load nothing that this daemon does not serve."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qworkspace.api.guard import PAGE_POLICY
from qworkspace.base.files import Root
from qworkspace.base.tasks import Threads
from qworkspace.errors import InvalidPath, QworkspaceError

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
}
FOLDER = Path(__file__).parent.parent / "console"
IMMUTABLE = "assets/"  # what is built into that folder carries its hash in its name


@dataclass(frozen=True, slots=True)
class _File:
    changed: int
    content: bytes
    etag: str


class Console:
    """Serves one folder, `/` being its index.html. Read once per change of a file."""

    def __init__(self, threads: Threads, folder: Path = FOLDER) -> None:
        self._threads = threads
        self._root = Root(folder)
        self._files: dict[Path, _File] = {}

    @staticmethod
    def serves(method: str, path: str) -> bool:
        """Whether an address can only mean a static file: those need no token."""
        if method not in ("GET", "HEAD") or path.startswith(("/api/", "/v1/")):
            return False
        return path == "/" or PurePosixPath(path).suffix in TYPES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].lstrip("/") or "index.html"
        if not self.serves(scope["method"], scope["path"]):
            raise _nothing()
        file = await self._threads.run(self._read, name)
        fresh = Request(scope).headers.get("if-none-match") == file.etag
        headers = {
            "content-type": TYPES[PurePosixPath(name).suffix],
            "etag": file.etag,
            "cache-control": "max-age=31536000, immutable" if name.startswith(IMMUTABLE) else "no-cache",
            "content-security-policy": PAGE_POLICY.decode(),
        }
        answer = Response(None if fresh else file.content, 304 if fresh else 200, headers)
        await answer(scope, receive, send)

    def _read(self, name: str) -> _File:
        try:
            path = self._root.resolve(name)
            changed = path.stat().st_mtime_ns
            known = self._files.get(path)
            if known is None or known.changed != changed:
                content = path.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
                known = self._files[path] = _File(changed, content, etag)
        except (InvalidPath, FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise _nothing() from None
        return known


def _nothing() -> QworkspaceError:
    return QworkspaceError("there is nothing at this address", code="not_found")
