"""Long-term memory's rows in PostgreSQL: a pool of connections, storing, deleting, embedding, looking for.

Imports psycopg: import this module where a connection is wanted, not at start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, sql
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from qworkspace.base.tasks import Threads
from qworkspace.config.memory import PostgresConfig
from qworkspace.errors import InvalidInput, Unavailable
from qworkspace.memory.outbox import Entry
from qworkspace.memory.pg_connection import Target, explained
from qworkspace.memory.pg_rows import Row, as_query, rows_of, written
from qworkspace.memory.pg_schema import HNSW, ITERATIVE, STEPS, VectorTable, prepare, vector_table
from qworkspace.memory.tokens import terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ANSWER_SECONDS = 30.0  # the longest that one exchange may take
WAIT_SECONDS = 2.0  # for a connection to be free
CANDIDATES = 50  # of each signal
MOST_TERMS = 24  # of a question
MOST_WEIGHED = 2_000  # rows with a rare word, the newest, are compared with the whole question
COMMON = 500  # a term in that many rows finds nothing by itself; it only counts for rows that others have found

_COLUMNS = ("turn_id", "part", "agent_id", "session_id", "user_id", "at", "day", "text", "embed")
_INSERT = (
    f"INSERT INTO qworkspace_turn (namespace, {', '.join(_COLUMNS)}, terms)"
    f" VALUES (%(namespace)s, {', '.join(f'%({name})s' for name in _COLUMNS)},"
    " array_to_tsvector(%(terms)s::text[])) ON CONFLICT DO NOTHING"
)
_FORGET = "DELETE FROM qworkspace_turn WHERE namespace = %s AND session_id = %s AND agent_id = %s"
_FREQUENCIES = """
    SELECT q.word, (SELECT count(*) FROM (
        SELECT 1 FROM qworkspace_turn t WHERE t.namespace = %s AND t.terms @@ q.word::tsquery LIMIT %s) AS found),
        (SELECT reltuples::float8 FROM pg_class WHERE oid = 'qworkspace_turn'::regclass)
    FROM unnest(%s::text[]) AS q(word)"""
_FOUND = """
    SELECT t.turn_id, t.part, t.session_id, t.day, t.text,
        (SELECT coalesce(sum(q.weight), 0)::float8 FROM unnest(%(words)s::text[]::tsquery[], %(weights)s::float8[])
            AS q(word, weight) WHERE t.terms @@ q.word) AS words,
        {similarity} AS similarity"""
_FILTER = """
    t.namespace = %(namespace)s AND (%(user)s::text = '' OR t.user_id = %(user)s)
    AND (%(since)s::date IS NULL OR t.day >= %(since)s) AND (%(until)s::date IS NULL OR t.day <= %(until)s)"""
_SIMILARITY = "(1 - (v.vector <=> %(vector)s::vector))::float8"


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that was found. `words` is the share of the question's words (the rare ones count more), 0-1."""

    turn_id: str
    part: str
    session_id: str
    day: date
    text: str
    words: float
    similarity: float | None


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A row without a vector."""

    turn_id: str
    part: str
    at: datetime
    text: str


class PgStore:
    """The rows of one namespace. What fails raises `Unavailable`, or `InvalidInput` for what the server refuses."""

    def __init__(
        self, config: PostgresConfig, *, namespace: str, agent_id: str, threads: Threads, steps: Sequence[str] = STEPS
    ) -> None:
        self._config = config
        self._target = Target.of(config)
        self._namespace = namespace
        self._agent_id = agent_id
        self._threads = threads
        self._steps = steps
        self._pool: AsyncConnectionPool[AsyncConnection] | None = None
        self._version: tuple[int, ...] = ()
        self._vectors: VectorTable | None = None

    async def open(self) -> None:
        """Connect, make the tables, keep connections at hand. Does nothing when it is open."""
        if self._pool is not None:
            return
        async with explained(self._target):
            connection = await AsyncConnection.connect(**self._target.options)
            async with connection, asyncio.timeout(ANSWER_SECONDS):
                self._version = await prepare(connection, self._steps)
        pool: AsyncConnectionPool[AsyncConnection] = AsyncConnectionPool(
            kwargs=self._target.options | {"autocommit": True},
            min_size=min(self._config.pool_minconn, self._config.pool_maxconn),
            max_size=self._config.pool_maxconn,
            open=False,
            check=AsyncConnectionPool.check_connection,
            configure=lambda connection: _index_settings(connection, self._version),
            timeout=WAIT_SECONDS,
            name=f"memory-{self._agent_id}",
        )
        self._pool = pool
        await pool.open()

    async def close(self) -> None:
        """Give all connections back. Idempotent; `open` connects again."""
        pool, self._pool, self._vectors = self._pool, None, None
        if pool is not None:
            await pool.close()

    async def deliver(self, entries: Sequence[Entry]) -> None:
        """Store turns and delete sessions, in order, all or nothing. What is stored already stays as it is."""
        rows = await self._threads.run(lambda: [_rows(entry) for entry in entries])
        async with self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            for entry, made in zip(entries, rows, strict=True):
                if entry.kind == "forget":
                    await cursor.execute(_FORGET, (self._namespace, entry.session_id, self._agent_id))
                elif made:
                    await cursor.executemany(_INSERT, [row.facts | {"namespace": self._namespace} for row in made])

    async def use_vectors(self, embedder: str, dimensions: int) -> None:
        """From now on vectors are those of this embedder."""
        async with self._connection() as connection:
            self._vectors = await vector_table(connection, embedder, dimensions, self._version)

    async def without_vector(
        self, limit: int, *, since: datetime | None = None, before: Unembedded | None = None
    ) -> list[Unembedded]:
        """The newest rows that are to be embedded and are not yet; `since` then, and older than the row `before`."""
        query = sql.SQL(
            "SELECT t.turn_id, t.part, t.at, t.text FROM qworkspace_turn t"
            " WHERE t.namespace = %(namespace)s AND t.embed AND (%(since)s::timestamptz IS NULL OR t.at >= %(since)s)"
            " AND (%(at)s::timestamptz IS NULL OR (t.at, t.turn_id, t.part) < (%(at)s, %(turn)s::text, %(part)s::text))"
            " AND NOT EXISTS (SELECT 1 FROM {} v"
            " WHERE (v.namespace, v.turn_id, v.part) = (t.namespace, t.turn_id, t.part))"
            " ORDER BY t.at DESC, t.turn_id DESC, t.part DESC LIMIT %(limit)s"
        ).format(self._table.name)
        facts: dict[str, Any] = {"namespace": self._namespace, "since": since, "limit": limit}
        facts |= {"at": None, "turn": None, "part": None}
        if before is not None:
            facts |= {"at": before.at, "turn": before.turn_id, "part": before.part}
        async with self._connection() as connection, connection.cursor(row_factory=class_row(Unembedded)) as cursor:
            await cursor.execute(query, facts)
            return await cursor.fetchall()

    async def set_vectors(self, vectors: Sequence[tuple[str, str, NDArray[np.float32] | None]]) -> None:
        """(turn, part, vector): None for a text that the embedder will not take. Rows that have gone are left out."""
        query = sql.SQL(
            "INSERT INTO {} SELECT t.namespace, t.turn_id, t.part, %s::vector FROM qworkspace_turn t"
            " WHERE t.namespace = %s AND t.turn_id = %s AND t.part = %s ON CONFLICT DO NOTHING"
        ).format(self._table.name)
        values = await self._threads.run(
            lambda: [(written(vector), self._namespace, turn, part) for turn, part, vector in vectors]
        )
        async with self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            await cursor.executemany(query, values)

    async def search(
        self,
        terms: Sequence[str],
        vector: NDArray[np.float32] | None,
        *,
        user: str = "",
        since: date | None = None,
        until: date | None = None,
    ) -> list[Kept]:
        """The best rows by words, and the best by vector when there is one; in no order.

        `user` limits it to what that user has said and was told; empty: everybody.
        """
        with_vector = vector is not None and self._vectors is not None
        facts: dict[str, Any] = {
            "namespace": self._namespace,
            "user": user,
            "since": since,
            "until": until,
            "limit": CANDIDATES,
            "most": MOST_WEIGHED,
            "vector": await self._threads.run(written, vector) if with_vector else None,
        }
        async with self._connection() as connection:
            facts |= await self._weighed(connection, [as_query(term) for term in dict.fromkeys(terms)][:MOST_TERMS])
            wanted = [query for query, wanted in self._queries(with_vector) if wanted or facts["rare"]]
            if not wanted:
                return []
            async with connection.cursor(row_factory=class_row(Kept)) as cursor:
                await cursor.execute(sql.SQL(" UNION ALL ").join(wanted), facts)
                found = await cursor.fetchall()
        return list({(row.turn_id, row.part): row for row in found}.values())

    async def _weighed(self, connection: AsyncConnection, words: list[str]) -> dict[str, Any]:
        """The words' shares of the question, by how rare they are here, and those that rows are looked up by."""
        cursor = await connection.execute(_FREQUENCIES, (self._namespace, COMMON, words))
        counts: list[tuple[str, int, float]] = await cursor.fetchall()
        total = max([float(COMMON), *(size for _, _, size in counts)])
        rarity = {word: math.log(1 + total / (count + 0.5)) for word, count, _ in counts}
        everything = sum(rarity.values()) or 1.0
        known = sorted((count, word) for word, count, _ in counts if count)
        rare = [word for count, word in known if count < COMMON] or [word for _, word in known[:1]]
        return {
            "words": list(rarity),
            "weights": [value / everything for value in rarity.values()],
            "rare": " | ".join(rare),
        }

    def _queries(self, with_vector: bool) -> list[tuple[sql.Composed, bool]]:
        """(query, whether it is wanted even when no row has one of the words), by words and by vector."""
        select = sql.SQL(_FOUND).format(similarity=sql.SQL(_SIMILARITY if with_vector else "NULL::float8"))
        table = self._table.name if with_vector else sql.SQL("")
        joined = sql.SQL("LEFT JOIN {} v USING (namespace, turn_id, part)").format(table) if with_vector else table
        by_words = sql.SQL(
            "({} FROM (SELECT * FROM qworkspace_turn t WHERE t.terms @@ %(rare)s::tsquery AND {}"
            " ORDER BY t.at DESC LIMIT %(most)s) t {} ORDER BY words DESC, t.at DESC LIMIT %(limit)s)"
        ).format(select, sql.SQL(_FILTER), joined)
        if not with_vector:
            return [(by_words, False)]
        by_vector = sql.SQL(
            "({} FROM {} v JOIN qworkspace_turn t USING (namespace, turn_id, part)"
            " WHERE v.namespace = %(namespace)s AND v.vector IS NOT NULL AND {}"
            " ORDER BY v.vector <=> %(vector)s::vector LIMIT %(limit)s)"
        ).format(select, table, sql.SQL(_FILTER))
        return [(by_words, False), (by_vector, True)]

    @property
    def _table(self) -> VectorTable:
        if self._vectors is None:
            raise Unavailable("the vectors of long-term memory are not ready yet")
        return self._vectors

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        """A connection that commits each statement, with a limit on the time."""
        if self._pool is None:
            raise Unavailable(f"{self._target} is not connected")
        async with explained(self._target), asyncio.timeout(ANSWER_SECONDS), self._pool.connection() as connection:
            yield connection


def _rows(entry: Entry) -> list[Row]:
    if entry.kind == "broken":
        raise InvalidInput("a turn that waited to be stored was damaged on the disk; the conversation still has it")
    return rows_of(entry.record, terms) if entry.record is not None else []


async def _index_settings(connection: AsyncConnection, version: tuple[int, ...]) -> None:
    """How far an index scan goes: with filters behind it, until they leave enough."""
    if version >= HNSW:
        await connection.execute("SET hnsw.ef_search = 100")
    if version >= ITERATIVE:
        await connection.execute("SET hnsw.iterative_scan = relaxed_order")
