"""What the source column's own type adds to the schema."""

from typing import Any

import pytest

from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import ValuePolicy
from ch_sink.types import OutOfRange, clickhouse_type, converter
from ch_sink.types.column import Column
from ch_sink.types.connect import SourceType
from ch_sink.types.propagated_type import propagated_type
from tests.unit.types.columns import INT, make


def test_a_row_version_is_a_big_endian_integer_where_the_source_says_so() -> None:
    told = SourceType("bytes", parameters=(("__debezium.source.column.type", "rowversion"),))
    assert make(told, "UInt64").convert([bytes.fromhex("00000000000007d1"), None]).array.to_pylist() == [2001, None]
    assert make(told, "String").convert([b"\x00"]).array.to_pylist() == [b"\x00"]
    with pytest.raises(TableError):
        make(SourceType("bytes"), "UInt64")


def test_a_negative_number_is_an_unsigned_one_unless_the_source_says_signed() -> None:
    assert make(INT, "UInt64").convert([-1]).array.to_pylist() == [2**64 - 1]
    signed = SourceType("int64", parameters=(("__debezium.source.column.type", "BIGINT"),))
    with pytest.raises(OutOfRange):
        make(signed, "UInt64").convert([-1])


@pytest.mark.parametrize(("mode", "text"), [("hex", "00FF41"), ("base64", "AP9B"), ("base64-url-safe", "AP9B")])
def test_a_binary_column_sent_as_text_is_bytes_where_its_type_is_propagated(mode: Any, text: str) -> None:
    source = SourceType("string", parameters=(("__debezium.source.column.type", "VARBINARY"),))
    column = Column("x", "String")
    made = converter(source, column, encoding="json", policy=ValuePolicy(binary_handling=mode))
    assert made.convert([text, None]).array.to_pylist() == [b"\x00\xffA", None]
    as_sent = converter(source, column, encoding="json", policy=ValuePolicy())
    assert as_sent.convert([text]).array.to_pylist() == [text.encode()]
    with pytest.raises(DecodeError, match=mode):
        made.convert(["AA==", "not it!"])
    other = converter(SourceType("string"), column, encoding="json", policy=ValuePolicy(binary_handling=mode))
    assert other.convert([text]).array.to_pylist() == [text.encode()]


@pytest.mark.parametrize(
    ("length", "more", "shown"),
    [
        ("70", (), b"0" * 67 + b"101"),
        ("70", (("__debezium.source.column.type", "VARBIT"),), b"101"),
        ("2147483647", (), b"101"),
    ],
    ids=["BIT(70)", "VARBIT(70), told", "VARBIT"],
)
def test_bit_strings_are_as_long_as_is_known(length: str, more: Any, shown: bytes) -> None:
    """PostgreSQL's driver says 2**31 - 1 where there is no limit: nobody wants as many zeros."""
    source = SourceType("bytes", "io.debezium.data.Bits", (("length", length), *more))
    assert clickhouse_type(source) == "Nullable(String)"
    assert make(source, "Nullable(String)").convert([b"\x05", None]).array.to_pylist() == [shown, None]


@pytest.mark.parametrize(
    ("more", "column_type"),
    [((), "Nullable(String)"), ((("__debezium.source.column.scale", "0"),), "Nullable(Decimal(38, 0))")],
    ids=["NUMBER", "NUMBER(38)"],
)
def test_a_number_without_a_scale_holds_any(more: Any, column_type: str) -> None:
    """Oracle's connector tells 38 digits for a plain NUMBER, and no scale; its values may be 1.5."""
    told = (("__debezium.source.column.type", "NUMBER"), ("__debezium.source.column.length", "38"), *more)
    assert clickhouse_type(SourceType("string", parameters=told)) == column_type


@pytest.mark.parametrize("text", [" ", "\t\n", "²", "--1", "9" * 5000, ""])
def test_a_declaration_that_says_nothing_is_none(text: str) -> None:
    mark = "__debezium.source.column."
    found = propagated_type(SourceType("string", None, ((mark + "type", text), (mark + "length", text))))
    assert found.length is None
    assert not found.decimal
