"""The tables of long-term memory in PostgreSQL: made and migrated by whoever comes first, under a lock.

`qworkspace_turn` holds what was said, in pieces. Vectors stand apart, in one table for each embedder: those of two
models cannot be compared, have different lengths, and can always be made again from the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, errors, sql

from qworkspace.errors import Unavailable

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE qworkspace_turn (
        namespace text NOT NULL,
        turn_id text NOT NULL,
        part text NOT NULL,
        agent_id text NOT NULL,
        session_id text NOT NULL,
        user_id text NOT NULL,
        at timestamptz NOT NULL,
        day date NOT NULL,
        text text NOT NULL,
        terms tsvector NOT NULL,
        embed boolean NOT NULL,
        PRIMARY KEY (namespace, turn_id, part)
    );
    CREATE INDEX qworkspace_turn_session ON qworkspace_turn (namespace, session_id);
    CREATE INDEX qworkspace_turn_at ON qworkspace_turn (namespace, at, turn_id, part);
    CREATE INDEX qworkspace_turn_terms ON qworkspace_turn USING gin (terms);
    CREATE TABLE qworkspace_embedder (
        no serial PRIMARY KEY,
        id text NOT NULL,
        dimensions integer NOT NULL,
        UNIQUE (id, dimensions)
    );
    """,
)
"""Only ever appended to."""

LOCK = 0x7177_6F72_6B73  # "qworks": any number that nobody else uses
INDEXED_DIMENSIONS = 2_000  # pgvector's limit for an index over `vector`; above it search is exact
ITERATIVE = (0, 8)
HNSW = (0, 5)


@dataclass(frozen=True, slots=True)
class VectorTable:
    """The vectors of one embedder in this database."""

    no: int
    dimensions: int

    @property
    def name(self) -> sql.Identifier:
        return sql.Identifier(f"qworkspace_vector_{self.no}")


async def prepare(connection: AsyncConnection, steps: Sequence[str] = STEPS) -> tuple[int, ...]:
    """Bring the database up to date; the version of pgvector. `Unavailable` says what a person must do.

    All of it or nothing: one transaction, in which daemons that begin together wait for each other.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        version = await _extension(connection)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS qworkspace_schema (step integer PRIMARY KEY, at timestamptz DEFAULT now())"
        )
        cursor = await connection.execute("SELECT coalesce(max(step), 0) FROM qworkspace_schema")
        (have,) = await cursor.fetchone() or (0,)
        if have > len(steps):
            message = "the tables of long-term memory were made by a newer version of qworkspace; install that one"
            raise Unavailable(message, code="newer_database")
        for number, step in enumerate(steps[have:], have + 1):
            await connection.execute(step.encode())
            await connection.execute("INSERT INTO qworkspace_schema (step) VALUES (%s)", (number,))
    return version


async def vector_table(
    connection: AsyncConnection, embedder: str, dimensions: int, version: tuple[int, ...]
) -> VectorTable:
    """The table of that embedder, made when it is the first time."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        await connection.execute(
            "INSERT INTO qworkspace_embedder (id, dimensions) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (embedder, dimensions),
        )
        cursor = await connection.execute(
            "SELECT no FROM qworkspace_embedder WHERE id = %s AND dimensions = %s", (embedder, dimensions)
        )
        (no,) = await cursor.fetchone() or (0,)
        table = VectorTable(no, dimensions)
        cursor = await connection.execute("SELECT to_regclass(%s)", (f"qworkspace_vector_{no}",))
        if await cursor.fetchone() == (None,):
            await _make(connection, table, version)
    return table


async def _make(connection: AsyncConnection, table: VectorTable, version: tuple[int, ...]) -> None:
    await connection.execute(
        sql.SQL(
            "CREATE TABLE {} (namespace text NOT NULL, turn_id text NOT NULL, part text NOT NULL, vector vector({}),"
            " PRIMARY KEY (turn_id, part, namespace),"
            " FOREIGN KEY (namespace, turn_id, part) REFERENCES qworkspace_turn ON DELETE CASCADE)"
        ).format(table.name, sql.Literal(table.dimensions))
    )
    if table.dimensions <= INDEXED_DIMENSIONS and version >= HNSW:
        await connection.execute(sql.SQL("CREATE INDEX ON {} USING hnsw (vector vector_cosine_ops)").format(table.name))


async def _extension(connection: AsyncConnection) -> tuple[int, ...]:
    """pgvector's version; it is switched on when the user may do that."""
    version = await _installed(connection)
    if version is None:
        try:
            async with connection.transaction():
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error as error:
            raise Unavailable(await _what_to_do(connection, error), code="no_pgvector") from None
        version = await _installed(connection)
    return tuple(int(piece) for piece in (version or "0").split(".") if piece.isdigit())


async def _installed(connection: AsyncConnection) -> str | None:
    cursor = await connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    row = await cursor.fetchone()
    return None if row is None else str(row[0])


async def _what_to_do(connection: AsyncConnection, error: psycopg.Error) -> str:
    name = connection.info.dbname
    if isinstance(error, errors.InsufficientPrivilege):
        return (
            f"pgvector is not switched on in the database {name!r}, and the user {connection.info.user!r} may not do"
            f' that; run as its administrator: psql -d {name} -c "CREATE EXTENSION vector"'
        )
    major = connection.info.server_version // 10_000
    return (
        f"the PostgreSQL server has no pgvector; install it there (Debian and Ubuntu: apt install"
        f' postgresql-{major}-pgvector), then run as administrator: psql -d {name} -c "CREATE EXTENSION vector"'
    )
