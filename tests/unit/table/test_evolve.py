"""An existing table brought up to the source, and widening of types."""

from dataclasses import replace

import pytest

from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.table.ddl import create_table
from ch_sink.table.detect import DETECT_SQL, assemble
from ch_sink.table.evolve import diff, existing_statements, offered, unfilled, unseen_statements
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.spec import EngineChoice, TableSpec, chosen_schema
from ch_sink.types.column import Column
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.engine import Engine as ClickHouse

ID = Field("id", SourceType("int64", optional=False))
SPEC = TableSpec("t", "orders")


def schema(*fields: Field) -> RowSchema:
    return RowSchema((ID, *fields), (ID,))


def detected(engine: ClickHouse) -> TargetTable:
    return assemble(engine.rows(DETECT_SQL, {"database": "t", "table": "orders"})[0], policy_of())


def types(engine: ClickHouse) -> dict[str, str]:
    return {r["name"]: r["type"] for r in engine.rows("DESCRIBE TABLE t.orders")}


def settle(engine: ClickHouse, wanted: RowSchema, spec: TableSpec = SPEC) -> list[str]:
    """Carry the diff out; a second diff must be empty."""
    statements = diff(detected(engine), wanted, spec)
    for statement in statements:
        engine.run(statement)
    assert diff(detected(engine), wanted, spec) == []
    for statement in statements:
        engine.run(statement)  # repeating them does no harm
    return statements


@pytest.mark.parametrize("choice", EngineChoice)
def test_a_table_made_by_init_needs_nothing(engine: ClickHouse, choice: EngineChoice) -> None:
    wanted = schema(Field("v", SourceType("string")), Field("n", SourceType("int32", default=5, has_default=True)))
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(wanted, replace(SPEC, engine=choice)))
    assert diff(detected(engine), wanted, replace(SPEC, engine=choice)) == []
    assert diff(detected(engine), wanted, SPEC) == []  # the engine that is there counts


def test_new_columns_come_after_their_neighbours_and_show_the_sources_default(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(schema(Field("z", SourceType("string"))), SPEC))
    engine.run("INSERT INTO t.orders (id, z, _version, _is_deleted) VALUES (1, 'z', 1, 0)")
    fresh = Field("added", SourceType("int32", optional=False, default=7, has_default=True))
    statements = settle(engine, schema(fresh, Field("z", SourceType("string")), Field("last", SourceType("boolean"))))
    assert len(statements) == 2
    assert list(types(engine)) == ["id", "added", "z", "last", "_version", "_is_deleted"]
    assert engine.rows("SELECT added, last FROM t.orders") == [{"added": 7, "last": None}]


