"""Detection of real tables of the engine."""

from typing import Any

import pytest

from ch_sink.errors import TableError, TableNotFound
from ch_sink.model.policy import policy_of
from ch_sink.table.detect import (
    DEFAULTS_SQL,
    DETECT_SQL,
    assemble,
    detect_sql,
    local_table,
    maker_of,
    needs_defaults,
    unused_mark,
    with_mark,
)
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.engine import Engine as ClickHouse

COLUMNS = (
    "id Int64 COMMENT 'the key', region LowCardinality(String), ts DateTime64(3, 'UTC') DEFAULT now64(3), "
    "amount Nullable(Decimal(18, 2)), twice Int64 MATERIALIZED id * 2, also String ALIAS toString(id), "
    "ver UInt64, deleted UInt8, sign Int8"
)


def make(engine: ClickHouse, clause: str) -> dict[str, Any]:
    engine.run("DROP TABLE IF EXISTS t.x SYNC")
    engine.run(f"CREATE TABLE t.x ({COLUMNS}) ENGINE = {clause}")
    return seen(engine, "x")


def seen(engine: ClickHouse, table: str) -> dict[str, Any]:
    row = engine.rows(DETECT_SQL, {"database": "t", "table": table})[0]
    return {**row, **(engine.rows(DEFAULTS_SQL)[0] if needs_defaults(row) else {})}


def test_a_table_is_found_whole(engine: ClickHouse) -> None:
    row = make(
        engine,
        "ReplacingMergeTree(ver, deleted) PARTITION BY (toYYYYMM(ts), region) ORDER BY (id, toDate(ts)) "
        "TTL ts + INTERVAL 1 YEAR SETTINGS non_replicated_deduplication_window = 77 COMMENT 'orders'",
    )
    table = assemble(row, policy_of())
    assert (table.database, table.name, table.comment) == ("t", "x", "orders")
    assert (table.engine.family, table.engine.version_column) == (Family.REPLACING, "ver")
    assert (table.engine.is_deleted_column, table.engine.sign_column) == ("deleted", None)
    assert table.sorting_key == ("id", "toDate(ts)")
    assert table.partition_key == "(toYYYYMM(ts), region)"
    assert table.place_columns == {"id", "ts", "region"}
    assert table.ttl == "ts + toIntervalYear(1)"
    assert table.dedup_window == 77
    assert [c.name for c in table.columns if not c.insertable] == ["twice", "also"]
    assert [c.name for c in table.source_columns] == ["id", "region", "ts", "amount", "sign"]
    column = table.column("id")
    assert (column.type, column.comment) == ("Int64", "the key")
    column = table.column("ts")
    assert (column.default_kind, column.default_expression) == ("DEFAULT", "now64(3)")


def test_columns_keep_the_tables_order(engine: ClickHouse) -> None:
    names = [f"c{n:02}" for n in range(30, 0, -1)]
    engine.run("DROP TABLE IF EXISTS t.x SYNC")
    engine.run(f"CREATE TABLE t.x ({', '.join(f'{n} Int8' for n in names)}) ENGINE = MergeTree ORDER BY {names[3]}")
    assert [c.name for c in assemble(seen(engine, "x"), policy_of()).columns] == names


def test_the_servers_window_holds_where_the_table_sets_none(engine: ClickHouse) -> None:
    table = assemble(make(engine, "ReplacingMergeTree(ver) ORDER BY id"), policy_of())
    assert table.dedup_window == 0
    replicated = {
        **seen(engine, "x"),
        "engine": "ReplicatedMergeTree",
        "engine_full": "ReplicatedMergeTree ORDER BY id",
    }
    row = engine.rows(
        "SELECT name, value FROM system.replicated_merge_tree_settings WHERE name LIKE 'replicated_dedup%window%s'"
        " OR name = 'replicated_deduplication_window'"
    )
    values = {r["name"]: int(r["value"]) for r in row}
    found = assemble(replicated, policy_of())
    assert found.dedup_window == values["replicated_deduplication_window"] > 0
    assert found.dedup_window_seconds == values["replicated_deduplication_window_seconds"] > 0


