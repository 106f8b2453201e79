"""Column types: source types to ClickHouse types, and the converters of values, one small module per family."""

from ch_sink.decode.types.base import Converted, Converter, Encoding, OutOfRange
from ch_sink.decode.types.build import converter
from ch_sink.decode.types.choose import DOCUMENT, WIDE, clickhouse_type
from ch_sink.decode.types.target import arrow_type

__all__ = [
    "DOCUMENT",
    "WIDE",
    "Converted",
    "Converter",
    "Encoding",
    "OutOfRange",
    "arrow_type",
    "clickhouse_type",
    "converter",
]
