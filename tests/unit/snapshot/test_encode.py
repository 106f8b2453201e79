"""Which columns of a source can be read without a schema of the events. Recorded values: tests/integration."""

import pytest

from ch_sink.snapshot.encode import encoder, source_type
from ch_sink.types.column import Column
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
    ],
)
def test_a_text_that_the_connector_writes_otherwise_is_not_read(database_type: str) -> None:
    assert encoder(TEXT, database_type) is None


@pytest.mark.parametrize("database_type", ["integer", "tinyint(4)", "varchar(10)", "numeric(10,2)", "uuid", "mood"])
def test_a_text_that_the_connector_writes_likewise_is_read(database_type: str) -> None:
    encode = encoder(TEXT, database_type)
    assert encode is not None
    assert encode("7") == "7"


def test_a_moment_of_mysql_has_as_many_digits_as_the_connector_s() -> None:
    encode = encoder(TEXT, "timestamp(3)")
    assert encode is not None
    assert encode("2021-01-01 00:00:00.500") == "2021-01-01T00:00:00.500Z"


@pytest.mark.parametrize(
    "kind", ["Enum8('a' = 1)", "LowCardinality(FixedString(4))", "Nullable(IPv4)", "IPv6", "Enum16('a' = 1)"]
)
def test_columns_that_are_written_from_text_are_read_as_text(kind: str) -> None:
    assert source_type(Column("k", kind)) == TEXT
