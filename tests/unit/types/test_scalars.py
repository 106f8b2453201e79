"""Values at the ends of their ranges; UUIDs."""

import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.errors import DecodeError, TableError
from ch_sink.types import OutOfRange
from ch_sink.types.connect import SourceType
from ch_sink.types.scalars import Uuids
from tests.unit.types.columns import INT, TEXT, bits, make


@pytest.mark.parametrize(
    ("source", "column_type", "value", "clamped"),
    [
        (INT, "Int8", 128, 127),
        (INT, "UInt16", -1, 0),
        (INT, "Int128", 2**127, 2**127 - 1),
        (SourceType("int32", "io.debezium.time.Date"), "Date32", 2932897, 2932896),
        (SourceType("int32", "io.debezium.time.Date"), "Date", -1, 0),
        # PostgreSQL's infinite dates, all of them negative numbers
        (SourceType("int32", "io.debezium.time.Date"), "Date32", -2147472692, 2932896),
        (SourceType("int32", "io.debezium.time.Date"), "Date32", -622191234, 2932896),
        (SourceType("string", "io.debezium.time.IsoDate"), "Date32", "infinity", 2932896),
        (SourceType("int32", "io.debezium.time.Date"), "Date32", -2147472691, -719528),
        (SourceType("int32", "io.debezium.time.Date"), "Date32", -625821272, -719528),
        (SourceType("int32", "io.debezium.time.Date"), "DateTime64(3, 'UTC')", -622191234, 253402300799999),
        (
            SourceType("int64", "io.debezium.time.MicroTimestamp"),
            "DateTime64(6, 'UTC')",
            9223372036825200000,
            253402300799999999,
        ),
        (SourceType("int64", "io.debezium.time.Timestamp"), "DateTime", 2**32 * 1000, 2**32 - 1),
        (
            SourceType("string", "io.debezium.time.ZonedTimestamp"),
            "DateTime64(6, 'UTC')",
            "-infinity",
            -62167219200000000,
        ),
        (
            SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "2"),)),
            "Decimal(4, 2)",
            b"\x27\x10",
            Decimal("99.99"),
        ),
        (TEXT, "Decimal(4, 2)", "1.005", Decimal("1.01")),
        (SourceType("float64"), "Float32", 1e300, 3.4028234663852886e38),
    ],
)
def test_out_of_range_follows_the_policy(source: SourceType, column_type: str, value: Any, clamped: Any) -> None:
    with pytest.raises(OutOfRange):
        make(source, column_type).convert([None, value])
    null = make(source, f"Nullable({column_type})", "null").convert([None, value])
    assert (null.array.null_count, null.clamped) == (2, 1)
    near = make(source, column_type, "clamp").convert([None, value])
    assert near.clamped == 1
    (found,) = near.array[1:]
    if isinstance(clamped, int):
        assert bits(found) == clamped
    else:
        assert found.as_py() == clamped


@pytest.mark.parametrize("kind", ["Array({})", "Map(String, {})"])
def test_a_part_out_of_range_becomes_null_where_it_can(kind: str) -> None:
    items = SourceType("int64")
    source = SourceType("array", items=items) if kind == "Array({})" else SourceType("map", keys=TEXT, items=items)
    value: Any = [1, 300] if kind == "Array({})" else {"a": 1, "b": 300}
    found = make(source, kind.format("Nullable(UInt8)"), "null").convert([value])
    [made] = found.array.to_pylist()
    assert ([item if kind == "Array({})" else item[1] for item in made], found.clamped) == ([1, None], 1)
    with pytest.raises(OutOfRange):
        make(source, kind.format("UInt8"), "null").convert([value])


def test_a_value_without_a_nearest_one_is_not_clamped() -> None:
    """A label that an Enum does not have; JSON that a JSON column would refuse."""
    for column_type, value in (("Enum8('a' = 1)", "b"), ("Nullable(Enum8('a' = 1))", "b"), ("JSON", "[1]")):
        with pytest.raises(OutOfRange):
            make(TEXT, column_type, "clamp").convert([value])


def test_types_that_do_not_go_together_are_refused_by_name() -> None:
    with pytest.raises(TableError, match="column 'x'"):
        make(SourceType("array", items=INT), "Int64")
    with pytest.raises(TableError, match="AggregateFunction"):
        make(INT, "AggregateFunction(sum, Int64)")


@pytest.mark.parametrize(
    ("column_type", "literal"),
    [
        ("UUID", "0011"),
        ("Decimal(9, 2)", "1,5"),
        ("IPv4", "10.0.0"),
        ("Date32", "2024-13-01"),
        ("Int64", "1.5"),
        ("Float64", "x"),
    ],
)
def test_unreadable_values_are_refused(column_type: str, literal: str) -> None:
    with pytest.raises(DecodeError):
        make(TEXT, column_type).convert([literal])


UUID = str(uuid.UUID(int=1))


@pytest.mark.parametrize("form", [list, pa.array])
def test_nulls_stay_null_and_the_others_keep_their_text(form: Any) -> None:
    values = [uuid.UUID(int=n << 90 | n) for n in range(20)]
    given = [str(value) if n % 3 else None for n, value in enumerate(values)]
    assert Uuids().convert(form(given)).array.to_pylist() == given
    assert Uuids().convert([]).array.to_pylist() == []
    assert Uuids().convert([None, None]).array.to_pylist() == [None, None]


def test_texts_within_an_array_are_read_as_if_they_were_alone() -> None:
    texts = pa.array([str(uuid.UUID(int=n << 90 | n)).upper() for n in range(5)])
    assert Uuids().convert(texts[2:4]).array.to_pylist() == [text.lower() for text in texts[2:4].to_pylist()]


@pytest.mark.parametrize(
    "texts",
    [
        # As long together as canonical ones, with dashes at the same places.
        ("00000000-0000-0000-0000-000000000000abcd", "0000-0000-0000-0000-000000000000"),
        ("00000000-0000-0000-0000-000000000000,00000000-0000-0000-0000-000000000000",),
        ("00000000-0000-0000-0000-00000000000", "000000000-0000-0000-0000-000000000000"),
        ("00000000-0000-0000-0000-00000000000\u00e9",),
        (None, "00000000-0000-0000-0000-00000000000g"),
        *((UUID, blank + UUID[2:], UUID) for blank in ("\t\t", "\n\n", "  ")),
    ],
)
def test_texts_that_only_look_like_uuids_together_are_refused(texts: tuple[str | None, ...]) -> None:
    with pytest.raises(DecodeError, match="not a UUID"):
        Uuids().convert(list(texts))


def test_other_forms_are_read_beside_canonical_ones() -> None:
    value = uuid.UUID(int=0xABCDEF << 90 | 7)
    forms = [str(value), str(value).upper(), value.hex, "{" + str(value) + "}", None]
    assert Uuids().convert(forms).array.to_pylist() == [str(value)] * 4 + [None]
