"""What init refuses to make, and small parts of what it makes."""

from dataclasses import replace

import pytest

from ch_sink.errors import ChSinkError, ConfigError, TableError
from ch_sink.table.columns import plan_columns
from ch_sink.table.ddl import create_table, made_engine, source_types, state_table
from ch_sink.table.model import Engine, Family
from ch_sink.table.row_policy import create_row_policy
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.table.templates import render, template
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.defaults import default_sql
from ch_sink.types.sql import literal
from tests.support.engine import Engine as ClickHouse


def decimal(default: str, **parameters: str) -> SourceType:
    """A Connect Decimal of scale 2 with a default in base64."""
    named = {"scale": "2"} | {k.replace("__dot__", "."): v for k, v in parameters.items()}
    return SourceType(
        "bytes", "org.apache.kafka.connect.data.Decimal", tuple(named.items()), default=default, has_default=True
    )


ID = Field("id", SourceType("int64", optional=False))
V = Field("v", SourceType("string"))
SCHEMA = RowSchema((ID, V), (ID,))
SPEC = TableSpec("t", "x")


@pytest.mark.parametrize(
    ("schema", "spec", "part", "hint"),
    [
        (RowSchema((ID, V), ()), SPEC, "has no keys", "append"),
        (RowSchema((ID, V), ()), replace(SPEC, key_columns=("nope",)), "'nope' is not a column", "id, v"),
        (RowSchema((ID, V), (Field("", SourceType("int64")),)), SPEC, "without a name", "key_columns"),
        (SCHEMA, replace(SPEC, order_by=("v",), allow_nullable_key=True), "lacks the key column 'id'", "Add id"),
        (SCHEMA, replace(SPEC, order_by=("toString(id)",)), "lacks the key column 'id'", "Add id"),
        (RowSchema((V,), (V,)), SPEC, "key column 'v' can be null", "allow_nullable_key"),
        (SCHEMA, replace(SPEC, partition_by="v"), "'v' can be null", "allow_nullable_key"),
        (SCHEMA, replace(SPEC, order_by=("id", "v")), "'v' can be null", "allow_nullable_key"),
        (RowSchema((ID, Field("_version", SourceType("int64"))), (ID,)), SPEC, "a column '_version'", "by hand"),
    ],
)
def test_refused_with_reason_and_remedy(schema: RowSchema, spec: TableSpec, part: str, hint: str) -> None:
    with pytest.raises(TableError, match=part) as caught:
        create_table(schema, spec)
    assert hint in (caught.value.hint or "")


def test_a_column_that_only_the_key_has_comes_first() -> None:
    extra = Field("__dbz__physicalTableIdentifier", SourceType("string", optional=False))
    columns = plan_columns(RowSchema((ID, V), (extra, ID)), SPEC, source_types(SPEC))
    assert [c.name for c in columns][:3] == ["__dbz__physicalTableIdentifier", "id", "v"]


def test_a_primitive_key_is_named_by_configuration() -> None:
    schema = RowSchema((Field("id", SourceType("int64")), V), (Field("", SourceType("int64", optional=False)),))
    assert "ORDER BY (`id`)" in create_table(schema, replace(SPEC, key_columns=("id",)))


def test_a_key_column_is_never_low_cardinality_nor_null() -> None:
    mood = SourceType("string", "io.debezium.data.Enum", optional=True)
    schema = RowSchema((Field("m", mood), V), (Field("m", replace(mood, optional=False)),))
    assert [c.type for c in plan_columns(schema, SPEC, source_types(SPEC))][:2] == ["String", "Nullable(String)"]


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("replacing", EngineChoice.REPLACING),
        ("ReplacingMergeTree", EngineChoice.REPLACING),
        ("sign_replacing", EngineChoice.SIGN_REPLACING),
        ("CollapsingMergeTree(sign)", EngineChoice.COLLAPSING),
        ("ReplicatedVersionedCollapsingMergeTree", EngineChoice.VERSIONED_COLLAPSING),
        ("MergeTree", EngineChoice.APPEND),
    ],
)
def test_engines_are_chosen_by_short_or_full_name(text: str, choice: EngineChoice) -> None:
    assert EngineChoice.parse(text) is choice


def test_an_unknown_engine_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineChoice.parse("SummingMergeTree")
    assert "versioned-collapsing" in (caught.value.hint or "")


def test_row_policies_name_their_users() -> None:
    engine = made_engine(replace(SPEC, engine=EngineChoice.SIGN_REPLACING))
    sql = create_row_policy("d", "t", engine, ["all"], spare=["sink"], cluster="c")
    assert sql == (
        "CREATE ROW POLICY IF NOT EXISTS `ch_sink_t` ON CLUSTER `c` ON `d`.`t` USING `_sign` != -1 TO ALL EXCEPT `sink`"
    )
    assert create_row_policy("d", "t", made_engine(SPEC), ["a", "b c"]).endswith(
        "USING `_is_deleted` = 0 TO `a`, `b c`"
    )


