"""The streams of the connectors' documents into tables of the real engine."""

import json
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value
from tests.support.documents import (
    BY_NAME,
    OTHER_ID,
    SAMPLE_ID,
    SQLSERVER_TRUTH,
    THIRD_ID,
    Orders,
    Stream,
    example,
    row,
    singlestore,
    sqlserver,
)
from tests.support.documents import LAYOUTS as ORDERS
from tests.support.hand import Event, HandFed, key_change, mysql

pytestmark = pytest.mark.integration

ENGINES = {
    "replacing": ("_version UInt128, _is_deleted UInt8", "ReplacingMergeTree(_version, _is_deleted)"),
    "collapsing": ("_sign Int8", "CollapsingMergeTree(_sign)"),
    "versioned": ("_sign Int8, _version UInt128", "VersionedCollapsingMergeTree(_sign, _version)"),
}


def feed(
    client: Client, database: str, own_tables: str, engine: str, stream: Stream, partition_by: str, cut: int
) -> HandFed:
    layout = stream.layout
    columns, family = ENGINES[engine]
    ddl = f"({layout.columns_sql}, {columns}) ENGINE = {family} PARTITION BY {partition_by} "
    ddl += f"ORDER BY ({', '.join(layout.order_by)}) SETTINGS non_replicated_deduplication_window = 1000"
    fed = HandFed(client, database, own_tables, ddl, layout.table.key, policy_of(on_bad_record="fail"))
    documents: list[Event] = []
    for key, value, headers, _ in stream.sent:
        documents.append(Event(_document(key), _document(value), headers))
    fed.feed(documents, cut=cut)
    return fed


