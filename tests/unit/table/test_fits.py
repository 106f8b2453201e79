"""What check says of the columns of an existing table and the source's types."""

import pytest

from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import REFILL_STORED
from ch_sink.table.checks import Finding
from ch_sink.table.fits import type_findings
from ch_sink.types.column import Column, TypeChoices, ValuePolicy
from ch_sink.types.connect import SourceType
from tests.support.decoding import replacing, table_of
from tests.support.fixtures import partitions, topics

D, T, C = "io.debezium.data.", "io.debezium.time.", "org.apache.kafka.connect.data."


def findings(
    column: str, source: SourceType | None, *, key: tuple[str, ...] = ("id",), comment: str = ""
) -> list[Finding]:
    table = replacing((Column("id", "Int64"), Column("x", column, comment=comment)), ("id",))
    types = {"id": SourceType("int64", optional=False), "x": source} if source is not None else None
    return list(type_findings(table, types, ("id",), ValuePolicy()))


def required(kind: str, name: str | None = None, **parameters: str) -> SourceType:
    return SourceType(kind, name, tuple(parameters.items()), optional=False)


def array(items: SourceType) -> SourceType:
    return SourceType("array", optional=False, items=items)


def pairs(values: SourceType) -> SourceType:
    return SourceType("map", optional=False, keys=SourceType("string", optional=False), items=values)


VARIABLE = required("struct", D + "VariableScaleDecimal")
LONG = required("bytes", C + "Decimal", scale="0", **{"connect.decimal.precision": "100"})


def test_columns_that_take_everything_are_one_good_line() -> None:
    assert [f.level for f in findings("Nullable(Int64)", SourceType("int32"))] == ["ok"]
    assert [f.level for f in findings("String", required("int32", T + "Date"))] == ["ok"]


def test_a_column_that_cannot_take_its_source_fails_with_the_change_to_make() -> None:
    (found,) = findings("Int64", required("struct", D + "geometry.Geometry"))
    assert found.level == "fail"
    assert "column 'x'" in found.detail
    assert found.remedy == "ALTER TABLE `d`.`t` MODIFY COLUMN `x` String;"


def test_a_type_that_nothing_fills_fails_without_a_schema_too() -> None:
    (found,) = findings("AggregateFunction(sum, Int64)", None)
    assert found.level == "fail"
    assert "'x'" in found.detail
    assert "MATERIALIZED" in (found.remedy or "")


def test_a_key_column_cannot_be_altered() -> None:
    table = replacing((Column("x", "UUID"),), ("x",))
    (found,) = type_findings(table, {"x": required("int64")}, ("x",), ValuePolicy())
    assert found.level == "fail"
    assert "to get x Int64, recreate the table with it" in (found.remedy or "")


def test_an_integer_is_no_date_until_the_comment_says_what_it_counts() -> None:
    (found,) = findings("DateTime64(3, 'UTC')", required("int64"))
    assert found.level == "fail"
    comment = "debezium: int64 io.debezium.time.Timestamp"
    assert findings("DateTime64(3, 'UTC')", required("int64"), comment=comment)[0].level == "ok"


def test_columns_that_hold_less_are_told_of() -> None:
    decimal = required("bytes", C + "Decimal", **{"scale": "4", "connect.decimal.precision": "18"})
    cases = [
        ("Int8", required("int32"), "-128 to 127"),
        ("UInt64", required("int64"), "0 to 18446744073709551615"),
        ("Decimal(9, 2)", decimal, "7 dig"),
        ("Date", required("int32", T + "Date"), "1970-01-01"),
        ("DateTime", required("int64", T + "MicroTimestamp"), "2106"),
        ("Date32", required("int64", T + "Timestamp"), "day only"),
        ("DateTime64(3, 'UTC')", required("int64", T + "MicroTimestamp"), "cut off"),
        ("Float32", required("float64"), "seven digits"),
        ("Array(Int64)", array(SourceType("int64")), "a null in it is stored as the default of Int64"),
        ("Tuple(items Array(Int64))", array(SourceType("int64")), "a null in it"),
        ("Array(Array(Int8))", array(array(required("int32"))), "in it, in it, -128 to 127"),
        ("Map(String, String)", pairs(SourceType("string")), "a null in it"),
    ]
    for column, source, part in cases:
        found = findings(column, source)
        assert [f.level for f in found] == ["warn", "ok"]
        assert part in found[0].detail
        assert "MODIFY COLUMN" in (found[0].remedy or "")


def test_no_alter_shortens_the_range_of_a_time() -> None:
    """DateTime64(9) holds 1677 to 2262 only, and a table in which another value is stored cannot be read then."""
    found = findings("DateTime64(3, 'UTC')", required("int64", T + "NanoTimestamp"))
    assert "cut off" in found[0].detail
    assert "ALTER TABLE" not in (found[0].remedy or "")
    assert (found[0].remedy or "").count("resync") == 1


def test_nulls_that_a_column_cannot_hold_are_told_of() -> None:
    found = findings("String", SourceType("string"))
    assert [f.level for f in found] == ["warn", "ok"]
    assert "default" in found[0].detail
    assert found[0].remedy == f"ALTER TABLE `d`.`t` MODIFY COLUMN `x` Nullable(String);\n{REFILL_STORED}"
    found = findings("Array(String)", SourceType("array", items=SourceType("string")))
    assert ["a null in it" in found[0].detail, "an empty one" in found[1].detail] == [True, True]
    assert found[0].remedy == f"ALTER TABLE `d`.`t` MODIFY COLUMN `x` Array(Nullable(String));\n{REFILL_STORED}"
    assert "arrays: empty_for_null" in (found[1].remedy or ""), "the server makes no tuple of a list"
    assert [f.level for f in findings("LowCardinality(Nullable(String))", SourceType("string"))] == ["ok"]


