"""The embeddings in the index: kept by embedder and text, so that nothing is embedded twice. Everything here blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qworkspace.memory.index_rows import meta, passages, set_meta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPARE = 1000
SPARE_SHARE = 0.25
"""So many embeddings of texts that are gone are kept: notes come back."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Chunks after some number, in order: those with a vector already, and the texts that need one."""

    upto: int
    known: tuple[int, ...]
    texts: Mapping[bytes, str]
    nos: Mapping[bytes, tuple[int, ...]]


def embedder_no(db: sqlite3.Connection, embedder: str) -> int:
    """The number of that embedder, 0 when it has made nothing yet."""
    row = db.execute("SELECT no FROM embedder WHERE id = ?", (embedder,)).fetchone()
    return row[0] if row is not None else 0


def begin(db: sqlite3.Connection, embedder: str) -> bool:
    """Make it the embedder of this index; whether another one was it before."""
    before = str(meta(db, "embedder"))
    db.execute("INSERT OR IGNORE INTO embedder (id) VALUES (?)", (embedder,))
    if before != embedder:
        set_meta(db, "embedder", embedder)
        set_meta(db, "embedded_upto", 0)
    return before not in ("", embedder)


def waiting(db: sqlite3.Connection, embedder: str, after: int, limit: int) -> Waiting | None:
    """The next chunks after that number; None when there are none."""
    sql = (
        "SELECT c.no, c.hash, e.no IS NOT NULL FROM chunk c"
        " LEFT JOIN embedding e ON e.embedder = ? AND e.hash = c.hash WHERE c.no > ? ORDER BY c.no LIMIT ?"
    )
    rows = db.execute(sql, (embedder_no(db, embedder), after, limit)).fetchall()
    if not rows:
        return None
    nos: dict[bytes, list[int]] = {}
    for no, hash, there in rows:
        if not there:
            nos.setdefault(hash, []).append(no)
    found = passages(db, [same[0] for same in nos.values()])
    texts = {hash: found[same[0]].embedded for hash, same in nos.items() if same[0] in found}
    known = tuple(no for no, _, there in rows if there)
    return Waiting(rows[-1][0], known, texts, {hash: tuple(same) for hash, same in nos.items()})


def still_waiting(db: sqlite3.Connection, embedder: str, after: int) -> int:
    """How many chunks after that number have no vector."""
    sql = (
        "SELECT count(*) FROM chunk c WHERE c.no > ?"
        " AND NOT EXISTS (SELECT 1 FROM embedding e WHERE e.embedder = ? AND e.hash = c.hash)"
    )
    return int(db.execute(sql, (after, embedder_no(db, embedder))).fetchone()[0])


def keep(db: sqlite3.Connection, embedder: str, vectors: Mapping[bytes, bytes], upto: int) -> None:
    """Store half-precision vectors, and that all chunks up to that number have one."""
    number = embedder_no(db, embedder)
    rows = ((number, hash, vector) for hash, vector in vectors.items())
    db.executemany("INSERT OR REPLACE INTO embedding (embedder, hash, vector) VALUES (?, ?, ?)", rows)
    set_meta(db, "embedded_upto", upto)


def stored_vectors(
    db: sqlite3.Connection, embedder: str, after: int, limit: int
) -> tuple[list[tuple[int, str]], NDArray[np.float16] | None, int]:
    """(items, vectors, last number): chunks after that number that have a vector; empty at the end."""
    sql = (
        "SELECT c.no, c.hash, e.vector FROM chunk c JOIN embedding e ON e.embedder = ? AND e.hash = c.hash"
        " WHERE c.no > ? ORDER BY c.no LIMIT ?"
    )
    rows = db.execute(sql, (embedder_no(db, embedder), after, limit)).fetchall()
    return _as_vectors(rows, after)


def vectors_of(
    db: sqlite3.Connection, embedder: str, nos: tuple[int, ...]
) -> tuple[list[tuple[int, str]], NDArray[np.float16] | None, int]:
    """Like `stored_vectors`, for these chunks."""
    sql = (
        "SELECT c.no, c.hash, e.vector FROM chunk c JOIN embedding e ON e.embedder = ? AND e.hash = c.hash"
        f" WHERE c.no IN ({','.join('?' * len(nos))})"
    )
    return _as_vectors(db.execute(sql, (embedder_no(db, embedder), *nos)).fetchall(), 0)


def _as_vectors(rows: list[Any], after: int) -> tuple[list[tuple[int, str]], NDArray[np.float16] | None, int]:
    import numpy as np  # heavy, and only for who has vectors

    if not rows:
        return [], None, after
    length = len(rows[0][2])
    rows = [row for row in rows if len(row[2]) == length]
    data = np.frombuffer(b"".join(row[2] for row in rows), dtype=np.float16).reshape(len(rows), -1)
    return [(no, hash.hex()) for no, hash, _ in rows], data, rows[-1][0]


def hashes(db: sqlite3.Connection) -> dict[int, str]:
    """chunk number -> hash, of all."""
    return {no: hash.hex() for no, hash in db.execute("SELECT no, hash FROM chunk")}


def prune(db: sqlite3.Connection, chunks: int) -> int:
    """Forget the oldest embeddings that no chunk needs, beyond what may be spare; how many went."""
    current = embedder_no(db, str(meta(db, "embedder")))
    spare = SPARE + int(chunks * SPARE_SHARE)
    sql = (
        "DELETE FROM embedding WHERE no IN (SELECT no FROM embedding"
        " WHERE embedder <> ?1 OR hash NOT IN (SELECT hash FROM chunk) ORDER BY no DESC LIMIT -1 OFFSET ?2)"
    )
    return db.execute(sql, (current, spare)).rowcount
