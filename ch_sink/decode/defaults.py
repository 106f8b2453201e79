"""A source column's default as ClickHouse SQL."""

from typing import Any

import msgspec

from ch_sink.decode.schema import SourceType
from ch_sink.decode.types import converter
from ch_sink.errors import ChSinkError
from ch_sink.policy import Policy
from ch_sink.table.model import Column

__all__ = ["default_sql"]

_NUMBERS = ("Int", "UInt", "Float")


def default_sql(source: SourceType, column_type: str) -> str | None:
    """SQL text of the schema's default for a column of that type; None where there is none or no text for it."""
    if not source.has_default or source.default is None or source.kind in ("array", "map", "struct"):
        return None
    try:
        literal: Any = source.default
        typed = converter(source, Column("default", column_type), encoding="json", policy=Policy(), omits=False)
        literal = msgspec.convert(literal, typed.wire)
        typed.convert([literal])
        text = converter(_wide(source), Column("default", "String"), encoding="json", policy=Policy(), omits=False)
        raw: bytes = text.convert([literal]).array[0].as_py()
        shown = raw.decode()
    except (ChSinkError, msgspec.ValidationError, UnicodeDecodeError, ValueError, TypeError):
        return None
    if column_type.startswith(_NUMBERS):
        return shown
    if source.name == "io.debezium.time.ZonedTimestamp" and column_type != "String":
        shown = shown.removesuffix("+00")
    quoted = "'" + shown.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return quoted if "String" in column_type else f"CAST({quoted} AS {column_type})"


def _wide(source: SourceType) -> SourceType:
    """The type whose ISO texts are written as ClickHouse reads them."""
    from ch_sink.decode.types import WIDE

    return SourceType(source.kind, source.name, (*source.parameters, WIDE), source.optional)
