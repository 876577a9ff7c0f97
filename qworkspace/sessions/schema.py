"""The tables of `sessions.db`. Times are microseconds since 1970 in UTC.

`turns.number` and `messages.number` count up in the order in which they were stored. `messages.hidden` marks what a
resumed turn says anew. `sessions.digest` stands for everything said so far (`digest.py`); `afresh` is the last turn
that later ones no longer see; the summary covers all messages up to (`summary_turn`, `summary_message`).
"""

from __future__ import annotations

MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL DEFAULT '',
        titled INTEGER NOT NULL DEFAULT 0,
        user_id TEXT NOT NULL,
        source TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0,
        digest BLOB NOT NULL,
        afresh INTEGER NOT NULL DEFAULT 0,
        summary TEXT,
        summary_turn INTEGER NOT NULL DEFAULT 0,
        summary_message INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX sessions_by_time ON sessions (updated_at, id);
    CREATE INDEX sessions_by_digest ON sessions (digest, user_id);

    CREATE TABLE settings (
        session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        UNIQUE (session_id, key)
    ) STRICT;

    CREATE TABLE turns (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
        state TEXT NOT NULL,
        source TEXT NOT NULL,
        user_id TEXT NOT NULL,
        team_id TEXT NOT NULL,
        idempotency_key TEXT,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        ended_at INTEGER,
        text TEXT NOT NULL DEFAULT '',
        usage TEXT NOT NULL DEFAULT '{}',
        usage_before TEXT NOT NULL DEFAULT '{}',
        error TEXT,
        metadata TEXT NOT NULL,
        context TEXT NOT NULL DEFAULT '[]',
        in_context INTEGER NOT NULL DEFAULT 1
    ) STRICT;
    CREATE INDEX turns_of_session ON turns (session_id, number);
    CREATE UNIQUE INDEX turns_by_key ON turns (session_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE INDEX turns_open ON turns (state) WHERE state IN ('queued', 'running');

    CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        turn INTEGER NOT NULL REFERENCES turns (number) ON DELETE CASCADE,
        session_id TEXT NOT NULL,
        role TEXT NOT NULL,
        parts TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        hidden INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX messages_of_turn ON messages (turn);
    CREATE INDEX messages_of_session ON messages (session_id, hidden);

    CREATE TABLE calls (
        message INTEGER NOT NULL REFERENCES messages (number) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        call_id TEXT NOT NULL,
        state TEXT NOT NULL,
        UNIQUE (message, call_id)
    ) STRICT;
    CREATE INDEX calls_of_turn ON calls (turn);

    CREATE TABLE drafts (
        turn INTEGER PRIMARY KEY REFERENCES turns (number) ON DELETE CASCADE,
        text TEXT NOT NULL
    ) STRICT;
    """,
)

# after a rescue: turns and sessions that are lost while their messages are not
ADOPT = (
    """
    INSERT OR IGNORE INTO turns
        (number, id, session_id, state, source, user_id, team_id, created_at, started_at, ended_at, metadata)
    SELECT turn, 'turn_rescued_' || turn, min(session_id), 'completed', 'chat', '', '', min(created_at),
        min(created_at), max(created_at), '{}'
    FROM messages GROUP BY turn
    """,
    """
    INSERT OR IGNORE INTO sessions (id, title, user_id, source, created_at, updated_at, digest)
    SELECT session_id, session_id, min(user_id), min(source), min(created_at), max(created_at), zeroblob(16)
    FROM turns GROUP BY session_id
    """,
)
