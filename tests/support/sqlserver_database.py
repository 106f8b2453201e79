"""Tables as SQL Server would send them, behind `TdsServer`: the queries of the reader, and no others.

Never compared with a real server: how it writes each type in each style is taken from its documentation. A style that
a query does not name gives the server's default text, which loses digits, so that a query without it is found out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from struct import pack, unpack
from typing import Any

from tests.support.tds_server import Answer, Refused, TdsServer

__all__ = ["Database", "Table", "written"]

_TYPE = re.compile(r"(computed )?(\w+)(?:\((max|\d+)(?:,(\d+))?\))?")
_CONVERTED = re.compile(r"CONVERT\((\w+)(?:\((max|\d+)\))?, (.*?)(?:, (\d+))?\) AS (\[(?:[^\]]|\]\])*\])(?:, |$)")
_SELECT = re.compile(r"SELECT (CONVERT.*) FROM ((?:\[[^\]]*\]\.?)+)(?: WHERE (.*))?", re.DOTALL)
_LIMIT = re.compile(r"\[(?P<name>[^\]]*)\] (?P<sign>>=|<) (?P<limit>-?\d+)")


@dataclass
class Table:
    """A table: its columns as one declares them, its rows as texts with every digit (bytes as hexadecimal digits)."""

    columns: Mapping[str, str]
    rows: Sequence[Sequence[str | None]]
    key: str = ""
    """The first column of its primary key."""


@dataclass
class Database:
    """What the server has. Start it with `serve`."""

    tables: dict[str, Table] = field(default_factory=dict)
    """By quoted name: ``[dbo].[orders]``."""
    versions_rows: bool = True
    captured: str | None = "00000028000000100004"
    """The highest position of change data capture; None if it is not enabled."""
    log_end: str | None = "00000028:00000010:0005"
    """None if the user may not see it."""

    def serve(self) -> TdsServer:
        return TdsServer(self.answer)

    def answer(self, sql: str) -> Answer:
        """Raises Refused."""
        if "snapshot_isolation_state" in sql:
            return Answer(["snapshot_isolation_state"], [[int(self.versions_rows)]])
        if "fn_cdc_get_max_lsn" in sql:
            if self.captured is None:
                raise Refused(208, "Invalid object name 'cdc.lsn_time_mapping'.")
            return Answer(["lsn"], [[bytes.fromhex(self.captured)]])
        if "dm_db_log_stats" in sql:
            if self.log_end is None:
                raise Refused(262, "VIEW DATABASE STATE permission denied in database 'shop'.")
            return Answer(["log_end_lsn"], [[self.log_end]])
        found = re.search(r"OBJECT_ID\(N?'(.*?)'\)", sql)
        table = self.tables.get(found[1]) if found else None
        if "sys.columns c\n" in sql:
            described = [_described(name, kind) for name, kind in table.columns.items()] if table else []
            return Answer(["name", "kind", "max_length", "precision", "scale", "is_computed"], described)
        if "sys.partitions" in sql:
            return Answer(["n"], [[len(table.rows) if table else 0]])
        if "sys.index_columns" in sql:
            integer = table is not None and re.match(r"(tiny|small|big)?int\b", table.columns.get(table.key, ""))
            return Answer(["name"], [[table.key]] if table and integer else [])
        if ends := re.fullmatch(r"SELECT MIN\(\[(.*)\]\) AS low, MAX\(\[\1\]\) AS high FROM (.*)", sql):
            rows = self._table(ends[2])
            numbers = [int(row[list(rows.columns).index(ends[1])] or 0) for row in rows.rows]
            return Answer(["low", "high"], [[min(numbers), max(numbers)] if numbers else [None, None]])
        return self._selected(sql)

    def _selected(self, sql: str) -> Answer:
        found = _SELECT.fullmatch(sql)
        if found is None:
            raise Refused(102, f"Incorrect syntax near '{sql[:40]}'.")
        table, names = self._table(found[2]), [m[5] for m in _CONVERTED.finditer(found[1])]
        parts = list(_CONVERTED.finditer(found[1]))
        if sum(len(m[0]) for m in parts) != len(found[1]):
            raise Refused(102, "Incorrect syntax near 'CONVERT'.")
        columns = [self._column(table, m) for m in parts]
        limits = [(m["name"], m["sign"], int(m["limit"])) for m in _LIMIT.finditer(found[3] or "")]
        rows = [row for row in table.rows if all(_within(table, row, *limit) for limit in limits)]
        made = [[None if row[at] is None else how(row[at]) for at, how in columns] for row in rows]
        large = frozenset(n for n, m in zip(names, parts, strict=True) if m[2] == "max")
        return Answer(names, made, large)

    def _column(self, table: Table, found: "re.Match[str]") -> tuple[int, Any]:
        name = found[5][1:-1].replace("]]", "]")
        if name not in table.columns:
            raise Refused(207, f"Invalid column name '{name}'.")
        kind, style = table.columns[name], int(found[4] or 0)
        in_utc = "SWITCHOFFSET" in found[3]
        return list(table.columns).index(name), lambda text: written(kind, found[1], style, text, in_utc=in_utc)

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise Refused(208, f"Invalid object name '{name.replace('[', '').replace(']', '')}'.")
        return self.tables[name]


def written(kind: str, target: str, style: int, text: str, *, in_utc: bool = False) -> str | bytes:
    """What the server makes of a value, ``CONVERT(target, value, style)``."""
    found = _TYPE.fullmatch(kind)
    assert found is not None, kind
    base, digits = found[2], int(found[3] or 0) if found[3] != "max" else 0
    if target == "varbinary":
        return bytes.fromhex(text)
    if base in ("real", "float"):
        number = float(text) if base == "float" else float(unpack("<f", pack("<f", float(text)))[0])
        return f"{number:.16e}" if style == 3 else f"{number:.6g}"
    if base in ("money", "smallmoney"):
        return str(Decimal(text).quantize(Decimal("0.0001" if style == 2 else "0.01")))
    if base in ("datetime", "smalldatetime", "datetime2", "time", "date", "datetimeoffset"):
        return _moment(base, digits if base not in ("datetime", "smalldatetime") else 3, style, text, in_utc=in_utc)
    return text


def _moment(base: str, digits: int, style: int, text: str, *, in_utc: bool) -> str:
    if style == 0 or (style == 23) != (base == "date"):
        return "Jun 20 2018  3:13PM"
    if base == "date":
        return text
    if base == "datetimeoffset":
        moment, _, offset = text.rpartition(" ")
        head, _, part = moment.partition(".")
        if in_utc:
            sign, hours, minutes = (-1 if offset[0] == "-" else 1), int(offset[1:3]), int(offset[4:6])
            head = str(datetime.fromisoformat(head) - sign * timedelta(hours=hours, minutes=minutes))
            offset = "+00:00"
        fraction = f".{part.ljust(digits, '0')}" if digits else ""
        gap = "" if style in (126, 127) else " "
        return (head.replace(" ", "T") if style in (126, 127) else head) + fraction + gap + offset
    head, _, part = text.partition(".")
    return head + (f".{part.ljust(digits, '0')}" if digits else "")


def _within(table: Table, row: Sequence[str | None], name: str, sign: str, limit: int) -> bool:
    value = int(row[list(table.columns).index(name)] or 0)
    return value >= limit if sign == ">=" else value < limit


def _described(name: str, declared: str) -> list[Any]:
    """The row of ``sys.columns``."""
    found = _TYPE.fullmatch(declared)
    assert found is not None, declared
    base, first, second = found[2], found[3], int(found[4] or 0)
    number = 0 if first in (None, "max") else int(first)
    length = -1 if first == "max" else number * (2 if base.startswith("n") else 1)
    precision, scale = (number, second) if base in ("decimal", "numeric") else (53 if base == "float" else 24, number)
    kind = "timestamp" if base == "rowversion" else base
    return [name, kind, length, precision, scale, int(bool(found[1]))]
