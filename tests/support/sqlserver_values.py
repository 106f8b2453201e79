"""SQL Server's types: a column's declaration, the connector's field for it, and values of both.

The connector's values are those of its documentation. Which text the server has for a value: see `written`.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["VALUES", "Typed"]

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