def _document(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("engine", "cut"), each_value(ENGINES, [1, 3, 100]))
def test_sqlserver(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    stream = sqlserver(BY_NAME, "schema", headers=cut == 3)
    fed = feed(client, database, own_tables, engine, stream, "substring(last_name, 1, 1)", cut)
    truth = sorted((tuple(row.values()) for row in SQLSERVER_TRUTH), key=repr)
    assert fed.view() == truth
    fed.merge()
    assert fed.view() == truth


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("engine", "cut"), each_value(ENGINES, [1, 3, 100]))
def test_singlestore(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    layout = example("InternalId", "String")
    stream = singlestore(layout, (SAMPLE_ID, OTHER_ID, THIRD_ID), "InternalId", with_id=cut == 3)
    fed = feed(client, database, own_tables, engine, stream, "a % 2", cut)
    assert fed.view() == [(OTHER_ID, 9)]
    fed.merge()
    assert fed.view() == [(OTHER_ID, 9)]


@pytest.mark.parametrize(("engine", "cut"), each_value(ENGINES, [1, 100]))
def test_oracle(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    orders = Orders(ORDERS[0])
    orders.send("r", 1, None, row(1, "new", "a CLOB"), 100, None)
    orders.delete(1, row(1, "new", "__debezium_unavailable_value"), 110, 111, newkey={"ID": 2})
    orders.send("c", 2, None, row(2, "new", "__debezium_unavailable_value", 1), 110, 111, oldkey={"ID": 1})
    orders.send("u", 2, None, row(2, "paid", "__debezium_unavailable_value", 2), 120, 121)
    fed = feed(client, database, own_tables, engine, orders.stream, "REGION", cut)
    assert fed.view() == [(2, "paid", "a CLOB", 2)]


OLD_C = (
    "20488251985-66135155553-00362235007-72249840112-70784105787-"
    "84584360668-65106023418-49140058226-99031281108-48426083028"
)
NEW_C = OLD_C[:-1] + "9"
PAD = "18846546959-44726413785-66695616247-63594911107-83062207348"
SOURCE = "id Int32, k Int32, c String, pad String"
TAIL = "PARTITION BY k ORDER BY (id, k) SETTINGS non_replicated_deduplication_window = 1000"
TABLES = {
    "as in the document": f"({SOURCE}, sign Int8, ver UInt64) ENGINE = ReplacingMergeTree(ver) {TAIL}",
    "wide version": f"({SOURCE}, sign Int8, ver UInt128) ENGINE = ReplacingMergeTree(ver) {TAIL}",
    "is_deleted": f"({SOURCE}, ver UInt128, is_deleted UInt8) ENGINE = ReplacingMergeTree(ver, is_deleted) {TAIL}",
    "collapsing": f"({SOURCE}, sign Int8) ENGINE = CollapsingMergeTree(sign) {TAIL}",
    "versioned": f"({SOURCE}, sign Int8, ver UInt128) ENGINE = VersionedCollapsingMergeTree(sign, ver) {TAIL}",
    "append": f"({SOURCE}, _op String, _sign Int8, _version UInt128) ENGINE = MergeTree {TAIL}",
}


def table_row(k: int, c: str, id_: int = 2317) -> dict[str, object]:
    return {"id": id_, "k": k, "c": c, "pad": PAD}


def key(k: int, id_: int = 2317) -> dict[str, int]:
    return {"id": id_, "k": k}


def events() -> list[Event]:
    """insert; ``update … set k=k+1 where id=2317``; an update of c; a second row, deleted."""
    created = mysql("c", key(3737), None, table_row(3737, OLD_C), 16_208_000)
    other = mysql("c", key(9, 1), None, table_row(9, "c", 1), 16_208_500)
    moved = key_change(
        mysql("d", key(3737), table_row(3737, OLD_C), None, 16_209_369),
        mysql("c", key(3738), None, table_row(3738, OLD_C), 16_209_369),
    )
    updated = mysql("u", key(3738), table_row(3738, OLD_C), table_row(3738, NEW_C), 16_210_729)
    deleted = mysql("d", key(9, 1), table_row(9, "c", 1), None, 16_211_000)
    return [created, other, *moved, updated, deleted, Event(key(9, 1), None)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("engine", "cut"), each_value(TABLES, [100, 1, 3]))
def test_the_sbtest_example(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    fed = HandFed(client, database, own_tables, TABLES[engine], ("id", "k"), policy_of(on_bad_record="fail"))
    fed.feed(events(), cut=cut)
    assert fed.view() == [(2317, 3738, NEW_C, PAD)]
    fed.merge()
    assert fed.view() == [(2317, 3738, NEW_C, PAD)]
    if engine in ("collapsing", "versioned"):
        sums = fed.query("SELECT id, k, toInt64(sum(sign)) AS s FROM {t} GROUP BY id, k HAVING s != 0")
        assert sums == [(2317, 3738, 1)]


def test_the_documents_row_policy_hides_deleted_rows(client: Client, database: str, own_tables: str) -> None:
    fed = HandFed(
        client, database, own_tables, TABLES["as in the document"], ("id", "k"), policy_of(on_bad_record="fail")
    )
    fed.feed(events(), cut=2)
    every = "SELECT id, k, c FROM {t} FINAL"
    assert len(fed.query(every)) == 3  # the delete rows of both old keys are newest there
    client.command(f"CREATE ROW POLICY sbtest ON {fed.name} USING sign != -1 TO ALL")
    try:
        assert fed.query(every, apply_row_policy_after_final=1) == [(2317, 3738, NEW_C)]
        # Merged: each deleted key is its delete row alone, and the policy needs no FINAL any more.
        fed.merge()
        assert fed.query("SELECT id, k, c FROM {t}") == [(2317, 3738, NEW_C)]
    finally:
        client.command(f"DROP ROW POLICY sbtest ON {fed.name}")


def test_deletes_repeat_the_old_values_and_get_a_higher_version(client: Client, database: str, own_tables: str) -> None:
    fed = HandFed(client, database, own_tables, TABLES["wide version"], ("id", "k"), policy_of(on_bad_record="fail"))
    fed.feed(events(), cut=1)
    found = fed.query("SELECT k, sign FROM {t} WHERE id = 2317 ORDER BY ver")
    assert found == [(3737, 1), (3737, -1), (3738, 1), (3738, 1)]
