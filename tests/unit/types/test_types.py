"""Column types: choice, ranges, placeholders, the calendar; against Python's own arithmetic."""

import datetime
import hashlib
import uuid
from decimal import Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import ValuePolicy
from ch_sink.types import OutOfRange, clickhouse_type, converter
from ch_sink.types import calendar as civil
from ch_sink.types.choices import TypeChoices
from ch_sink.types.column import WIDE_YEARS, Column, Years
from ch_sink.types.connect import SourceType, parse_connect_schema
from ch_sink.types.decimals import decimal_text, read_text

P = "__debezium_unavailable_value"
INT, TEXT = SourceType("int64"), SourceType("string")
EPOCH = datetime.datetime(1970, 1, 1)


def make(source: SourceType | None, column_type: str, out_of_range: Any = "fail", years: Years = WIDE_YEARS) -> Any:
    policy = ValuePolicy(out_of_range=out_of_range)
    return converter(source, Column("x", column_type), encoding="avro", policy=policy, years=years)


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
        (TEXT, "Enum8('a' = 1)", "b", None),
    ],
)
def test_out_of_range_follows_the_policy(source: SourceType, column_type: str, value: Any, clamped: Any) -> None:
    with pytest.raises(OutOfRange):
        make(source, column_type).convert([None, value])
    null = make(source, column_type, "null").convert([None, value])
    assert (null.array.null_count, null.clamped) == (2, 1)
    near = make(source, column_type, "clamp").convert([None, value])
    assert near.clamped == 1
    (found,) = near.array[1:]
    if isinstance(clamped, int):
        assert bits(found) == clamped
    else:
        assert found.as_py() == clamped


def bits(value: Any) -> int:
    """The integer of a number, a date or a timestamp of any year, or a little-endian wide integer."""
    if isinstance(value.as_py() if str(value.type).startswith("fixed") else None, bytes):
        return int.from_bytes(value.as_py(), "little", signed=True)
    return int(value.cast("int32").as_py() if str(value.type) == "date32[day]" else value.cast("int64").as_py())


def test_older_servers_hold_fewer_years() -> None:
    source = SourceType("int32", "io.debezium.time.Date")
    assert make(source, "Date32").convert([-25568]).clamped == 0
    for years in (Years((1900, 2299), (1900, 2299)), Years((1900, 2299), (0, 9999))):
        with pytest.raises(OutOfRange):
            make(source, "Date32", years=years).convert([-25568])
        assert make(source, "Date32", "clamp", years=years).convert([-25568, 120530]).clamped == 2
    stamp = SourceType("int64", "io.debezium.time.MicroTimestamp")
    early = [-2208988800000001]  # 1899-12-31 23:59:59.999999
    assert make(stamp, "DateTime64(6, 'UTC')", years=Years((1900, 2299), (0, 9999))).convert(early).clamped == 0
    with pytest.raises(OutOfRange):
        make(stamp, "DateTime64(6, 'UTC')", years=Years((1900, 2299), (1900, 2299))).convert(early)


