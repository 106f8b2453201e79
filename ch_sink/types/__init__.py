"""Column types: source types to ClickHouse types, and the converters of values."""

from ch_sink.types.arrow import arrow_type
from ch_sink.types.build import converter, expect_key, ignores_comment, may_be_guess, read_as
from ch_sink.types.column import DOCUMENT, WIDE, clickhouse_type
from ch_sink.types.converter import Converted, Converter, Encoding, OutOfRange

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
    "expect_key",
    "ignores_comment",
    "may_be_guess",
    "read_as",
]