def test_types_are_widened_and_nulls_let_in(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(
        "CREATE TABLE t.orders (id Int64, a Int32, b Decimal(10, 2), c LowCardinality(String), d Nullable(Float32), "
        "e DateTime64(3, 'UTC'), own String, wide Int64, _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    decimal = (("scale", "4"), ("connect.decimal.precision", "20"))
    wanted = schema(
        Field("a", SourceType("int64", optional=False)),
        Field("b", SourceType("bytes", "org.apache.kafka.connect.data.Decimal", decimal)),
        Field("c", SourceType("string")),
        Field("d", SourceType("float64", optional=False)),
        Field("e", SourceType("int64", "io.debezium.time.MicroTimestamp")),
        Field("own", SourceType("int32")),
        Field("wide", SourceType("int16", optional=False)),
    )
    statements = settle(engine, wanted)
    found = types(engine)
    assert found["a"] == "Int64"
    assert found["b"] == "Nullable(Decimal(20, 4))"
    assert found["c"] == "LowCardinality(Nullable(String))"
    assert found["d"] == "Nullable(Float64)"
    assert found["e"] == "Nullable(DateTime64(6, 'UTC'))"
    assert found["own"] == "String"  # the user's choice
    assert found["wide"] == "Int64"
    assert any("non_replicated_deduplication_window = 10000" in s for s in statements)


def test_comments_of_the_user_stay(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(
        "CREATE TABLE t.orders (id Int64 COMMENT 'it''s the key', v Nullable(Int64), _version UInt128) "
        "ENGINE = ReplacingMergeTree(_version) ORDER BY id"
    )
    for name in ("MicroTime", "NanoTime"):
        settle(engine, schema(Field("v", SourceType("int64", f"io.debezium.time.{name}"))))
        assert [c.comment for c in detected(engine).columns] == ["it's the key", "", ""]


def test_comments_of_a_table_that_init_made_follow_the_source(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(schema(Field("v", SourceType("int64", "io.debezium.time.MicroTime"))), SPEC))
    engine.run("ALTER TABLE t.orders COMMENT COLUMN v 'how long; debezium: int64 io.debezium.time.MicroTime'")
    settle(engine, schema(Field("v", SourceType("int64", "io.debezium.time.NanoTime"))))
    comments = {c.name: c.comment for c in detected(engine).columns}
    assert comments["v"] == "how long; debezium: int64 io.debezium.time.NanoTime"


def test_types_that_are_guesses_change_no_column_and_are_stated_nowhere(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(
        "CREATE TABLE t.orders (id Int32, price Decimal(10, 2), small Int8, at DateTime64(3), _version UInt128) "
        "ENGINE = ReplacingMergeTree(_version) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
    )
    guesses = schema(
        Field("price", SourceType("string")),
        Field("small", SourceType("int64")),
        Field("at", SourceType("int64")),
        Field("new", SourceType("float64")),
    )
    assert settle(engine, replace(guesses, inferred=True)) == [
        "ALTER TABLE `t`.`orders` ADD COLUMN IF NOT EXISTS `new` Nullable(Float64) AFTER `at`"
    ]
    unknown = UnknownColumn("later", 3, "Nullable(Int64)", comment="debezium: int64", inferred=True)
    assert offered(detected(engine), [unknown]) == [
        "ALTER TABLE `t`.`orders` ADD COLUMN IF NOT EXISTS `later` Nullable(Int64)"
    ]


@pytest.mark.parametrize("key", [("id",), ()])
def test_a_history_gets_its_system_columns_before_anything_is_known_of_its_topic(
    engine: ClickHouse, key: tuple[str, ...]
) -> None:
    """Its views need them."""
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run("CREATE TABLE t.orders (id Int64, v String) ENGINE = MergeTree ORDER BY id")
    for statement in unseen_statements(detected(engine), key, SPEC):
        engine.run(statement.sql)
    assert list(types(engine)) == ["id", "v", "_op", "_sign", "_version"]
    assert engine.rows("SELECT * FROM t.orders_current") == []
    made = unseen_statements(detected(engine), key, SPEC)
    assert not [statement for statement in made if statement.kind == "alter"]
    unknown = unseen_statements(detected(engine), None, SPEC)
    assert unknown == [statement for statement in made if statement.kind != "view"]


def test_an_append_table_gets_its_system_columns(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run("CREATE TABLE t.orders (id Int64) ENGINE = MergeTree ORDER BY id")
    settle(engine, schema())
    assert set(types(engine)) == {"id", "_op", "_sign", "_version"}


def test_a_table_without_a_key_gets_new_columns_of_known_values_only(engine: ClickHouse) -> None:
    spec, wanted = replace(SPEC, engine=EngineChoice.APPEND, order_by=("id",)), RowSchema((ID,), ())
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(wanted, spec))
    more = (
        Field("nullable", SourceType("int64")),
        Field("stated", SourceType("int64", optional=False, default=5, has_default=True)),
        Field("unknown", SourceType("int64", optional=False)),
    )
    wider = RowSchema((ID, *more), ())
    assert unfilled(detected(engine), wider, spec) == {"unknown": "Int64"}
    settle(engine, wider, spec)
    assert {name for name in types(engine) if name[0] != "_"} == {"id", "nullable", "stated"}
    views = [s.sql for s in existing_statements(detected(engine), wider, spec) if s.kind == "view"]
    assert views
    assert not any("unknown" in sql for sql in views)
    guessed = RowSchema((*wider.fields, Field("guessed", SourceType("int64"))), (), inferred=True)
    assert unfilled(detected(engine), guessed, spec).keys() == {"unknown", "guessed"}
    zero = SourceType("int64", optional=False, default=0, has_default=True, default_is="doubtful")  # or nextval()
    doubtful = RowSchema((*wider.fields, Field("seq", zero)), ())
    assert unfilled(detected(engine), doubtful, spec).keys() == {"unknown", "seq"}
    assert unfilled(detected(engine), replace(doubtful, key=(ID,)), spec).keys() == {"unknown"}
    with_key = replace(guessed, key=(ID,))
    assert unfilled(detected(engine), replace(with_key, inferred=False), spec) == {"unknown": "Int64"}
    assert unfilled(detected(engine), with_key, spec) == {}  # plain JSON states no defaults


def test_stored_rows_get_the_constants_that_the_file_adds(engine: ClickHouse) -> None:
    """Not if the table also holds rows of other topics, whose constants differ, or if the constant is not a literal."""
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(schema(), SPEC))
    engine.run("INSERT INTO t.orders (id, _version, _is_deleted) VALUES (1, 1, 0)")
    added = (("s", "'it''s'"), ("n", "-5"), ("f", "1.5"), ("b", "true"))
    wanted = chosen_schema(schema(), ColumnPolicy(add=added))
    assert unfilled(detected(engine), wanted, SPEC) == {}
    settle(engine, wanted)
    assert engine.rows("SELECT s, n, f, b FROM t.orders") == [{"s": "it's", "n": -5, "f": 1.5, "b": True}]
    for constant in ("toString(toDate(0))", "0b101", "- 5", "0x1F"):
        unread = ColumnPolicy(add=(("d", constant),))
        assert unfilled(detected(engine), chosen_schema(wanted, unread), SPEC).keys() == {"d"}
    shared = ColumnPolicy(add=(("d", "'x'"), ("of", "'orders'")), source=("of",))
    assert unfilled(detected(engine), chosen_schema(wanted, shared), SPEC).keys() == {"d", "of"}


def test_key_columns_are_never_changed(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run("CREATE TABLE t.orders (id Int32, _version UInt128) ENGINE = ReplacingMergeTree(_version) ORDER BY id")
    settle(engine, schema())
    assert types(engine)["id"] == "Int32"


def test_generated_columns_of_the_target_are_left_alone(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(
        "CREATE TABLE t.orders (id Int64, v Int32 MATERIALIZED id, _version UInt128) "
        "ENGINE = ReplacingMergeTree(_version) ORDER BY id"
    )
    statements = settle(engine, schema(Field("v", SourceType("int64"))))
    assert not any("`v`" in s for s in statements)


def test_the_view_of_an_existing_table_shows_the_columns_to_come(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run("CREATE TABLE t.orders (id Int64, mark Int8, v UInt64) ENGINE = CollapsingMergeTree(mark) ORDER BY id")
    wanted = schema(Field("v", SourceType("int64", optional=False)), Field("w", SourceType("string")))
    statements = existing_statements(detected(engine), wanted, SPEC)
    for _ in range(2):
        for statement in statements:
            engine.run(statement.sql)
    assert [r["name"] for r in engine.rows("DESCRIBE TABLE t.orders_current")] == ["id", "v", "w"]
    own = {f"table ch_sink_{name}" for name in ("ledger", "dead_letters", "handover", "pending", "columns")}
    assert {s.title for s in statements} >= own


def test_a_distributed_table_is_altered_on_its_cluster_first() -> None:
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version")
    table = TargetTable(
        "d", "all", engine, (Column("id", "Int64"),), ("id",), distributed=True, cluster="main", local=("d", "one")
    )
    assert offered(table, [UnknownColumn("x y", 3, "Nullable(Int32)", "5")]) == [
        "ALTER TABLE `d`.`one` ON CLUSTER `main` ADD COLUMN IF NOT EXISTS `x y` Nullable(Int32) DEFAULT 5",
        "ALTER TABLE `d`.`all` ADD COLUMN IF NOT EXISTS `x y` Nullable(Int32) DEFAULT 5",
    ]
    settings = [s for s in diff(table, RowSchema((ID,), (ID,)), TableSpec("d", "all")) if "SETTING" in s]
    assert settings == [
        "ALTER TABLE `d`.`one` ON CLUSTER `main` MODIFY SETTING non_replicated_deduplication_window = 10000"
    ]
