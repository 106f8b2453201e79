"""MySQL and MariaDB: rows through an unbuffered cursor, as texts; positions in the binary log."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from ch_sink.errors import SourceError
from ch_sink.snapshot.reader import SourceAddress, SqlReader, url_options

_POS_BITS = 40
_SETTINGS = f"SET time_zone = '+00:00', sql_mode = '', sql_select_limit = {2**64 - 1}"
"""The server's own settings may cut results off, or fill a CHAR up with spaces."""
_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
"""Where the server's own level is READ UNCOMMITTED, a reader sees rows that may be rolled back."""
_ESTIMATE = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_KEY = """
SELECT s.COLUMN_NAME FROM information_schema.STATISTICS s JOIN information_schema.COLUMNS c
USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME) WHERE s.TABLE_SCHEMA = %s AND s.TABLE_NAME = %s
AND s.INDEX_NAME = 'PRIMARY' AND s.SEQ_IN_INDEX = 1 AND c.DATA_TYPE LIKE '%%int'"""


class MysqlReader(SqlReader):
    """One table, over one connection."""

    _errors = (pymysql.MySQLError,)
    _estimate, _key = _ESTIMATE, _KEY

    def __init__(self, address: SourceAddress) -> None:
        super().__init__(address)
        self._names = (address.schema, address.table)
        self._table = ".".join(map(self._quoted, self._names))
        tls: dict[str, Any] = dict(url_options(address.url))
        if "ssl_ca" in tls:
            tls.update(ssl_verify_cert=True, ssl_verify_identity=True)
        try:
            self._connection = pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.username,
                password=address.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=10,
                conv={},
                init_command=_SETTINGS,
                **tls,
            )
            with self._connection.cursor() as cursor:
                cursor.execute(_COMMITTED)
        except (pymysql.MySQLError, OSError) as error:  # the latter of a certificate's file
            raise self._failure("refuses the login", error) from None

    def position(self) -> int:
        """File number (24 bits) and position (40 bits), as versions hold them; 0 of a replica, whose log is another."""
        if self._is_replica():
            return 0
        try:
            row = self._one("SHOW BINARY LOG STATUS")
        except SourceError:
            row = self._one("SHOW MASTER STATUS", doing="does not show its position (needs REPLICATION CLIENT)")
        number = re.search(r"\.(\d+)$", str(row[0])) if row else None
        return (int(number[1]) << _POS_BITS) | int(row[1]) if row and number else 0

    def _is_replica(self) -> bool:
        """Whether the server follows another one; False if this user may not see that."""
        read_only = self._one("SELECT @@global.read_only")
        if read_only is not None and str(read_only[0]) not in ("0", "OFF"):
            return True
        for sql in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
            with suppress(SourceError):
                return self._one(sql) is not None
        return False

    def settled(self, patience: float) -> int:
        position = self.position()
        # A transaction is written to the log a moment before the engine shows it.
        time.sleep(min(1.0, patience))
        return position

    def columns(self) -> dict[str, str]:
        return {str(row[0]): _named(str(row[1])) for row in self._all(f"SHOW COLUMNS FROM {self._table}")}

    def _listed(self, names: Sequence[str]) -> str:
        kinds = self.columns()
        return ", ".join(self._quoted(name) + _exact(kinds.get(name, "")) for name in names)

    def _quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def _unbuffered(self) -> SSCursor:
        return self._connection.cursor(SSCursor)

    def _leave(self, cursor: SSCursor) -> None:
        """The driver reads all rows that are left before it lets go of them, also from a server that is gone."""
        result = cursor._result
        if result is not None and result.unbuffered_active:
            result.unbuffered_active = False
            self.close()
        cursor.close()

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


def _named(kind: str) -> str:
    """MySQL writes its own JSON otherwise than the connector does, which reads it from the binary log."""
    return "json (binary)" if kind == "json" else kind


def _exact(kind: str) -> str:
    """A FLOAT as a DOUBLE: as text it has six digits only. Of other numbers without the zeros that fill them up."""
    return " + 0e0" if kind.startswith("float") else " + 0" if kind.endswith("zerofill") else ""
