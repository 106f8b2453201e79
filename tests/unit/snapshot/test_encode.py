"""Which columns of a source can be read without a schema of the events. Recorded values: tests/integration."""

import pytest

from ch_sink.snapshot.encode import encoder, source_type
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType

TEXT = SourceType("string")


@pytest.mark.parametrize(
    "database_type",
    [
        "boolean",
        "tinyint(1)",
        "real",
        "float",
        "float(53)",
        "double",
        "double(10,2)",
        "double precision",
        "datetime(3)",
        "timestamp without time zone",
        "timestamp(3) without time zone",
        "timestamp with time zone",
        "timestamp(3) with time zone",
        "numeric",
        "numeric(5,-2)",
        "polygon",
        "linestring",
        "geometrycollection",
        "multipoint",
        "lseg",
    ],
)
def test_a_text_that_the_connector_writes_otherwise_is_not_read(database_type: str) -> None:
    assert encoder(TEXT, database_type) is None


@pytest.mark.parametrize("database_type", ["integer", "tinyint(4)", "varchar(10)", "numeric(10,2)", "decimal(9)"])
def test_a_text_that_the_connector_writes_likewise_is_read(database_type: str) -> None:
    encode = encoder(TEXT, database_type)
    assert encode("7") == "7"


def test_a_moment_of_mysql_has_as_many_digits_as_the_connector_s() -> None:
    encode = encoder(TEXT, "timestamp(3)")
    assert encode("2021-01-01 00:00:00.500") == "2021-01-01T00:00:00.500Z"


@pytest.mark.parametrize(
    ("literal", "value"),
    [("t", True), ("f", False), ("0", False), ("1", True), ("2", True), ("-1", True), (b"\x00", False)],
)
def test_any_number_but_0_is_true(literal: str | bytes, value: bool) -> None:
    """As TinyIntOneToBooleanConverter takes a TINYINT(1)."""
    encode = encoder(SourceType("boolean"), "tinyint(1)")
    assert encode(literal) is value


@pytest.mark.parametrize(
    "kind", ["Enum8('a' = 1)", "LowCardinality(FixedString(4))", "Nullable(IPv4)", "IPv6", "Enum16('a' = 1)"]
)
def test_columns_that_are_written_from_text_are_read_as_text(kind: str) -> None:
    assert source_type(Column("k", kind)) == TEXT


@pytest.mark.parametrize(
    ("database_type", "literal", "number"),
    [
        ("date", "1970-01-03", 2),
        ("interval", "1 day 00:00:01", 86_401_000_000),
        ("boolean", "t", 1),
        ("bit(1)", b"\x01", 1),
        ("bigint", "-7", -7),
    ],
)
def test_what_is_no_integer_in_the_database_is_one_in_the_table(
    database_type: str, literal: str | bytes, number: int
) -> None:
    encode = encoder(SourceType("int64"), database_type)
    assert encode(literal) == number


@pytest.mark.parametrize("database_type", ["timestamp(3) without time zone", "time(6)", "datetime", "datetime2(7)"])
def test_moments_in_a_column_of_integers_have_a_unit_that_nothing_tells(database_type: str) -> None:
    assert encoder(SourceType("int64"), database_type) is None


def test_money_is_a_number_where_the_connector_sends_floats() -> None:
    encode = encoder(SourceType("float64"), "money")
    assert [encode(text) for text in ("$1.50", "-$1,234.25")] == [1.5, -1234.25]


def test_without_schemas_the_modes_of_the_connector_tell_its_digits() -> None:
    lossy = ValuePolicy(decimal_handling="double", time_precision="connect")
    amount, moment = Column("a", "Decimal(38, 10)"), Column("m", "DateTime64(6)")
    assert source_type(amount, "numeric(38,10)", lossy) == SourceType("float64")
    assert source_type(amount, "bigint", lossy) == source_type(amount, "numeric(38,10)", ValuePolicy())
    millis = SourceType("int64", "org.apache.kafka.connect.data.Timestamp")
    assert source_type(moment, "timestamp(6) without time zone", lossy) == source_type(moment, "datetime(6)", lossy)
    assert source_type(moment, "datetime(6)", lossy) == millis
    # Moments with a zone are texts in every mode.
    assert source_type(moment, "timestamp with time zone", lossy) == source_type(moment)


def test_times_beyond_a_day_are_null_where_the_connector_sends_none() -> None:
    encode = encoder(SourceType("int32", "org.apache.kafka.connect.data.Time"), "time")
    assert [encode(text) for text in ("838:59:59", "-00:00:01", "24:00:00", "12:00:00")] == [
        None,
        None,
        86_400_000,
        43_200_000,
    ]
