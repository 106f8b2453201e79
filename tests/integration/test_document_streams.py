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
from tests.support.hand import Event, HandFed

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


@pytest.mark.parametrize(("engine", "cut"), each_value(ENGINES, [1, 3, 100]))
def test_sqlserver(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    stream = sqlserver(BY_NAME, "schema", headers=cut == 3)
    fed = feed(client, database, own_tables, engine, stream, "substring(last_name, 1, 1)", cut)
    truth = sorted((tuple(row.values()) for row in SQLSERVER_TRUTH), key=repr)
    assert fed.view() == truth
    fed.merge()
    assert fed.view() == truth


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