@pytest.mark.parametrize(
    ("name", "settings", "asked"),
    [
        ("MergeTree", "", True),
        ("MergeTree", "non_replicated_deduplication_window = 0", False),
        ("MergeTree", "replicated_deduplication_window = 9, replicated_deduplication_window_seconds = 9", True),
        ("ReplicatedMergeTree", "non_replicated_deduplication_window = 9", True),
        ("ReplicatedMergeTree", "replicated_deduplication_window = 9", True),
        ("SharedMergeTree", "replicated_deduplication_window = 9, replicated_deduplication_window_seconds = 9", False),
    ],
)
def test_the_servers_windows_are_asked_for_where_the_table_sets_none(name: str, settings: str, asked: bool) -> None:
    full = f"{name} ORDER BY id" + (f" SETTINGS {settings}" if settings else "")
    row = {"engine": name, "engine_full": full}
    assert needs_defaults(row) == asked


def test_named_tuples_of_a_client_are_taken_too(engine: ClickHouse) -> None:
    row = make(engine, "ReplacingMergeTree(ver) ORDER BY id")
    names = ("position", "name", "type", "default_kind", "default_expression", "comment")
    as_mappings = {**row, "columns": [dict(zip(names, c, strict=True)) for c in row["columns"]]}
    assert assemble(as_mappings, policy_of()) == assemble(row, policy_of())


def test_no_version_is_refused(engine: ClickHouse) -> None:
    row = make(engine, "ReplacingMergeTree ORDER BY id")
    with pytest.raises(TableError, match="without a version column") as caught:
        assemble(row, policy_of())
    assert "ReplacingMergeTree(_version)" in (caught.value.hint or "")


def test_a_column_that_is_not_stored_is_refused(engine: ClickHouse) -> None:
    engine.run("DROP TABLE IF EXISTS t.x SYNC")
    columns = "id Int64, w String EPHEMERAL, n UInt64 DEFAULT length(w), s Int8"
    engine.run(f"CREATE TABLE t.x ({columns}) ENGINE = CollapsingMergeTree(s) ORDER BY id")
    with pytest.raises(TableError, match="EPHEMERAL column 'w'"):
        assemble(seen(engine, "x"), policy_of())


@pytest.mark.parametrize("kind", ["JSON", "Array(JSON)"])
def test_json_in_a_collapsing_table_is_refused(engine: ClickHouse, kind: str) -> None:
    engine.run("DROP TABLE IF EXISTS t.x SYNC")
    columns = f"id Int64, j {kind}, s Int8, v UInt64"
    engine.run(f"CREATE TABLE t.x ({columns}) ENGINE = VersionedCollapsingMergeTree(s, v) ORDER BY id")
    with pytest.raises(TableError, match="JSON column 'j'") as refused:
        assemble(seen(engine, "x"), policy_of())
    assert "MODIFY COLUMN `j` String" in str(refused.value.hint)


def test_coalescing_is_refused(engine: ClickHouse) -> None:
    row = make(engine, "CoalescingMergeTree ORDER BY id")
    with pytest.raises(TableError, match="update to null"):
        assemble(row, policy_of())


def test_a_partition_by_the_sign_of_a_collapsing_table_is_refused(engine: ClickHouse) -> None:
    with pytest.raises(TableError, match=r"PARTITION BY \(sign\) has 'sign', which the sink sets for each change"):
        assemble(make(engine, "CollapsingMergeTree(sign) PARTITION BY sign ORDER BY id"), policy_of())


