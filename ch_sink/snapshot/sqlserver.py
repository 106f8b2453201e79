"""SQL Server: rows through an unbuffered cursor, as texts that the server writes; positions in the transaction log.

The server converts the values, so that no driver rounds seven fractional digits to six, or money to a float.
"""

import time
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import pymssql

from ch_sink.errors import ConfigError, PositionError, SourceError
from ch_sink.snapshot.reader import NO_PROOF, SourceAddress, SqlReader
from ch_sink.sources.logs import lsn

_VERSIONS_ROWS = "SELECT snapshot_isolation_state FROM sys.databases WHERE database_id = DB_ID()"
_COLUMNS = """
SELECT c.name, TYPE_NAME(CASE WHEN c.system_type_id = 240 THEN c.user_type_id ELSE c.system_type_id END) AS kind,
c.max_length, c.precision, c.scale, c.is_computed FROM sys.columns c
WHERE c.object_id = OBJECT_ID(%s) ORDER BY c.column_id"""
"""240 is the system type of all CLR types; any other type that a user has defined has that of its base."""
_ESTIMATE = "SELECT SUM(p.rows) AS n FROM sys.partitions p WHERE p.object_id = OBJECT_ID(%s) AND p.index_id IN (0, 1)"
_KEY = """
SELECT c.name FROM sys.indexes i
JOIN sys.index_columns k ON k.object_id = i.object_id AND k.index_id = i.index_id AND k.key_ordinal = 1
JOIN sys.columns c ON c.object_id = k.object_id AND c.column_id = k.column_id
WHERE i.object_id = OBJECT_ID(%s) AND i.is_primary_key = 1
AND TYPE_NAME(c.system_type_id) IN ('tinyint', 'smallint', 'int', 'bigint')"""
_LOG_END = "SELECT log_end_lsn FROM sys.dm_db_log_stats(DB_ID())"
_ENCRYPTION = ("off", "request", "require")
_CAPTURED = "SELECT sys.fn_cdc_get_max_lsn() AS lsn"


class SqlServerReader(SqlReader):
    """One table, over one connection.

    If the database versions its rows (ALLOW_SNAPSHOT_ISOLATION), a query reads them as they were when it began, and
    locks nothing. Else it reads committed rows, each of which it locks for a moment.
    """

    _errors = (pymssql.Error,)
    _estimate, _key = _ESTIMATE, _KEY

    def __init__(self, address: SourceAddress) -> None:
        super().__init__(address)
        self._table = f"{self._quoted(address.schema)}.{self._quoted(address.table)}"
        self._names = (self._table,)
        self._kinds: dict[str, str] = {}
        try:
            self._connection = pymssql.connect(
                server=address.host,
                port=str(address.port),
                user=address.username,
                password=address.password,
                database=address.database,
                login_timeout=10,
                charset="UTF-8",
                appname="ch_sink",
                autocommit=True,
                encryption=_encryption(address.url),
            )
        except pymssql.Error as error:
            raise self._failure("refuses the login", error) from None
        row = self._one(_VERSIONS_ROWS)
        if row is not None and row[0] == 1:
            self._all("SET TRANSACTION ISOLATION LEVEL SNAPSHOT")

    def position(self) -> int:
        """The end of the log, which the capture job reaches later; `NO_PROOF` if the user may not see it."""
        try:
            row = self._one(_LOG_END)
            return lsn(str(row[0]), "log_end_lsn") if row is not None and row[0] is not None else NO_PROOF
        except (SourceError, PositionError):
            return NO_PROOF

    def settled(self, patience: float) -> int:
        row = self._one(_CAPTURED, doing="does not show its position (is change data capture enabled?)")
        # A transaction is written to the log a moment before others see its rows.
        time.sleep(min(1.0, patience))
        return int.from_bytes(row[0], "big") if row is not None and row[0] is not None else 0

    def columns(self) -> dict[str, str]:
        found = self._all(_COLUMNS, self._table)
        if not found:
            raise self._failure("cannot be described", "it does not exist, or the user may not see it")
        self._kinds = {str(row[0]): type_text(*row[1:]) for row in found}
        return dict(self._kinds)

    def _listed(self, names: Sequence[str]) -> str:
        kinds = self._kinds or self.columns()
        return ", ".join(read_as(kinds.get(name, ""), self._quoted(name)) for name in names)

    def _quoted(self, name: str) -> str:
        return "[" + name.replace("]", "]]") + "]"

    def _said(self, error: Exception) -> str:
        return _said(error)


