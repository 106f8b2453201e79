"""Values of a DataFrame's columns: as the stream's converters read them, and a fault where the column holds less."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.decode.stated_rows import Values, read_column
from ch_sink.errors import StreamFailed
from ch_sink.types.column import WIDE_YEARS, Column, ValuePolicy, Years

MICROS = pa.timestamp("us", "UTC")
CENT = pa.decimal128(20, 3)


def moment(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc]


def read(kind: str, values: Any, given: pa.DataType, years: Years = WIDE_YEARS, **policy: Any) -> Values:
    return read_column(pa.chunked_array([values], given), Column("c", kind), ValuePolicy(**policy), years)


DAY = dt.date(2020, 1, 2)
PAIR = pa.struct([("b", pa.string()), ("a", pa.int64())])
HELD: list[tuple[str, pa.DataType, Any, Any]] = [
    ("DateTime64(9, 'UTC')", MICROS, moment(2100, 1, 1), 4_102_444_800 * 10**9),
    ("DateTime64(3)", pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
    ("DateTime", MICROS, moment(2100, 1, 1), 4_102_444_800),
    ("Int64", MICROS, moment(2020, 1, 1, 0, 0, 0, 7), 1_577_836_800_000_007),
    ("String", MICROS, moment(2020, 1, 1, 0, 0, 0, 7), b"2020-01-01 00:00:00.000007"),
    ("Date32", pa.date32(), dt.date(9999, 12, 31), dt.date(9999, 12, 31)),
    ("DateTime64(0)", pa.date32(), DAY, 1_577_923_200),
    ("Decimal(9, 2)", CENT, Decimal("1.230"), Decimal("1.23")),
    ("Decimal(9, 2)", pa.float64(), 1.23, Decimal("1.23")),
    ("Decimal(9, 2)", pa.string(), "1.23", Decimal("1.23")),
    ("String", CENT, Decimal("1.230"), b"1.230"),
    ("Float64", pa.float32(), 0.5, 0.5),
    ("Float32", pa.float32(), 1.5, 1.5),
    ("UInt64", CENT, Decimal("7.000"), 7),
    ("Bool", pa.int32(), 1, True),
    ("UInt8", pa.bool_(), True, 1),
    ("UInt128", pa.int64(), 5, b"\5" + bytes(15)),
    ("FixedString(3)", pa.string(), "ab", b"ab\0"),
    ("UUID", pa.string(), "61F0C404-5CB3-11E7-907B-A6006AD3DBA0", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ("Enum8('a' = 1, 'b' = 2)", pa.string(), "b", 2),
    ("IPv4", pa.string(), "0.0.1.0", 256),
    ("JSON", pa.map_(pa.string(), pa.int32()), [("a", 1)], '{"a":1}'),
    (
        "Map(String, Date32)",
        pa.map_(pa.string(), pa.date32()),
        [("a", dt.date(2020, 1, 2))],
        [(b"a", dt.date(2020, 1, 2))],
    ),
    ("Array(DateTime)", pa.list_(MICROS), [moment(1970, 1, 1, 0, 0, 9)], [9]),
    (
        "Tuple(a Int8, b String)",
        pa.struct([("b", pa.string()), ("a", pa.int64())]),
        {"a": 1, "b": "x"},
        {"a": 1, "b": b"x"},
    ),
]


@pytest.mark.parametrize(("kind", "given", "value", "stored"), HELD)
def test_values_become_what_the_stream_would_store(kind: str, given: pa.DataType, value: Any, stored: Any) -> None:
    found = read(kind, [None, value], given)
    array = found.array.view(pa.int64()) if pa.types.is_timestamp(found.array.type) else found.array
    assert array.to_pylist() == [None, stored]
    assert not found.faults


TOO_MUCH: list[tuple[str, pa.DataType, Any, str]] = [
    ("DateTime64(9, 'UTC')", MICROS, moment(2500, 1, 1), "does not fit DateTime64"),
    ("DateTime", pa.timestamp("us"), dt.datetime(1960, 1, 1), "does not fit DateTime"),
    ("Date", pa.date32(), dt.date(2200, 1, 1), "84006 does not fit Date"),
    ("Date", pa.date32(), dt.date(1960, 1, 1), "does not fit Date"),
    ("Decimal(9, 2)", pa.float64(), 1.239, "more digits after the point"),
    ("Decimal(9, 2)", CENT, Decimal("1.239"), "more digits after the point"),
    ("Decimal(9, 2)", CENT, Decimal("1e8"), "does not fit Decimal"),
    ("Float32", pa.float64(), 1e300, "does not fit Float32"),
    ("Int64", pa.float64(), 1.5, "more digits after the point"),
    ("Int8", pa.int64(), 128, "128 does not fit Int8"),
    ("UInt64", pa.int64(), -1, "-1 does not fit UInt64"),
    ("Bool", pa.int32(), 2, "2 does not fit Bool"),
    ("FixedString(3)", pa.string(), "abcd", "4 bytes do not fit"),
    ("UUID", pa.string(), "x", "not a UUID"),
    ("Enum8('a' = 1)", pa.string(), "b", "no label"),
    ("JSON", pa.string(), "[1]", "not a JSON object"),
    ("Array(Int8)", pa.list_(pa.int64()), [1, 300], "300 does not fit Int8"),
]


@pytest.mark.parametrize(("kind", "given", "value", "said"), TOO_MUCH)
def test_a_value_that_the_column_cannot_hold_is_a_fault_of_its_row(
    kind: str, given: pa.DataType, value: Any, said: str
) -> None:
    found = read(kind, [None, value, None, value], given)
    assert found.array.null_count == 4
    assert set(found.faults) == {1, 3}
    assert all(said in reason for reason in found.faults.values())


def test_a_servers_years_and_the_policy_count() -> None:
    old = Years((1900, 2299), (1900, 2299))
    assert read("Date32", [dt.date(2300, 1, 1)], pa.date32(), old).faults
    kept = read("Int8", [300, 1], pa.int64(), out_of_range="clamp")
    assert (kept.array.to_pylist(), kept.faults, kept.clamped) == ([127, 1], {}, 1)


@pytest.mark.parametrize(
    ("kind", "given"), [("DateTime64(3)", pa.int64()), ("Int8", pa.duration("us")), ("UUID", pa.int64())]
)
def test_types_that_do_not_go_together_are_refused(kind: str, given: pa.DataType) -> None:
    with pytest.raises(StreamFailed, match="the DataFrame's column c is"):
        read(kind, [1], given)
