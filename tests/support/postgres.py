"""A real PostgreSQL with pgvector on the loopback, in a directory of its own, for as long as a test module runs.

Where the server or the extension is missing the tests are skipped, unless `QWORKSPACE_REQUIRE_POSTGRES=1` says that
they must run. `.ci/install-postgres` installs both on Debian 12.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.ports import free_port

START_SECONDS = 30.0
PASSWORD = "open sesame"
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "40",
    "shared_buffers": "16MB",
    "autovacuum": "off",
}
HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


def programs() -> Path | None:
    """The directory of PostgreSQL's programs with the extension beside them; None when either is missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    installed = [path.parent for path in found if (path.parents[1] / "lib" / "vector.so").exists()]
    onpath = shutil.which("postgres")
    return installed[0] if installed else Path(onpath).parent if onpath else None


def unprivileged() -> dict[str, Any] | None:
    """Whom the server runs as: never root. None when there is nobody."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        return None
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def required_server() -> PostgresServer:
    """A server that is not yet started; the test is skipped, or fails, where there can be none."""
    directory, identity = programs(), unprivileged()
    if directory is None or identity is None:
        reason = "no PostgreSQL with pgvector here; .ci/install-postgres installs it on Debian 12"
        if os.environ.get("QWORKSPACE_REQUIRE_POSTGRES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return PostgresServer(directory, identity)


class PostgresServer:
    """Databases for tests. The user `ann` may log in over TCP with `PASSWORD`; the user `admin` owns everything."""

    def __init__(self, programs: Path, identity: dict[str, Any]) -> None:
        self._programs = programs
        self._identity = identity
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="qw-pg-"))

    def create(self) -> None:
        """Make the cluster and start it."""
        if self._identity:
            os.chown(self.directory, self._identity["user"], self._identity["group"])
        data = self.directory / "data"
        self._run("initdb", "-D", str(data), "-U", "admin", "-E", "UTF8", "--locale=C", "--no-sync", "-A", "trust")
        (data / "pg_hba.conf").write_text(HBA)
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
        self.start()
        self.execute(f"CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}'")

    def start(self) -> None:
        """Start, and return when it answers. Blocks: call it in a thread, like `stop`."""
        arguments = ["-D", str(self.directory / "data"), "-k", str(self.directory), "-p", str(self.port)]
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), *arguments],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._identity,
        )
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "PostgreSQL has ended at once"
                assert time.monotonic() < end, "PostgreSQL does not answer"
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it, cutting connections off."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(START_SECONDS)

    def remove(self) -> None:
        """Stop it and delete everything."""
        self.stop()
        shutil.rmtree(self.directory)

    def database(self, *, extension: bool = True, owner: str = "ann") -> str:
        """The name of a fresh database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} OWNER {owner}")
        if extension:
            self.execute("CREATE EXTENSION vector", name)
        return name

    def settings(self, database: str, **changes: Any) -> dict[str, Any]:
        """`running.memory.postgres` for it."""
        facts = {"host": "127.0.0.1", "port": self.port, "user": "ann", "password": PASSWORD, "dbname": database}
        return facts | changes

    def execute(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of a query by the administrator."""
        with self._connected(database) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def locked(self, table: str, database: str) -> Iterator[None]:
        """Nobody else reads or writes the table meanwhile."""
        with self._connected(database) as connection, connection.transaction():
            connection.execute(f"LOCK TABLE {table}".encode())
            yield

    def _connected(self, database: str) -> psycopg.Connection:
        where = str(self.directory)
        return psycopg.connect(
            host=where, port=self.port, user="admin", dbname=database, autocommit=True, gssencmode="disable"
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self.directory,
            check=True,
            capture_output=True,
            **self._identity,
        )