def test_a_column_of_the_tables_own_is_not_judged() -> None:
    table = replacing((Column("id", "Int64"), Column("mine", "AggregateFunction(sum, Int64)")), ("id",))
    assert [f.level for f in type_findings(table, {"id": required("int64")}, ("id",), ValuePolicy())] == ["ok"]


def test_tables_of_recorded_topics_as_init_makes_them_are_content() -> None:
    tables = 0
    for stream in ("mariadb-json_schema", "postgres-json_schema"):
        for topic in topics(stream):
            schema = sample_schema(list(partitions(stream, topic).values()))
            if schema is None:
                continue
            types = {f.name: f.type for f in schema.fields}
            key = tuple(f.name for f in schema.key)
            found = list(type_findings(table_of(schema), types, key, ValuePolicy()))
            assert [f.level for f in found] == ["ok"], (topic, found)
            tables += 1
    assert tables > 10


@pytest.mark.parametrize(
    ("column", "source"),
    [
        ("DateTime64(3, 'UTC')", SourceType("int64", T + "MicroTimestamp", optional=False)),
        ("DateTime", SourceType("int64", T + "Timestamp", optional=False)),
        ("Date32", SourceType("int64", T + "Timestamp", optional=False)),
        ("Int64", required("string")),
        ("UUID", required("string")),
        ("FixedString(3)", required("string")),
        ("IPv6", required("string")),
        ("Bool", required("string")),
        ("Float64", required("int64")),
        ("Float32", SourceType("float64", optional=False)),
        ("Float64", VARIABLE),
    ],
)
def test_a_key_column_in_which_two_keys_become_one_is_refused(column: str, source: SourceType) -> None:
    table = replacing((Column("x", column),), ("x",))
    [found] = type_findings(table, {"x": source}, ("x",), ValuePolicy())
    assert (found.level, "can be one value" in found.detail) == ("fail", True)
    assert "recreate the table with x " in str(found.remedy)


@pytest.mark.parametrize(
    ("column", "source"),
    [
        ("Int16", required("int64")),
        ("UInt64", required("int64")),
        ("Date", SourceType("int32", T + "Date", optional=False)),
        ("Int64", SourceType("int64", T + "MicroTimestamp", optional=False)),
        ("DateTime64(9, 'UTC')", SourceType("int64", T + "MicroTimestamp", optional=False)),
        ("Enum8('a' = 1)", required("string")),
        ("UUID", SourceType("string", "io.debezium.data.Uuid", optional=False)),
        ("Bool", required("int16")),
        ("Float64", required("int32")),
        ("Int64", VARIABLE),
        ("Decimal(38, 0)", VARIABLE),
        ("String", VARIABLE),
        ("Decimal(76, 0)", LONG),
    ],
)
def test_a_key_column_that_keeps_keys_apart_is_taken(column: str, source: SourceType) -> None:
    table = replacing((Column("x", column),), ("x",))
    assert "fail" not in [f.level for f in type_findings(table, {"x": source}, ("x",), ValuePolicy())]


@pytest.mark.parametrize("name", [T + "Timestamp", T + "MicroTimestamp", T + "NanoTimestamp", C + "Timestamp"])
@pytest.mark.parametrize(
    ("column", "server", "shown"),
    [
        ("DateTime64(9, 'Europe/Berlin')", "UTC", "Europe/Berlin"),
        ("Nullable(DateTime64(9))", "Asia/Tokyo", "Asia/Tokyo"),
        ("DateTime64(9, 'UTC')", "Asia/Tokyo", ""),
        ("DateTime64(9)", "Etc/UTC", ""),
        ("String", "Asia/Tokyo", ""),
    ],
)
def test_a_column_that_shows_other_times_of_day_is_reported(name: str, column: str, server: str, shown: str) -> None:
    """The source's 12:00 is stored as 12:00 in UTC, and Berlin shows 13:00."""
    table = replacing((Column("id", "Int64"), Column("x", column)), ("id",))
    found = [
        f
        for f in type_findings(table, {"x": required("int64", name)}, ("id",), ValuePolicy(), zone=server)
        if "shows times of" in f.detail
    ]
    assert [(f.level, f"shows times of {shown}," in f.detail) for f in found] == ([("warn", True)] if shown else [])
    assert all("MODIFY COLUMN `x` DateTime64" in (f.remedy or "") for f in found)
    zoned = type_findings(table, {"x": required("string", T + "ZonedTimestamp")}, ("id",), ValuePolicy(), zone=server)
    assert not [f for f in zoned if "shows times of" in f.detail]


def test_a_key_that_may_be_null_is_reported() -> None:
    table = replacing((Column("x", "Int64"),), ("x",))
    (found, _) = type_findings(table, {"x": SourceType("int64")}, ("x",), ValuePolicy())
    assert (found.level, found.detail.endswith("a null in the key becomes a dead letter")) == ("warn", True)


def test_arrays_that_store_null_as_empty_by_choice_are_no_finding() -> None:
    tags = SourceType("array", items=SourceType("string"))
    table = replacing((Column("id", "Int64"), Column("x", "Array(Nullable(String))")), ("id",))
    said = list(type_findings(table, {"x": tags}, ("id",), ValuePolicy()))
    assert ["a null is stored as an empty one" in f.detail for f in said if f.level == "warn"] == [True]
    chosen = type_findings(table, {"x": tags}, ("id",), ValuePolicy(), TypeChoices(arrays="empty_for_null"))
    assert [f.level for f in chosen] == ["ok"]
