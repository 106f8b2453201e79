"""A PostgreSQL of its own, with logical decoding."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ch_sink.local import free_port
from tests.real.stand.daemon import Daemon, own_folder, unprivileged
from tests.real.stand.programs import programs
from tests.support.fixtures import TruthTable

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "8",
    "max_wal_senders": "8",
    "shared_buffers": "64MB",
    "fsync": "off",
    "timezone": "UTC",
    "lock_timeout": "2s",
}
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(a.attnum = ANY(i.indkey), false)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relname = %s AND c.relnamespace = 'public'::regnamespace ORDER BY a.attnum
"""


class PostgreSQL:
    """Database ``shop`` on a loopback port, tables in its schema ``public``."""

    name = "postgres"
    database = "shop"

    def __init__(self) -> None:
        """Raises Missing where there is no PostgreSQL."""
        self._server, self._initdb, self._ctl = map(str, programs("postgresql", ["postgres", "initdb", "pg_ctl"]))
        self.folder = own_folder("postgres")
        self.port = free_port()
        command = [self._server, "-D", f"{self.folder}/data", "-p", str(self.port), "-k", str(self.folder)]
        for name, setting in _SETTINGS.items():
            command += ["-c", f"{name}={setting}"]
        self._daemon = Daemon("postgres", self.folder, unprivileged(command))

    def start(self) -> None:
        """Make the data folder, start, and make the database and the connector's user."""
        make = [self._initdb, "-D", f"{self.folder}/data", "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust"]
        ran = subprocess.run(
            unprivileged(make),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=120,
            check=False,
        )
        if ran.returncode != 0:
            raise RuntimeError(f"initdb ended with {ran.returncode}:\n{(ran.stdout + ran.stderr)[-3000:]}")
        self._daemon.start(self._answers)
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.database}")
            connection.execute("CREATE ROLE debezium LOGIN REPLICATION SUPERUSER PASSWORD 'debezium'")

    def stop(self) -> None:
        fast = [self._ctl, "-D", f"{self.folder}/data", "-m", "fast", "-w", "stop"]
        self._daemon.stop(first=unprivileged(fast))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _address(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self) -> psycopg.Connection[Any]:
        """A session of its own, without autocommit."""
        return psycopg.connect(self._address(self.database))

    @contextmanager
    def session(self) -> Iterator[psycopg.Cursor[Any]]:
        """A cursor whose changes are committed at the end."""
        with self.connect() as connection, connection.cursor() as cursor:
            yield cursor

    def connector(self, name: str, number: int, bootstrap: str) -> dict[str, str]:
        """Properties of a Debezium connector."""
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.port),
            "database.user": "debezium",
            "database.password": "debezium",
            "database.dbname": self.database,
            "slot.name": name,
            "publication.name": name,
            "publication.autocreate.mode": "filtered",
        }

    def qualified(self, table: str) -> str:
        """As the connector and its topics name the table."""
        return f"public.{table}"

    def table(self, name: str) -> TruthTable:
        """Columns and rows as they are now, as texts."""
        with self.session() as cursor:
            cursor.execute(_COLUMNS, (name,))
            columns = tuple({"name": c, "type": kind, "key": key} for c, kind, key in cursor.fetchall())
            texts = ", ".join(f'"{column["name"]}"::text' for column in columns)
            cursor.execute(f'SELECT {texts} FROM public."{name}"')
            rows = tuple(tuple(row) for row in cursor.fetchall())
        return TruthTable(name, columns, rows)
