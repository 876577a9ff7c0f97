"""Rows read straight from the pages of a file are the rows that SQLite has put there."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.base.leaves import Value, leaf_rows

LONG = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=5), st.integers(1, 9000))
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 127, 128, 2**15, 2**23, 2**31, 2**47, -(2**47)]),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=30),
    LONG.filter(lambda text: "\0" not in text and text.isprintable()),
)


def _file(directory: Path, rows: Sequence[tuple[Value, ...]], page_size: int = 4096) -> Path:
    path = directory / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size={page_size}")
        db.execute("CREATE TABLE t (a, b, c)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        db.execute("COMMIT")
    return path


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=25), st.sampled_from([512, 1024, 4096, 16384]))
def test_every_row_of_a_sound_file_is_found(rows: list[tuple[Value, ...]], page_size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = _file(Path(directory), rows, page_size)
        found = [(row.rowid, *row.values) for row in leaf_rows(path)]
        with closing(sqlite3.connect(path)) as db:
            assert sorted(found) == sorted(db.execute("SELECT rowid, a, b, c FROM t").fetchall())


def test_deleted_rows_do_not_come_back(tmp_path: Path) -> None:
    path = _file(tmp_path, [(n, "secret " * 50, None) for n in range(500)])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete=OFF")
        db.execute("DELETE FROM t WHERE a BETWEEN 100 AND 399")
        left = {row[0] for row in db.execute("SELECT a FROM t")}
    assert b"secret" in path.read_bytes()
    assert {row.values[0] for row in leaf_rows(path)} == left


def test_large_row_numbers_and_negative_ones_are_kept(tmp_path: Path) -> None:
    path = _file(tmp_path, [])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for rowid in (-(2**63), -5, 2**40, 2**63 - 1):
            db.execute("INSERT INTO t (rowid, a) VALUES (?, 'x')", (rowid,))
    assert [row.rowid for row in leaf_rows(path)] == [-(2**63), -5, 2**40, 2**63 - 1]


@pytest.mark.parametrize("seed", range(30))
def test_no_damage_whatever_raises_or_hangs(tmp_path: Path, seed: int) -> None:
    path = _file(tmp_path, [(n, "text " * (n * 40 % 3000), b"x" * n) for n in range(60)])
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 10, 300, 5000])):
        data[chance.randrange(16, len(data))] = chance.randrange(256)
    path.write_bytes(data[: chance.choice([len(data), len(data) // 2, 5000])])
    assert sum(1 for _ in leaf_rows(path)) <= 60 * 20


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", b"\x0d" * 50_000, b"\xff" * 50_000])
def test_what_is_no_database_gives_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    assert list(leaf_rows(path)) == []
