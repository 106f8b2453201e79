"""A MariaDB of its own, with the binary log that Debezium reads."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
from pymysql.cursors import Cursor

from ch_sink.local import free_port
from tests.real.stand.daemon import Daemon, own_folder, unprivileged
from tests.real.stand.programs import programs
from tests.support.fixtures import TruthTable

_OPTIONS = (
    "--server-id=22301",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--max-binlog-size=256K",  # several files in a short run
    "--character-set-server=utf8mb4",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-lock-wait-timeout=2",
    "--performance-schema=OFF",
    "--default-time-zone=+00:00",
)
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}


class MariaDB:
    """Database ``shop`` on a loopback port."""

    name = "mariadb"
    database = "shop"

    def __init__(self) -> None:
        """Raises Missing where there is no MariaDB."""
        # The installer calls my_print_defaults, which Debian ships with the client since 10.11.19.
        packages = "mariadb-server-core mariadb-client-core"
        self._server, self._installer, _ = programs(packages, ["mariadbd", "mariadb-install-db", "my_print_defaults"])
        self.folder = own_folder("mariadb")
        self.port = free_port()
        command = [str(self._server), "--no-defaults", f"--datadir={self.folder}/data", *_OPTIONS]
        command += [f"--port={self.port}", "--bind-address=127.0.0.1"]
        command += [f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid"]
        self._daemon = Daemon("mariadb", self.folder, unprivileged(command))

    def start(self) -> None:
        """Make the data folder, start, and make the database and the connector's user."""
        make = [str(self._installer), "--no-defaults", f"--datadir={self.folder}/data", "--skip-test-db"]
        make += ["--auth-root-authentication-method=normal"]
        _run(unprivileged(make), self.folder)
        self._daemon.start(self._answers)
        with self.session("") as cursor:
            cursor.execute(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
            cursor.execute("CREATE USER 'debezium'@'127.0.0.1' IDENTIFIED BY 'debezium'")
            rights = "SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT, LOCK TABLES"
            cursor.execute(f"GRANT {rights} ON *.* TO 'debezium'@'127.0.0.1'")

    def stop(self) -> None:
        self._daemon.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            self.connect("").close()
        except pymysql.MySQLError:
            return False
        return True

    def connect(self, database: str | None = None) -> "pymysql.Connection[Cursor]":
        """A session of its own, in UTC, without autocommit."""
        return pymysql.connect(
            unix_socket=f"{self.folder}/socket",
            user="root",
            database=self.database if database is None else database,
            charset="utf8mb4",
            init_command="SET time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES'",
        )

    @contextmanager
    def session(self, database: str | None = None) -> Iterator[Cursor]:
        """A cursor whose changes are committed at the end."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()
        finally:
            connection.close()

    def connector(self, name: str, number: int, bootstrap: str) -> dict[str, str]:
        """Properties of a Debezium connector; ``number`` tells several apart."""
        return {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.port),
            "database.user": "debezium",
            "database.password": "debezium",
            "database.include.list": self.database,
            "database.server.id": str(5400 + number),
            "schema.history.internal.kafka.bootstrap.servers": bootstrap,
            "schema.history.internal.kafka.topic": f"history.{name}",
            "snapshot.locking.mode": "minimal",
            # Else BIGINT UNSIGNED passes for a signed number.
            "column.propagate.source.type": ".*",
        }

    def qualified(self, table: str) -> str:
        """As the connector and its topics name the table."""
        return f"{self.database}.{table}"

    def table(self, name: str) -> TruthTable:
        """Columns and rows as they are now, as texts."""
        with self.session() as cursor:
            cursor.execute(
                "SELECT column_name, data_type, column_type, column_key = 'PRI' FROM information_schema.columns "
                f"WHERE table_schema = '{self.database}' AND table_name = '{name}' ORDER BY ordinal_position"
            )
            found = cursor.fetchall()
            texts = ", ".join(_text(column, kind, full) for column, kind, full, _ in found)
            cursor.execute(f"SELECT {texts} FROM `{name}`")
            rows = tuple(tuple(row) for row in cursor.fetchall())
        columns = tuple({"name": column, "type": full, "key": bool(key)} for column, _, full, key in found)
        return TruthTable(name, columns, rows)


def _text(column: str, kind: str, full: str) -> str:
    if kind in _BINARY:
        return f"HEX(`{column}`)"
    if kind == "bit":
        return f"LPAD(BIN(`{column}`), {full[4:-1]}, '0')"
    if kind == "float":
        return f"CAST(CAST(`{column}` AS DOUBLE) AS CHAR)"
    return f"CAST(`{column}` AS CHAR)"


def _run(command: list[str], cwd: Path) -> None:
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd, timeout=120)
    if ran.returncode != 0:
        raise RuntimeError(f"{command} ended with {ran.returncode}:\n{(ran.stdout + ran.stderr)[-3000:]}")
