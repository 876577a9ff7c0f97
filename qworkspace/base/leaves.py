"""The rows that a damaged SQLite file holds, read from its leaf pages without the trees that lead to them.

The format is described in https://www.sqlite.org/fileformat2.html, sections 1.3, 1.5, 1.6 and 2.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Value = int | float | str | bytes | None
_MAGIC = b"SQLite format 3\0"
_TABLE_LEAF = 0x0D
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type -> bytes
_SCHEMA_KINDS = ("table", "index", "view", "trigger")


@dataclass(frozen=True, slots=True)
class LeafRow:
    """One row of some table with rowids; an INTEGER PRIMARY KEY stands in `rowid` and is None in `values`."""

    rowid: int
    values: Sequence[Value]


def leaf_rows(path: Path) -> Iterator[LeafRow]:
    """Every row that can be made out, of all tables, in the order of the pages; not those of freed pages."""
    data = path.read_bytes()
    sound = data.startswith(_MAGIC)
    size = int.from_bytes(data[16:18], "big") if sound else 4096
    pages = _Pages(data, size if size >= 512 and size & (size - 1) == 0 else 4096)
    freed = pages.freed() if sound else frozenset[int]()
    for number in range(2, pages.count + 1):  # the first page holds the schema
        if number not in freed and pages.page(number)[0] == _TABLE_LEAF:
            yield from pages.rows(number)


class _Pages:
    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size
        self.count = len(data) // size

    def page(self, number: int) -> bytes:
        """Pages count from 1."""
        if not 1 <= number <= self.count:
            raise IndexError(number)
        return self._data[(number - 1) * self._size : number * self._size]

    def freed(self) -> frozenset[int]:
        """The pages on the free list: what they hold was deleted."""
        found: set[int] = set()
        trunk = int.from_bytes(self._data[32:36], "big")
        while 1 < trunk <= self.count and trunk not in found:
            page = self.page(trunk)
            following, count = struct.unpack(">II", page[:8])
            leaves = min(count, self._size // 4 - 2)
            found |= {trunk, *struct.unpack(f">{leaves}I", page[8 : 8 + 4 * leaves])}
            trunk = following
        return frozenset(found)

    def rows(self, number: int) -> Iterator[LeafRow]:
        page = self.page(number)
        cells = min(int.from_bytes(page[3:5], "big"), (self._size - 8) // 2)
        starts = dict.fromkeys(struct.unpack(f">{cells}H", page[8 : 8 + 2 * cells]))
        for start in starts:
            if start < 8 + 2 * cells:
                continue  # it would lie in the list of cells itself
            try:
                row = self._row(page, start)
            except (IndexError, ValueError, struct.error):
                continue  # this cell is damaged, the next one need not be
            if not _of_schema(row):
                yield row

    def _row(self, page: bytes, start: int) -> LeafRow:
        length, start = _varint(page, start)
        rowid, start = _varint(page, start)
        local = self._local(length)
        payload = page[start : start + local]
        if local < length:
            payload += self._overflow(int.from_bytes(page[start + local : start + local + 4], "big"), length - local)
        if len(payload) != length:
            raise ValueError("the row is cut off")
        return LeafRow(rowid - 2**64 if rowid >= 2**63 else rowid, _values(payload))

    def _local(self, length: int) -> int:
        """How many bytes of a row stand in its leaf page."""
        most = self._size - 35
        if length <= most:
            return length
        least = (self._size - 12) * 32 // 255 - 23
        wanted = least + (length - least) % (self._size - 4)
        return wanted if wanted <= most else least

    def _overflow(self, number: int, length: int) -> bytes:
        pieces, seen = list[bytes](), set[int]()
        while length > 0 and number not in seen:
            seen.add(number)
            page = self.page(number)
            pieces.append(page[4 : 4 + length])
            length -= len(pieces[-1])
            number = int.from_bytes(page[:4], "big")
        return b"".join(pieces)


def _of_schema(row: LeafRow) -> bool:
    return len(row.values) == 5 and row.values[0] in _SCHEMA_KINDS and isinstance(row.values[3], int)


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """The number and where it ends."""
    value = 0
    for index in range(8):
        byte = data[start + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, start + index + 1
    return value << 8 | data[start + 8], start + 9


def _values(payload: bytes) -> list[Value]:
    header, position = _varint(payload, 0)
    if not position <= header <= len(payload):
        raise ValueError("the row's header is damaged")
    values, body = list[Value](), header
    while position < header:
        kind, position = _varint(payload, position)
        value, body = _value(payload, body, kind)
        values.append(value)
    if body != len(payload):
        raise ValueError("the row's header and its length do not agree")
    return values


def _value(payload: bytes, start: int, kind: int) -> tuple[Value, int]:
    if kind in (0, 8, 9):
        return {0: None, 8: 0, 9: 1}[kind], start
    if kind in (10, 11):
        raise ValueError("a reserved type")
    size = _INTEGERS.get(kind) or (8 if kind == 7 else (kind - 12) // 2)
    piece = payload[start : start + size]
    if len(piece) != size:
        raise ValueError("a value is cut off")
    if kind in _INTEGERS:
        return int.from_bytes(piece, "big", signed=True), start + size
    if kind == 7:
        return float(struct.unpack(">d", piece)[0]), start + size
    return (piece.decode("utf-8", "replace") if kind % 2 else piece), start + size