@pytest.mark.parametrize(
    ("clause", "name"),
    [
        ("ReplacingMergeTree(ver) ORDER BY (id, ver)", "ver"),
        ("ReplacingMergeTree(ver, deleted) ORDER BY (id, deleted)", "deleted"),
        ("ReplacingMergeTree(ver) ORDER BY (id, toDate(ver))", "ver"),
        ("CollapsingMergeTree(sign) ORDER BY (id, sign)", "sign"),
        ("VersionedCollapsingMergeTree(sign, ver) ORDER BY (id, sign)", "sign"),
        ("VersionedCollapsingMergeTree(sign, ver) ORDER BY (id, ver)", ""),
        ("ReplacingMergeTree(ver, deleted) PARTITION BY deleted ORDER BY id", ""),
    ],
)
def test_a_row_is_not_sorted_by_what_each_change_sets(engine: ClickHouse, clause: str, name: str) -> None:
    made = make(engine, clause)
    if not name:
        assert assemble(made, policy_of()).engine.name in clause
        return
    with pytest.raises(TableError, match=rf"ORDER BY .* has '{name}', which the sink sets for each change"):
        assemble(made, policy_of())


@pytest.mark.parametrize("key", ["ver", "cityHash64(id, deleted)"])
def test_a_row_is_not_sharded_by_what_each_change_sets(engine: ClickHouse, key: str) -> None:
    over, local = distributed(engine)
    over["engine_full"] = f"Distributed('c', 't', 'x', {key})"
    with pytest.raises(TableError, match=r"whose sharding key .* which the sink sets for each change"):
        assemble(over, policy_of(), local=local)
    assert assemble(make(engine, "CollapsingMergeTree(sign) PARTITION BY id ORDER BY id"), policy_of()).partition_key


def test_a_table_partitioned_by_a_float_is_refused(engine: ClickHouse) -> None:
    """Of -0.0 and 0.0 the server makes one partition if they come in one block, else two."""
    engine.run("DROP TABLE IF EXISTS t.x SYNC")
    engine.run(
        "CREATE TABLE t.x (id Int64, f Float64, sign Int8) ENGINE = CollapsingMergeTree(sign) PARTITION BY floor(f) "
        "ORDER BY id SETTINGS allow_floating_point_partition_key = 1"
    )
    with pytest.raises(TableError, match=r"'f' is a float: rows with -0.0 and 0.0 may be in one partition or in two"):
        assemble(seen(engine, "x"), policy_of())


def test_views_and_missing_tables(engine: ClickHouse) -> None:
    engine.run("CREATE OR REPLACE VIEW t.v AS SELECT 1 AS x")
    with pytest.raises(TableError, match="a view stores nothing"):
        assemble(seen(engine, "v"), policy_of())
    assert engine.rows(DETECT_SQL, {"database": "t", "table": "nowhere"}) == []
    with pytest.raises(TableNotFound, match=r"`t`\.`nowhere` does not exist"):
        assemble(None, policy_of(), table="`t`.`nowhere`")


def test_the_current_database_is_meant_by_an_empty_name(engine: ClickHouse) -> None:
    make(engine, "ReplacingMergeTree(ver) ORDER BY id")
    engine.run("USE t")
    row = engine.rows(DETECT_SQL, {"database": "", "table": "x"})[0]
    engine.run("USE default")
    assert (row["database"], row["name"]) == ("t", "x")


def distributed(engine: ClickHouse) -> tuple[dict[str, Any], dict[str, Any]]:
    local = make(
        engine, "ReplacingMergeTree(ver, deleted) ORDER BY id SETTINGS non_replicated_deduplication_window = 9"
    )
    text = "Distributed('c', 't', 'x', cityHash64(region))"
    over = {
        **local,
        "name": "x_all",
        "engine": "Distributed",
        "engine_full": text,
        "sorting_key": "",
        "partition_key": "",
    }
    return over, local


def test_distributed_takes_the_engine_of_its_local_table(engine: ClickHouse) -> None:
    over, local = distributed(engine)
    found = local_table(over)
    assert (found.cluster, found.database, found.table) == ("c", "t", "x")
    table = assemble(over, policy_of(), local=local)
    assert (table.name, table.distributed, table.cluster, table.local) == ("x_all", True, "c", ("t", "x"))
    assert (table.engine.version_column, table.sorting_key, table.dedup_window) == ("ver", ("id",), 9)
    assert table.place_columns == {"id", "region"}


