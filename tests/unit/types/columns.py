"""One column's converter, and its values as integers."""

from typing import Any

from ch_sink.types import converter
from ch_sink.types.column import WIDE_YEARS, Column, ValuePolicy, Years
from ch_sink.types.connect import SourceType

P = "__debezium_unavailable_value"


INT, TEXT = SourceType("int64"), SourceType("string")


def make(source: SourceType | None, column_type: str, out_of_range: Any = "fail", years: Years = WIDE_YEARS) -> Any:
    policy = ValuePolicy(out_of_range=out_of_range)
    return converter(source, Column("x", column_type), encoding="avro", policy=policy, years=years)


def bits(value: Any) -> int:
    """The integer of a number, a date or a timestamp of any year, or a little-endian wide integer."""
    if isinstance(value.as_py() if str(value.type).startswith("fixed") else None, bytes):
        return int.from_bytes(value.as_py(), "little", signed=True)
    return int(value.cast("int32").as_py() if str(value.type) == "date32[day]" else value.cast("int64").as_py())
