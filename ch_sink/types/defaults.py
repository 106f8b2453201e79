"""A source column's default as ClickHouse SQL, for the DEFAULT of a generated column; and which ones are constant."""

import base64
import binascii
import re
from collections.abc import Collection

from ch_sink.errors import DecodeError
from ch_sink.types.calendar import INFINITE_TICKS, parse_instant
from ch_sink.types.chtype import parse_type
from ch_sink.types.column_type import ISO
from ch_sink.types.connect import SourceType
from ch_sink.types.lexer import Kind, columns_in, tokenize
from ch_sink.types.sql import literal

__all__ = ["default_sql", "is_constant"]

_EPOCH_FUNCTIONS = {
    "io.debezium.time.Timestamp": "fromUnixTimestamp64Milli",
    "org.apache.kafka.connect.data.Timestamp": "fromUnixTimestamp64Milli",
    "io.debezium.time.MicroTimestamp": "fromUnixTimestamp64Micro",
    "io.debezium.time.NanoTimestamp": "fromUnixTimestamp64Nano",
}
_DAYS = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_EXPRESSION = re.compile(r"::|^\(.*\)$|^[\w.]+\(.*\)$", re.DOTALL)
_CONSTANT = re.compile(r"CAST|_CAST|AS|true|false|NULL|to[A-Z]\w*|fromUnixTimestamp\w*|[A-Z]\w+")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_PLAIN_TEXTS = ("io.debezium.data.Enum", "io.debezium.data.Json", "io.debezium.data.Xml")


def default_sql(source: SourceType, column_type: str) -> str | None:
    """The expression behind DEFAULT; None where there is no default, it is null, or it cannot be written exactly.

    ``source.default`` is the literal of the JSON schema envelope (decimals in base64, times as numbers).
    """
    value = source.default
    if not source.has_default or value is None:
        return None
    bare = parse_type(column_type).bare
    if isinstance(value, bool):
        return ("true" if value else "false") if bare.name == "Bool" else str(int(value))
    if isinstance(value, int):
        return _number(source, value, bare.name)
    if isinstance(value, float):
        return repr(value) if bare.name.startswith("Float") else None
    if not isinstance(value, str):
        return None
    if source.name == "org.apache.kafka.connect.data.Decimal":
        return _decimal(source, value, bare.name)
    if source.kind == "string" and bare.name == "String" and (source.name is None or source.name in _PLAIN_TEXTS):
        # Connectors give the SQL of a default that they cannot evaluate, PostgreSQL's of generated columns: no value.
        return None if _EXPRESSION.search(value) else literal(value)
    if source.kind == "string" and source.name is None and bare.name == "Decimal":
        return literal(value) if _NUMBER.fullmatch(value) else None
    if source.name in ISO and bare.name == "DateTime64":
        return _moment(value)
    return None


def _moment(value: str) -> str | None:
    """An ISO date-time. 1970 is what comes wherever the source says CURRENT_TIMESTAMP (seen): never taken over."""
    try:
        ticks = parse_instant(value, 6)
    except DecodeError:
        return None
    return f"fromUnixTimestamp64Micro({ticks}, 'UTC')" if ticks and ticks not in INFINITE_TICKS else None


def is_constant(expression: str, columns: Collection[str]) -> bool:
    """Whether a DEFAULT's text is a literal, perhaps converted: no column, and nothing that varies as now() does."""
    if columns_in(expression, columns):
        return False
    return all(_CONSTANT.fullmatch(t.value) for t in tokenize(expression) if t.kind in (Kind.NAME, Kind.QUOTED))


def _number(source: SourceType, value: int, target: str) -> str | None:
    if source.name in _EPOCH_FUNCTIONS:
        return f"{_EPOCH_FUNCTIONS[source.name]}({value}, 'UTC')" if target == "DateTime64" else None
    if source.name in _DAYS:
        return f"toDate32('1970-01-01') + {value}" if target == "Date32" else None
    # Whole numbers of other semantic types (Year) stand for themselves; times of day do not.
    integer = target.startswith(("Int", "UInt")) and (source.name is None or source.name == "io.debezium.time.Year")
    return str(value) if integer or (target.startswith("Float") and source.name is None) else None


def _decimal(source: SourceType, value: str, target: str) -> str | None:
    try:
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    except (binascii.Error, ValueError):
        return None
    scale = int(source.parameter("scale") or 0)
    if target.startswith(("Int", "UInt")):
        return str(unscaled) if scale == 0 else None
    if target not in ("Decimal", "String"):
        return None
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    text = digits if scale == 0 else f"{digits[:-scale]}.{digits[-scale:]}"
    return literal(("-" if unscaled < 0 else "") + text)
