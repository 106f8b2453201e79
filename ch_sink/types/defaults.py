"""A source column's default as ClickHouse SQL, for the DEFAULT of a generated column; and which ones are constant."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from ch_sink.errors import DecodeError, TableError
from ch_sink.types.build import converter
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import Converter
from ch_sink.types.lexer import Kind, columns_in, tokenize
from ch_sink.types.propagated_type import propagated_type
from ch_sink.types.sql_values import sql_value
from ch_sink.types.value_policy import ValuePolicy

__all__ = ["default_sql", "is_constant", "without_expression"]

_MOMENTS = (
    "io.debezium.time.Timestamp",
    "io.debezium.time.MicroTimestamp",
    "io.debezium.time.NanoTimestamp",
    "io.debezium.time.ZonedTimestamp",
    "io.debezium.time.IsoTimestamp",
    "org.apache.kafka.connect.data.Timestamp",
)
_EPOCH = re.compile(r"1970-01-01[T ]00:00:00(\.0+)?(Z|\+00:00)?", re.ASCII)
_EXPRESSION = re.compile(r"::|^\(.*\)$|^[\w.]+\(.*\)$", re.DOTALL)
_CONSTANT = re.compile(r"CAST|_CAST|AS|true|false|NULL|tuple|array|map|unhex|to[A-Z]\w*|fromUnixTimestamp\w*|[A-Z]\w+")


def default_sql(source: SourceType, column_type: str, columns: Collection[str] = ()) -> str | None:
    """The expression for DEFAULT; None if there is no default, it is null, or the column cannot hold it.

    ``source.default`` is a literal as events with a schema have it (decimals in base64, times as numbers), and it is
    converted as theirs are. ``columns``: the row's columns. A text is a value, whatever it looks like, unless it is an
    expression over these: PostgreSQL's connector states the expression of a generated column as its default.
    """
    value = source.default
    if not source.has_default or value is None or _is_current_time(source, value):
        return None
    if source.kind == "string" and (_is_generated(str(value), columns) or propagated_type(source).is_binary):
        return None  # a binary column that comes as text: in which encoding, the schema does not say
    try:
        made = converter(source, Column("default", column_type), encoding="json", policy=ValuePolicy(), omits=False)
        found = made.convert([_literal(value, made)]).array[0]
    except (DecodeError, TableError):
        return None
    return sql_value(found, parse_type(column_type)) if found.is_valid else None


def without_expression(source: SourceType, columns: Collection[str]) -> SourceType:
    """The type without a default that is an expression over the row's columns: it holds under their names only."""
    stated = source.default if source.has_default and source.kind == "string" else None
    if stated is None or not _is_generated(str(stated), columns):
        return source
    return replace(source, default=None, has_default=False)


def _literal(value: object, made: Converter) -> Any:
    """The literal as the decoder of events hands it to the converter."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=made.wire)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise DecodeError(f"the schema's default is no literal of its type: {error}") from error


def _is_current_time(source: SourceType, value: object) -> bool:
    """Connectors write 1970 for a date-time whose default is CURRENT_TIMESTAMP."""
    if source.name not in _MOMENTS:
        return False
    return value == 0 or (isinstance(value, str) and _EPOCH.fullmatch(value) is not None)


def _is_generated(text: str, columns: Collection[str]) -> bool:
    if not columns or _EXPRESSION.search(text) is None:
        return False
    try:
        return bool(columns_in(text, columns))
    except TableError:  # no SQL
        return False


def is_constant(expression: str, columns: Collection[str]) -> bool:
    """Whether a DEFAULT is a literal, perhaps converted: no column in it, and nothing that varies as now() does."""
    if columns_in(expression, columns):
        return False
    return all(_CONSTANT.fullmatch(t.value) for t in tokenize(expression) if t.kind in (Kind.NAME, Kind.QUOTED))
