"""Which sink has made a table, by its columns; the statements for one whose engine does not know the delete mark."""

import pytest

from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.other_sinks import maker_of, unused_mark, with_mark
from ch_sink.types.column import Column


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
        ("id Int64, _version UInt128, _is_deleted UInt8", None, None),
        ("id Int64, _version UInt128, _sign Int8", None, None),
    ],
)
def test_tables_are_known_by_their_columns(columns: str, maker: str | None, mark: str | None) -> None:
    found = maker_of(table(columns))
    assert (found is None) if maker is None else (found is not None and found.name.endswith(maker))
    assert unused_mark(table(columns)) == mark


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
