"""A stand-in of SQL Server: its database, the values that it sends, and a stream of its changes."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import Recorded
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import config_file, inside, run_inline
from tests.support.tds_server import Answer, Refused, TdsServer

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


_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."


@dataclass(frozen=True)
class Typed:
    """A column of one type. ``values``: as the table has it, as the connector sends it."""

    name: str
    declared: str
    kind: str
    semantic: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    values: Sequence[tuple[str, Any]] = ()

    @property
    def field(self) -> dict[str, Any]:
        """The field of the events' schema."""
        made: dict[str, Any] = {"type": self.kind, "optional": True, "field": self.name}
        made |= {"name": self.semantic, "version": 1} if self.semantic else {}
        return made | ({"parameters": dict(self.parameters)} if self.parameters else {})


def _base64(number: int) -> str:
    return b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def _decimal(precision: int, scale: int) -> tuple[tuple[str, str], ...]:
    return (("scale", str(scale)), ("connect.decimal.precision", str(precision)))


def _bytes(digits: str) -> tuple[str, str]:
    return digits, b64encode(bytes.fromhex(digits)).decode()


VALUES = (
    Typed("a_bit", "bit", "boolean", values=[("1", True), ("0", False)]),
    Typed("a_tinyint", "tinyint", "int16", values=[("255", 255), ("0", 0)]),
    Typed("a_bigint", "bigint", "int64", values=[(str(-(2**63)), -(2**63)), (str(2**63 - 1), 2**63 - 1)]),
    Typed("a_real", "real", "float", values=[("1.1", 1.1), ("-3.4028235e38", -3.4028235e38)]),
    Typed("a_float", "float", "double", values=[("0.1", 0.1), ("-1.7976931348623157e308", -1.7976931348623157e308)]),
    Typed(
        "a_decimal", "decimal(18,4)", "bytes", _CONNECT + "Decimal", _decimal(18, 4),
        [("99999999999999.9999", _base64(10**18 - 1)), ("-0.0001", _base64(-1))],
    ),
    Typed(
        "a_money", "money", "bytes", _CONNECT + "Decimal", _decimal(19, 4),
        [("922337203685477.5807", _base64(2**63 - 1)), ("-0.0001", _base64(-1))],
    ),
    Typed("a_smallmoney", "smallmoney", "bytes", _CONNECT + "Decimal", _decimal(10, 4), [("1.5", _base64(15000))]),
    Typed("a_date", "date", "int32", _TIME + "Date", values=[("2024-02-29", 19782), ("0001-01-01", -719162)]),
    Typed("a_time3", "time(3)", "int32", _TIME + "Time", values=[("23:59:59.999", 86_399_999)]),
    Typed("a_time6", "time(6)", "int64", _TIME + "MicroTime", values=[("00:00:00.000001", 1)]),
    Typed("a_time7", "time(7)", "int64", _TIME + "NanoTime", values=[("23:59:59.9999999", 86_399_999_999_900)]),
    Typed(
        "a_datetime", "datetime", "int64", _TIME + "Timestamp",
        values=[("2018-06-20 15:13:16.997", 1529507596997), ("1753-01-01 00:00:00.003", -6847804799997)],
    ),
    Typed(
        "a_smalldatetime", "smalldatetime", "int64", _TIME + "Timestamp",
        values=[("2018-06-20 15:13:00", 1529507580000)],
    ),
    Typed(
        "a_datetime2_3", "datetime2(3)", "int64", _TIME + "Timestamp",
        values=[("2018-06-20 15:13:16.945", 1529507596945)],
    ),
    Typed(
        "a_datetime2_6", "datetime2(6)", "int64", _TIME + "MicroTimestamp",
        values=[("2018-06-20 15:13:16.945104", 1529507596945104)],
    ),
    Typed(
        "a_datetime2_7", "datetime2(7)", "int64", _TIME + "NanoTimestamp",
        values=[("2018-06-20 15:13:16.9451042", 1529507596945104200), ("1969-12-31 23:59:59.9999999", -100)],
    ),
    Typed(
        "a_datetimeoffset", "datetimeoffset(7)", "string", _TIME + "ZonedTimestamp",
        values=[
            ("2018-07-18 13:14:15.1234567 +05:30", "2018-07-18T13:14:15.1234567+05:30"),
            ("2018-07-18 13:14:15.1000000 -08:00", "2018-07-18T13:14:15.1-08:00"),
        ],
    ),
    Typed("a_char", "char(5)", "string", values=[("ab   ", "ab   ")]),
    Typed("a_nvarchar", "nvarchar(20)", "string", values=[("", ""), ("Größe 🦀", "Größe 🦀")]),
    Typed("a_long", "nvarchar(max)", "string", values=[("long " * 3000, "long " * 3000), ("", "")]),
    Typed("an_xml", "xml", "string", _DATA + "Xml", values=[('<a b="1">é</a>', '<a b="1">é</a>')]),
    Typed("a_guid", "uniqueidentifier", "string", values=[("6F9619FF-8B86-D011-B42D-00C04FC964FF",) * 2]),
    Typed("a_binary", "varbinary(8)", "bytes", values=[_bytes("00ff10"), _bytes("")]),
    Typed("a_rowversion", "rowversion", "bytes", values=[_bytes("00000000000007d1")]),
)  # fmt: skip


Sent = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value, headers."""


@dataclass
class SqlServerStand:
    """A stream, its table, and the database that it comes from."""

    folder: Path
    kafka: LocalKafka
    clickhouse: EmbeddedClickHouse
    client: Client
    name: str
    source: Database
    server: TdsServer
    config: Path = field(init=False)
    topic: str = ""
    read: str = "testDB"
    """The database that the events are of."""

    def prepare(self, table: str, events: Sequence[Sent] = ()) -> None:
        """The topic, the file and what `init` makes; nothing is read yet."""
        self.topic = topic = f"{fresh_topic('server')}.shop.dbo.{table}"
        self.kafka.create_topic(topic, 1)
        produce(
            self.kafka,
            [Recorded(topic, 0, i, 1_700_000_000_000 + i, k, v, tuple(h)) for i, (k, v, h) in enumerate(events)],
            topic,
        )
        (self.folder / "password").write_text(self.server.password)
        self.config = config_file(
            self.folder, self.kafka, self.clickhouse, topic, table, self.name,
            source={
                "url": f"sqlserver://debezium@127.0.0.1:{self.server.port}/{self.read}",
                "password_file": str(self.folder / "password"),
            },
        )  # fmt: skip
        made = inside("init", self.config, "--apply")
        assert made.returncode == 0, made.stderr

    def stream(self, table: str, events: Sequence[Sent]) -> None:
        self.prepare(table, events)
        run_inline(self.config)

    def send(self, key: Any, value: Any) -> None:
        """One change more, which the stream applies."""
        record = Recorded(self.topic, 0, 0, 1, json.dumps(key).encode(), json.dumps(value).encode(), ())
        produce(self.kafka, [record], self.topic)
        run_inline(self.config)

    def verify(self, *more: str) -> tuple[int, dict[str, Any]]:
        done = inside("verify", self.config, "--json", "--patience", "0", *more)
        assert done.stdout, done.stderr
        assert self.server.password not in done.stdout + done.stderr
        [stream] = json.loads(done.stdout)["streams"]
        return done.returncode, stream


@pytest.fixture
def sqlserver_stand(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> Iterator[SqlServerStand]:
    source = Database()
    with closing(source.serve()) as server:
        yield SqlServerStand(tmp_path, mock_kafka, clickhouse, client, database, source, server)