def test_no_row_policy_where_rows_do_not_tell() -> None:
    for engine in (
        Engine(Family.REPLACING, "ReplacingMergeTree", "v"),
        made_engine(replace(SPEC, engine=EngineChoice.APPEND)),
    ):
        with pytest.raises(TableError, match="no row policy"):
            create_row_policy("d", "t", engine, ["all"])


DECIMAL = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "2"),), has_default=True)


@pytest.mark.parametrize(
    ("source", "kind", "value"),
    [
        (SourceType("int32", default=-5, has_default=True), "Int32", "-5"),
        (SourceType("int32", default=-5, has_default=True), "Nullable(Int32)", "-5"),
        (SourceType("boolean", default=True, has_default=True), "Bool", "true"),
        (SourceType("int16", default=1, has_default=True), "Int16", "1"),
        (SourceType("float64", default=1.5, has_default=True), "Float64", "1.5"),
        (SourceType("string", default="it's\\\n", has_default=True), "String", "it's\\\n"),
        (SourceType("string", "io.debezium.data.Enum", default="a", has_default=True), "LowCardinality(String)", "a"),
        (replace(DECIMAL, default="AJY="), "Decimal(10, 2)", "1.5"),
        (replace(DECIMAL, default="/w=="), "Decimal(10, 2)", "-0.01"),
        (SourceType("int32", "io.debezium.time.Date", default=19000, has_default=True), "Date32", "2022-01-08"),
        (SourceType("int32", "io.debezium.time.Date", default=-1, has_default=True), "Date32", "1969-12-31"),
        (
            SourceType("int64", "io.debezium.time.MicroTimestamp", default=1_700_000_000_123_456, has_default=True),
            "DateTime64(6, 'UTC')",
            "2023-11-14 22:13:20.123456",
        ),
        (
            SourceType("int64", "io.debezium.time.Timestamp", default=-1, has_default=True),
            "DateTime64(3, 'UTC')",
            "1969-12-31 23:59:59.999",
        ),
        (SourceType("string", default="it's \\", has_default=True), "String", "it's \\"),
        (decimal("AJY=", connect__dot__decimal__dot__precision="10"), "Decimal(10, 2)", "1.5"),
        (decimal("/2o="), "Decimal(38, 2)", "-1.5"),
        (decimal("AP//////////", scale="0"), "UInt64", "18446744073709551615"),
        (
            SourceType("string", "io.debezium.time.ZonedTimestamp", default="2024-01-01T00:00:00.5Z", has_default=True),
            "DateTime64(6, 'UTC')",
            "2024-01-01 00:00:00.500000",
        ),
        (SourceType("string", default="-12.50", has_default=True), "Decimal(10, 2)", "-12.5"),
    ],
)
def test_defaults_of_the_source_become_the_columns(
    engine: ClickHouse, source: SourceType, kind: str, value: str
) -> None:
    engine.run("DROP TABLE IF EXISTS t.d SYNC")
    engine.run(f"CREATE TABLE t.d (k Int8, v {kind} DEFAULT {default_sql(source, kind)}) ENGINE = MergeTree ORDER BY k")
    engine.run("INSERT INTO t.d (k) VALUES (1)")
    assert engine.rows("SELECT toString(v) AS v FROM t.d") == [{"v": value}]


@pytest.mark.parametrize(
    "source",
    [
        SourceType("int32"),
        SourceType("int32", default=None, has_default=True),
        SourceType("string", default="(id)::text", has_default=True),
        SourceType("string", default="now()", has_default=True),
        SourceType("string", "io.debezium.time.ZonedTimestamp", default="1970-01-01T00:00:00Z", has_default=True),
        SourceType("int64", "io.debezium.time.MicroTime", default=1, has_default=True),
        SourceType("bytes", default="AJY=", has_default=True),
        SourceType("int32", default="nonsense", has_default=True),
        SourceType("string", "io.debezium.time.ZonedTimestamp", default="infinity", has_default=True),
        SourceType("string", "io.debezium.time.ZonedTimestamp", default="now()", has_default=True),
    ],
)
def test_defaults_that_cannot_be_trusted_are_left_out(source: SourceType) -> None:
    assert default_sql(source, source_types(SPEC)(source, False)) is None


def test_literals_come_back(engine: ClickHouse) -> None:
    for text in ("", "it's", "back\\slash", "new\nline\ttab", "ünïcode 🦊", "$x ${y} {z:String}"):
        assert engine.rows(f"SELECT {literal(text)} AS x") == [{"x": text}]


def test_a_template_says_what_it_lacks() -> None:
    with pytest.raises(ChSinkError, match=r"sql/database\.sql has the place \$on_cluster"):
        render("database", database="x")
    with pytest.raises(ChSinkError, match=r"nothing\.sql is not installed"):
        template("nothing")


def test_state_tables_take_other_names() -> None:
    assert "`t`.`mine`" in state_table("ledger", replace(SPEC, state_tables={"ledger": "mine"}))
