"""multipart/form-data as it arrives: the files of a form, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from qworkspace.errors import InvalidInput

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

ParseOptions = Callable[[str | bytes | None], tuple[bytes, dict[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class FileBegins:
    """What follows as bytes belongs to this file."""

    name: str
    media_type: str


async def files(request: Request) -> AsyncIterator[FileBegins | bytes]:
    """The parts that have a file name; other fields are passed over. `InvalidInput` for what is no such form."""
    from python_multipart import MultipartParser  # needed for uploads only
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import parse_options_header

    _, options = parse_options_header(request.headers.get("content-type"))
    found = _Found(parse_options_header)
    try:
        parser = MultipartParser(options.get(b"boundary", b""), found.callbacks())
        async for data in request.stream():
            parser.write(data)
            for item in found.take():
                yield item
        parser.finalize()
    except FormParserError as error:
        raise InvalidInput(f"the form does not parse: {error}", code="invalid_form") from None
    if not found.ended:
        raise InvalidInput("the form ends in the middle", code="invalid_form")


class _Found:
    """Collects what the parser finds in one piece of the body."""

    def __init__(self, parse_options_header: ParseOptions) -> None:
        self._options_of = parse_options_header
        self._items: list[FileBegins | bytes] = []
        self._field, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._is_file = False
        self.ended = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def take(self) -> list[FileBegins | bytes]:
        items, self._items = self._items, []
        return items

    def _begin(self) -> None:
        self._headers.clear()
        self._is_file = False

    def _header(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        _, options = self._options_of(self._headers.get(b"content-disposition"))
        name = options.get(b"filename")
        self._is_file = name is not None
        if name is not None:
            kind = self._headers.get(b"content-type", b"").partition(b";")[0].strip()
            self._items.append(FileBegins(name.decode("utf-8", "replace"), kind.decode("latin-1")))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._items.append(data[start:end])

    def _end(self) -> None:
        self.ended = True
