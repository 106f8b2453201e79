"""Modes of the connector, for events that declare no types."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from ch_sink.types import converter
from ch_sink.types.column import Column, ValuePolicy
from tests.unit.types.columns import bits


@pytest.mark.parametrize(
    ("modes", "column", "comment", "literal", "value"),
    [
        ({"decimal_handling": "string"}, "Decimal(9, 2)", "", "1234", Decimal("1234.00")),
        ({}, "Decimal(9, 0)", "", "AQA=", Decimal(256)),
        ({"time_precision": "microseconds"}, "DateTime64(3, 'UTC')", "", 1_500_000, 1_500),
        ({"time_precision": "nanoseconds"}, "DateTime64(6, 'UTC')", "", 1_500_000, 1_500),
        ({"time_precision": "connect"}, "DateTime64(6, 'UTC')", "", 1_500, 1_500_000),
        ({"time_precision": "isostring"}, "DateTime64(3, 'UTC')", "", "1970-01-01T00:00:01.5Z", 1_500),
        ({"time_precision": "adaptive_time_microseconds"}, "Time64(3)", "", 1_500, "00:00:00.001"),
        ({}, "Time64(3)", "", 1_500, "00:00:01.500"),
        ({"binary_handling": "hex"}, "String", "debezium: bytes", "00ff", b"\x00\xff"),
        ({"binary_handling": "base64-url-safe"}, "String", "debezium: bytes", "-_8=", b"\xfb\xff"),
        ({"binary_handling": "base64"}, "String", "debezium: bytes", "+/8=", b"\xfb\xff"),
    ],
)
def test_the_connectors_modes_tell_what_plain_json_does_not(
    modes: dict[str, Any], column: str, comment: str, literal: Any, value: Any
) -> None:
    made = converter(None, Column("x", column, comment=comment), encoding="json", policy=ValuePolicy(**modes))
    typed = msgspec.convert(literal, made.wire)
    (found,) = made.convert([typed]).array
    assert (bits(found) if isinstance(value, int) else found.as_py()) == value