@pytest.mark.parametrize("key", ["rand()", "cityHash64(id, now64())"])
def test_a_row_without_a_shard_of_its_own_is_refused(engine: ClickHouse, key: str) -> None:
    over, local = distributed(engine)
    over["engine_full"] = f"Distributed('c', 't', 'x', {key})"
    with pytest.raises(TableError, match="would not reach the shard that has the row") as found:
        assemble(over, policy_of(), local=local)
    assert "cityHash64(id)" in str(found.value.hint)
    history = {**local, "engine": "MergeTree", "engine_full": "MergeTree ORDER BY id"}
    assert assemble(over, policy_of(), local=history).sharding_key == key


def test_distributed_without_its_local_table_is_an_error(engine: ClickHouse) -> None:
    over, local = distributed(engine)
    with pytest.raises(TableNotFound, match="does not exist there"):
        assemble(over, policy_of())
    fewer = {**over, "columns": [c for c in over["columns"] if c[1] != "ver"]}
    with pytest.raises(TableError, match="version column 'ver' does not exist"):
        assemble(fewer, policy_of(), local=local)


def test_a_cluster_can_be_asked_instead() -> None:
    assert "cluster('it\\'s', system.tables)" in detect_sql("it's")


def test_what_is_detected_can_be_shipped(engine: ClickHouse) -> None:
    import pickle

    table = assemble(make(engine, "ReplacingMergeTree(ver) ORDER BY id"), policy_of())
    assert isinstance(table, TargetTable)
    assert pickle.loads(pickle.dumps(table)) == table


def table(columns: str, name: str = "ReplacingMergeTree", **facts: object) -> TargetTable:
    made = tuple(Column(*text.split()) for text in columns.split(", "))
    return TargetTable("d", "t", Engine(Family.REPLACING, name, "_peerdb_version"), made, ("id",), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "maker", "mark"),
    [
        ("id Int64, _version UInt64, is_deleted UInt8", "Kafka Connect sink", "is_deleted"),
        ("is_deleted UInt8, _version UInt64, __is_deleted UInt8", "Altinity's sink connector", "__is_deleted"),
        ("id Int64, _sign Int8, _version UInt64", "Altinity's sink connector", None),
        ("id Int64, _peerdb_is_deleted UInt8, _peerdb_version UInt64", "PeerDB or ClickPipes", "_peerdb_is_deleted"),
        ("id Int64, gone UInt8, _peerdb_version UInt64", "PeerDB or ClickPipes", None),
        ("id Int64, _peerdb_is_deleted Int8, _peerdb_version Int64", "PeerDB or ClickPipes", "_peerdb_is_deleted"),
        ("id Int64, _version UInt128, _is_deleted UInt8", None, None),
        ("id Int64, _version UInt128, _sign Int8", None, None),
    ],
)
def test_tables_are_known_by_their_columns(columns: str, maker: str | None, mark: str | None) -> None:
    found = maker_of(table(columns))
    assert (found is None) if maker is None else (found is not None and found.name.endswith(maker))
    unused = unused_mark(table(columns))
    assert (unused.name if unused is not None else None) == mark


def test_a_table_of_a_cluster_is_made_anew_on_all_of_its_servers() -> None:
    columns = "id Int64, _peerdb_is_deleted UInt8, _peerdb_version UInt64"
    found = table(
        columns, "ReplicatedReplacingMergeTree", distributed=True, cluster="c", local=("d", "t_shard"),
        settings=(("storage_policy", "hot"), ("index_granularity", "8192")),
    )  # fmt: skip
    assert with_mark(found, "_peerdb_is_deleted") == [
        "CREATE TABLE `d`.`t_shard_before` ON CLUSTER `c` AS `d`.`t_shard` ENGINE = "
        "ReplicatedReplacingMergeTree(`_peerdb_version`, `_peerdb_is_deleted`) "
        "SETTINGS storage_policy = 'hot', index_granularity = 8192",
        "ALTER TABLE `d`.`t_shard_before` ON CLUSTER `c` ATTACH PARTITION ALL FROM `d`.`t_shard`",
        "EXCHANGE TABLES `d`.`t_shard` AND `d`.`t_shard_before` ON CLUSTER `c`",
    ]