@pytest.mark.parametrize(
    ("source", "column_type", "literal"),
    [
        (TEXT, "String", P),
        (TEXT, "String", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        (TEXT, "String", P.encode().hex()),
        (TEXT, "String", f'{{"{P}":"{P}"}}'),
        (SourceType("bytes"), "String", P.encode()),
        (SourceType("array", items=TEXT), "Array(String)", [P]),
        (SourceType("array", items=TEXT), "Nullable(Tuple(items Array(Nullable(String))))", [P]),
        (SourceType("array", items=SourceType("bytes")), "Array(String)", [P.encode()]),
        (SourceType("array", items=INT), "Array(Int64)", list(P.encode())),
        (SourceType("array", items=SourceType("int32", "io.debezium.time.Date")), "Array(Date32)", list(P.encode())),
        (SourceType("map", keys=TEXT, items=TEXT), "Map(String, String)", {P: P}),
        (
            SourceType("array", items=SourceType("string", "io.debezium.data.Uuid")),
            "Array(UUID)",
            # UUID.nameUUIDFromBytes: version 3 without a namespace
            [str(uuid.UUID(bytes=hashlib.md5(P.encode()).digest(), version=3))],
        ),
        (None, "String", P),
        (None, "Array(Int64)", list(P.encode())),
        (TEXT, "JSON", P),
        (TEXT, "Decimal(20, 4)", P),
        (TEXT, "UUID", P),
        (TEXT, "FixedString(8)", P),
        (TEXT, "Enum8('a' = 1)", P),
        (TEXT, "IPv6", P),
        (TEXT, "Int64", P),
        (SourceType("bytes"), "FixedString(8)", P.encode()),
        (SourceType("string", "io.debezium.data.Json"), "Map(String, String)", P),
        (None, "FixedString(8)", P),
    ],
)
def test_placeholder_is_null_and_marked(source: SourceType | None, column_type: str, literal: Any) -> None:
    converted = make(source, column_type).convert([None, literal])
    assert converted.unavailable is not None
    assert converted.unavailable.tolist() == [False, True]
    assert converted.array[1].as_py() is None


def test_placeholder_is_a_value_where_the_source_sends_none() -> None:
    made = converter(TEXT, Column("x", "String"), encoding="json", policy=ValuePolicy(), omits=False)
    assert made.convert([P]).array.to_pylist() == [P.encode()]


@given(st.dates())
def test_calendar_equals_pythons(day: datetime.date) -> None:
    days = (day - EPOCH.date()).days
    assert civil.days_from_civil(day.year, day.month, day.day) == days
    assert civil.civil_from_days(days) == (day.year, day.month, day.day)
    assert civil.parse_date(civil.date_text(days)) == days == civil.parse_date(day.isoformat())


@given(st.integers(-(10**10), 10**10))
def test_days_round_trip_beyond_pythons_years(days: int) -> None:
    assert civil.days_from_civil(*civil.civil_from_days(days)) == days
    assert civil.parse_date(civil.date_text(days)) == days


@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_iso_texts_equal_pythons(moment: datetime.datetime) -> None:
    zone = moment.tzinfo or datetime.UTC
    offset = (moment.utcoffset() or datetime.timedelta()) if moment.tzinfo else datetime.timedelta()
    assert zone is not None
    expected = (
        (moment.replace(tzinfo=None) - offset - EPOCH) // datetime.timedelta(microseconds=1)
        if _safe(moment, offset)
        else None
    )
    if expected is None or (offset.total_seconds() % 60):
        return
    text = moment.isoformat()
    assert civil.parse_instant(text, 6) == expected
    made = make(SourceType("string", "io.debezium.time.ZonedTimestamp"), "DateTime64(6, 'UTC')")
    assert made.convert([text]).array.cast("int64").to_pylist() == [expected]
    assert made.convert([text, "2024-01-01T00:00:00.0000001Z"]).array.cast("int64").to_pylist()[0] == expected


def _safe(moment: datetime.datetime, offset: datetime.timedelta) -> bool:
    try:
        moment.replace(tzinfo=None) - offset
    except OverflowError:
        return False
    return True


@given(st.integers(-(10**80), 10**80), st.integers(-5, 90))
def test_decimal_texts_equal_pythons(unscaled: int, scale: int) -> None:
    text = decimal_text((unscaled, scale))
    assert Decimal(text) == Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    assert "e" not in text.lower()
    digits, found = read_text(text)
    assert digits * 10 ** max(0, -scale) * 10**0 == unscaled * 10 ** max(0, -scale) * 10 ** max(0, 0) or found == max(
        scale, 0
    )


def test_thousands_of_digits() -> None:
    assert decimal_text((10**20_000 - 1, 3)) == "9" * 19_997 + ".999"
    assert read_text("7" * 20_000)[0] % 10**9 == 777_777_777


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), max_size=5))
def test_decimals_from_bytes(values: list[int | None]) -> None:
    source = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "7"),))
    raw = [None if v is None else v.to_bytes(max(1, (v.bit_length() + 8) // 8), "big", signed=True) for v in values]
    expected = [None if v is None else Decimal(v).scaleb(-7, Context(prec=80)) for v in values]
    assert make(source, "Decimal(38, 7)").convert(raw).array.to_pylist() == expected
    assert make(source, "Decimal(76, 7)").convert(raw).array.to_pylist() == expected
    assert make(source, "Decimal(76, 9)").convert(raw).array.to_pylist() == expected


NUMBERS = st.from_regex(r"[+-]?[0-9]{0,45}(\.[0-9]{0,45})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@given(st.lists(st.none() | NUMBERS | st.sampled_from(["NaN", "", " 1", "1_0", "٣"]), max_size=4), st.data())
def test_many_decimal_texts_are_read_as_each_alone_is(texts: list[str | None], data: st.DataObject) -> None:
    made = decimal_column(TEXT, data)
    assert outcome(made, texts) == joined(made, texts)


@given(st.lists(st.none() | st.integers() | st.decimals(), max_size=4), st.data())
def test_many_numbers_are_read_as_each_alone_is(numbers: list[Any], data: st.DataObject) -> None:
    made = decimal_column(None, data)
    assert outcome(made, numbers) == joined(made, numbers)


def decimal_column(source: SourceType | None, data: st.DataObject) -> Any:
    precision = data.draw(st.integers(1, 76))
    column = Column("x", f"Decimal({precision}, {data.draw(st.integers(0, precision))})")
    return converter(source, column, encoding="json", policy=ValuePolicy(), omits=False)


def outcome(made: Any, values: list[Any]) -> Any:
    """The values, or None where one of them is refused."""
    try:
        return made.convert(values).array.to_pylist()
    except DecodeError:
        return None


def joined(made: Any, values: list[Any]) -> Any:
    """The same one by one, by the exact way."""
    found = [outcome(made._slow, [value]) for value in values]
    return None if None in found else [value for one in found for value in one]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        {"type": "string", "name": "io.debezium.data.Enum", "parameters": {"allowed": "a{,b\\, c 'é\""}},
        {"type": "array", "items": {"type": "float", "optional": True}, "optional": True},
        {
            "type": "map",
            "keys": {"type": "string"},
            "values": {"type": "struct", "fields": [{"field": "a b", "type": "double"}]},
        },
        {"type": "string", "name": "a name with spaces"},
    ],
)
def test_column_comment_round_trips(schema: dict[str, Any]) -> None:
    source = parse_connect_schema(schema)
    assert SourceType.from_comment(source.to_comment()) == source
    assert SourceType.from_comment("customer's own words; " + source.to_comment()) == source
    assert "\n" not in source.to_comment()


@pytest.mark.parametrize("text", ["", "plain", "debezium: ", "debezium: what", "debezium: int64 {", "debezium: a b c"])
def test_other_comments_tell_nothing(text: str) -> None:
    assert SourceType.from_comment(text) is None


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


def test_keys_and_required_columns_are_not_nullable() -> None:
    assert clickhouse_type(SourceType("int32", optional=False)) == "Int32"
    assert clickhouse_type(SourceType("int32"), key=True) == "Int32"
    label = SourceType("string", "io.debezium.data.Enum")
    assert clickhouse_type(label) == "LowCardinality(Nullable(String))"
    assert clickhouse_type(label, TypeChoices(low_cardinality=False)) == "Nullable(String)"
    assert clickhouse_type(SourceType("array", items=INT), TypeChoices(nullable_tuple=False)) == "Nullable(String)"


@pytest.mark.parametrize(
    ("modes", "column", "comment", "literal", "value"),
    [
        ({"decimal_handling": "string"}, "Decimal(9, 2)", "", "1234", Decimal("1234.00")),
        ({}, "Decimal(9, 0)", "", "AQA=", Decimal(256)),
        ({"time_precision": "microseconds"}, "DateTime64(3, 'UTC')", "", 1_500_000, 1_500),
        ({"time_precision": "nanoseconds"}, "DateTime64(6, 'UTC')", "", 1_500_000, 1_500),
        ({"time_precision": "connect"}, "DateTime64(6, 'UTC')", "", 1_500, 1_500_000),
        ({"time_precision": "isostring"}, "DateTime64(3, 'UTC')", "", "1970-01-01T00:00:01.5Z", 1_500),
        ({"time_precision": "adaptive_time_microseconds"}, "Time64(3)", "", 1_500, 1_500),
        ({}, "Time64(3)", "", 1_500, 1_500_000),
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


def test_a_placeholder_in_hex_is_known() -> None:
    source = SourceType("string", parameters=(("__debezium.source.column.type", "BYTEA"),))
    made = converter(source, Column("x", "String"), encoding="json", policy=ValuePolicy(binary_handling="hex"))
    found = made.convert([P.encode().hex(), "00"])
    assert found.unavailable is not None
    assert found.unavailable.tolist() == [True, False]


def test_a_slice_of_decimal_bytes_is_read_from_its_own_start() -> None:
    source = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "2"),))
    raw = pa.array([b"\x01", None, b"\x05", b"\xff"], pa.binary())
    made = make(source, "Decimal(10, 2)")
    whole = made.convert(raw).array.to_pylist()
    assert whole == [Decimal("0.01"), None, Decimal("0.05"), Decimal("-0.01")]
    for start in range(4):
        assert made.convert(raw.slice(start)).array.to_pylist() == whole[start:]


@pytest.mark.parametrize("blank", ["\t\t", "\n\n", "  "])
def test_a_uuid_with_blanks_for_digits_is_none(blank: str) -> None:
    good = str(uuid.UUID(int=1))
    with pytest.raises(DecodeError, match="no UUID"):
        make(TEXT, "UUID").convert([good, f"{blank}{good[2:]}", good])


@given(ticks=st.lists(st.integers(-(10**15), 10**15), min_size=1), precision=st.integers(0, 9))
def test_finer_digits_of_a_moment_are_cut_towards_the_past(ticks: list[int], precision: int) -> None:
    source = SourceType("int64", "io.debezium.time.MicroTimestamp")
    converted = make(source, f"DateTime64({precision}, 'UTC')").convert(ticks).array
    unit = {"s": 10**6, "ms": 10**3, "us": 1}.get(converted.type.unit)
    step = 10 ** max(6 - precision, 0)
    found = [t * unit if unit else t // 1000 for t in converted.view(pa.int64()).to_pylist()]
    assert found == [t // step * step for t in ticks]


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
