"""Which table an event is of, and the records of one table."""

import json

import pytest

from ch_sink.decode.source_tables import RecordsOfTable, SourceTable, SourceTables
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import EventPolicy
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
        (b'{"id": 1, "__source_table": "t", "__source_schema": "s"}', SourceTable("", "s", "t")),
        (b'{"id": 1, "source": "web", "payload": 5, "schema": [], "__table": "t"}', SourceTable("", "", "t")),
        (b'{"id": 1, "source": {"table": "other"}, "__table": "t"}', SourceTable("", "", "t")),
        (b'{"schema": {}, "payload": {"source": "web", "__table": "t"}}', SourceTable("", "", "t")),
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


def test_a_row_states_its_table_by_other_prefixes_and_by_headers():
    other = EventPolicy(fields_prefix="cdc_", headers_prefix="h_")
    assert SourceTables(None, other).of(b'{"id": 1, "cdc_table": "t", "__table": "u"}') == SourceTable("", "", "t")
    assert SourceTables(None, other).of(b'{"id": 1}', [("h_source_table", b'"t"')]) == SourceTable("", "", "t")
    assert SourceTables().of(None, [("__db", b"d"), ("__table", b"t")]) == SourceTable("d", "", "t")
    assert SourceTables().of(b'{"id": 1, "__table": "t"}', [("__table", b"u")]) == SourceTable("", "", "t")


def test_a_name_that_two_tables_have_is_refused():
    other = event(after={"id": 1}, db="d", schema="q", table="orders")
    with pytest.raises(StreamFailed, match=r"source_table: orders is the name of d\.p\.orders and of d\.q\.orders"):
        RecordsOfTable("orders").among(records((1, ORDERS), (1, other)))


@pytest.mark.parametrize("row", [b'{"id": 1, "v": "x"}', b'{"id": 1, "__deleted": "false"}'])
def test_a_row_that_states_no_table_is_refused(row):
    mine = RecordsOfTable("orders", columns=("id", "v"))
    with pytest.raises(StreamFailed, match="row at offset 101 of t, partition 0, does not state its source table"):
        mine.among(records((1, ORDERS), (2, row)))