def _encryption(url: str) -> str | None:
    """The option of this name; None leaves it to both sides. The driver cannot check the server's certificate."""
    given = parse_qs(urlsplit(url).query).get("encryption", [""])[0]
    if given and given not in _ENCRYPTION:
        raise ConfigError(
            f"source.url: encryption={given} is none of {', '.join(_ENCRYPTION)}",
            hint="Write ?encryption=require, or leave it out.",
        )
    return given or None


def _said(error: Exception) -> str:
    """The message of the server, or else of the driver, without the driver's own frame around it."""
    given = error.args[-1] if error.args else ""
    given = given[-1] if isinstance(given, tuple) and given else given
    text = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
    server, _, driver = text.partition("DB-Lib error message")
    lines = [line.strip() for line in driver.splitlines()[1:] if line.strip()]
    return " ".join(server.split()) or (lines[0] if lines else text)


_WRITTEN = {
    "bit": "CONVERT(varchar(1), {})",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "CONVERT(varchar(20), {})"),
    # Style 3 distinguishes every two numbers.
    **dict.fromkeys(("real", "float"), "CONVERT(varchar(32), {}, 3)"),
    **dict.fromkeys(("decimal", "numeric"), "CONVERT(varchar(42), {})"),
    # Style 2 has all four digits after the point, and no commas.
    **dict.fromkeys(("money", "smallmoney"), "CONVERT(varchar(30), {}, 2)"),
    "date": "CONVERT(varchar(10), {}, 23)",
    **dict.fromkeys(("datetime", "smalldatetime", "datetime2"), "CONVERT(varchar(27), {}, 121)"),
    "time": "CONVERT(varchar(16), {}, 121)",
    "datetimeoffset": "CONVERT(varchar(34), SWITCHOFFSET({}, '+00:00'), 126)",
    "uniqueidentifier": "CONVERT(varchar(36), {})",
    **dict.fromkeys(("binary", "varbinary", "image", "rowversion", "hierarchyid"), "CONVERT(varbinary(max), {})"),
}
_WITH_LENGTH = {"char": 1, "varchar": 1, "binary": 1, "varbinary": 1, "nchar": 2, "nvarchar": 2}
"""Bytes of a character."""
_WITH_DIGITS = ("time", "datetime2", "datetimeoffset")


def type_text(name: str, max_length: int, precision: int, scale: int, computed: bool | int) -> str:
    """A type as one declares it, from its row in ``sys.columns``: ``decimal(12,2)``, ``nvarchar(max)``.

    Computed columns are ``computed …``: change data capture records no values of theirs. What SQL Server calls
    ``timestamp`` is not a time, and has its other name.
    """
    text = "rowversion" if name == "timestamp" else name
    if name in ("decimal", "numeric"):
        text = f"{name}({precision},{scale})"
    elif name in _WITH_LENGTH:
        text = f"{name}({'max' if max_length < 0 else max_length // _WITH_LENGTH[name]})"
    elif name in ("real", "float"):
        text = f"{name}({precision})"
    elif name in _WITH_DIGITS:
        text = f"{name}({scale})"
    elif name in ("geometry", "geography"):
        text = f"clr {name}"
    return f"computed {text}" if computed else text


def read_as(kind: str, name: str) -> str:
    """SQL for a column's value as text or bytes. ``name``: quoted."""
    written = _WRITTEN.get(kind.partition("(")[0], "CONVERT(nvarchar(max), {})")
    return f"{written.replace('{}', name)} AS {name}"
