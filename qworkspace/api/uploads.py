"""Files for a message: taken as they come, kept in the agent's `files/uploads/` under a name that is free."""

from __future__ import annotations

import mimetypes
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote

from starlette.types import ASGIApp

from qworkspace.api.forms import FileBegins, files
from qworkspace.api.operations import Call, Operation, json_answer
from qworkspace.api.schemas import UploadFacts, UploadList, UploadQuery
from qworkspace.base.files import Root, make_directory, storing, sync_directory
from qworkspace.base.tasks import Threads
from qworkspace.errors import InvalidInput, InvalidPath

FILES = "files"  # a link inside of the workspace must not lead from here to what controls the agent
FOLDER = f"{FILES}/uploads"
MOST_FILES = 20
CHUNK = 256 * 1024
NAMES_TRIED = 1000


async def upload(call: Call) -> ASGIApp:
    """Take the files of a form (multipart/form-data), or one file as the body itself (`?name=`)."""
    agent = await call.agent()
    uploads = Uploads(agent.directory, call.api.threads)
    try:
        if call.request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            await _take_form(call, uploads)
        else:
            await _take_body(call, uploads)
        return json_answer(UploadList(files=await uploads.keep()), 201)
    finally:
        await uploads.discard()


async def _take_form(call: Call, uploads: Uploads) -> None:
    async for item in files(call.request):
        if isinstance(item, FileBegins):
            await uploads.begin(item.name, item.media_type)
        else:
            await uploads.write(item)


async def _take_body(call: Call, uploads: Uploads) -> None:
    name = call.query.name or unquote(call.request.headers.get("x-file-name", ""))
    if not name:
        raise InvalidInput("say what the file is called: ?name=… or the header X-File-Name", field="name")
    await uploads.begin(name, call.request.headers.get("content-type", "").partition(";")[0].strip())
    async for data in call.request.stream():
        await uploads.write(data)


@dataclass(slots=True)
class Arriving:
    """A file under its temporary name."""

    name: str
    media_type: str
    temporary: Path
    file: BinaryIO
    size: int = 0
    buffer: bytearray = field(default_factory=bytearray)


class Uploads:
    """The files of one request, one after the other: there only after `keep`; `discard` removes the rest."""

    def __init__(self, workspace: Path, threads: Threads) -> None:
        self._threads = threads
        self._root = Root(workspace)
        self._arriving: list[Arriving] = []

    async def begin(self, name: str, media_type: str = "") -> None:
        """What is written from now on is the file `name`; `InvalidPath` for a name that is none."""
        if len(self._arriving) >= MOST_FILES:
            raise InvalidInput(f"a request may carry {MOST_FILES} files at most", field="file")
        self._arriving.append(await self._threads.run(self._open, file_name(name), media_type))

    async def write(self, data: bytes) -> None:
        """Add to the file; small pieces are collected."""
        arriving = self._arriving[-1]
        arriving.buffer += data
        arriving.size += len(data)
        if len(arriving.buffer) >= CHUNK:
            await self._threads.run(_append, arriving)

    async def keep(self) -> list[UploadFacts]:
        """Every file under its own name, or under one like `name-2.txt` when that is taken; durable."""
        if not self._arriving:
            raise InvalidInput("there is no file in the request", field="file")
        kept = [await self._threads.run(self._place, arriving) for arriving in self._arriving]
        self._arriving.clear()
        return kept

    async def discard(self) -> None:
        """Remove what was not kept."""
        for arriving in self._arriving:
            await self._threads.run(_remove, arriving)
        self._arriving.clear()

    def _open(self, name: str, media_type: str) -> Arriving:
        place = self._root.resolve(f"{FOLDER}/{name}")
        if not self._root.relative(place).startswith(f"{FILES}/"):
            raise InvalidPath(f"{FOLDER!r} is a link to a place that takes no uploads", field="name")
        make_directory(place.parent)
        temporary = place.with_name(f".{secrets.token_hex(8)}.part")
        with storing(place):
            file = temporary.open("xb")
        return Arriving(name, media_type or guess(name), temporary, file)

    def _place(self, arriving: Arriving) -> UploadFacts:
        _append(arriving)
        with storing(arriving.temporary):
            os.fsync(arriving.file.fileno())
            arriving.file.close()
            place = _free_place(arriving.temporary.parent, arriving.name)
            arriving.temporary.replace(place)
            sync_directory(place.parent)
        return UploadFacts(
            path=self._root.relative(place), name=place.name, media_type=arriving.media_type, size=arriving.size
        )


def _free_place(directory: Path, name: str) -> Path:
    """Take the first free name, so that nothing that exists is replaced, even by two uploads at once."""
    stem, suffix = PurePosixPath(name).stem, PurePosixPath(name).suffix
    for number in range(1, NAMES_TRIED):
        place = directory / (name if number == 1 else f"{stem}-{number}{suffix}")
        try:
            place.touch(exist_ok=False)
        except FileExistsError:
            continue
        return place
    raise InvalidInput(f"there are too many files called {name!r}; choose another name", field="name")


def _append(arriving: Arriving) -> None:
    with storing(arriving.temporary):
        arriving.file.write(arriving.buffer)
    arriving.buffer.clear()


def _remove(arriving: Arriving) -> None:
    arriving.file.close()
    arriving.temporary.unlink(missing_ok=True)


def file_name(name: str) -> str:
    """The last component of what a client calls its file; `InvalidPath` when nothing is left or it is hidden."""
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    if not last or last.startswith("."):
        raise InvalidPath(f"{name[:100]!r} is not a file name that can be kept", field="name")
    return last


def guess(name: str) -> str:
    """A media type by the name."""
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


OPERATIONS = (
    Operation(
        "POST",
        "/api/agents/{agent_id}/uploads",
        upload,
        "Files for a message: a form, or one file as the body with ?name=",
        "chat",
        query=UploadQuery,
        answer=UploadList,
        status=201,
    ),
)
