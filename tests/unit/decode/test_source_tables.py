"""Which table an event is of, and the records of one table."""

import json

import pytest

from ch_sink.decode.source_tables import RecordsOfTable, SourceTable, SourceTables
from tests.support.event import event, records

ORDERS = event(after={"id": 1}, db="d", schema="p", table="orders")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (ORDERS, SourceTable("d", "p", "orders")),
        (
            json.dumps({"schema": {"type": "struct"}, "payload": json.loads(ORDERS)}).encode(),
            SourceTable("d", "p", "orders"),
        ),
        (event(after={"id": 1}, db="d", table="t"), SourceTable("d", "", "t")),
        (event(after={"id": 1}, db="d", collection="c"), SourceTable("d", "", "c")),
        (b'{"id": 1, "__table": "t", "__db": "d"}', SourceTable("d", "", "t")),
        (b'{"id": 1, "table": "t"}', None),
        (b'{"id": 1, "source": "shop"}', None),
        (event(after={"id": 1}), None),
        (b"no json", None),
        (b"null", None),
        (None, None),
    ],
)
def test_a_value_states_its_table(value, found):
    assert SourceTables().of(value) == found


@pytest.mark.parametrize(
    ("name", "offsets"),
    [
        ("orders", [100, 101, 103, 104, 105]),
        ("p.orders", [100, 103, 104, 105]),
        ("d.p.orders", [100, 103, 104, 105]),
        ("d.q.orders", [101, 103, 104]),
        ("users", [102, 103, 104]),
    ],
)
def test_records_of_a_table_and_those_that_state_none(name, offsets):
    every = records(
        (1, ORDERS),
        (1, event(after={"id": 1}, db="d", schema="q", table="orders")),
        (1, event(after={"id": 1}, db="d", schema="p", table="users")),
        (1, None),
        (1, b"no json"),
        (2, ORDERS),
    )
    kept = RecordsOfTable(name).among(every)
    assert kept.offsets.tolist() == offsets
    assert len(kept.keys) == len(kept.values) == len(kept)
