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
        ("d.p.orders", [100, 103, 104, 105]),
        ("d.q.orders", [101, 103, 104]),
        ("d.p.users", [102, 103, 104]),
        ("d.p.none", [103, 104]),
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
    in_schema = b'{"schema":{"type":"string","optional":false},"payload":"t"}'
    assert SourceTables().of(b'{"id": 1}', [("__table", in_schema)]) == SourceTable("", "", "t")
    assert SourceTables().of(None, [("__db", b"d"), ("__table", b"t")]) == SourceTable("d", "", "t")
    assert SourceTables().of(b'{"id": 1, "__table": "t"}', [("__table", b"u")]) == SourceTable("", "", "t")


@pytest.mark.parametrize("name", ["orders", "p.orders", "d.orders", "server.d.p.orders"])
def test_a_name_that_is_not_the_whole_one_of_its_events_is_refused(name):
    """A table of another schema that comes later would have it, too."""
    other = event(after={"id": 1}, db="d", schema="p", table="users")
    mine = RecordsOfTable(name)
    with pytest.raises(StreamFailed, match=r"offset 101 of t, partition 0, states d\.p\.orders") as error:
        mine.among(records((1, other), (1, ORDERS)))
    assert f"may be {name} but" in str(error.value)
    hint = error.value.hint or ""
    assert "Set source_table: d.p.orders;" in hint
    assert RecordsOfTable("d.p.orders").among(records((1, other), (1, ORDERS))).offsets.tolist() == [101]


def test_a_delete_that_states_less_of_the_name_than_the_rows_is_refused():
    """It would be left out, and the row would stay."""
    row = b'{"id": 1, "__schema": "p", "__table": "orders"}'
    every = records((1, row), (1, None), headers=[None, [("__table", b"orders")]])
    with pytest.raises(StreamFailed, match=r"offset 101 .* states orders .* may be p\.orders"):
        RecordsOfTable("p.orders").among(every)


def test_tables_with_dots_in_their_names_are_others():
    every = records(
        (1, event(after={"id": 1}, db="shop", collection="orders")),
        (1, event(after={"id": 1}, db="shop", collection="archive.orders")),
    )
    assert RecordsOfTable("shop.orders").among(every).offsets.tolist() == [100]
    assert RecordsOfTable("shop.archive.orders").among(every).offsets.tolist() == [101]


@pytest.mark.parametrize("row", [b'{"id": 1, "v": "x"}', b'{"id": 1, "__deleted": "false"}'])
def test_a_row_that_states_no_table_is_refused(row):
    mine = RecordsOfTable("d.p.orders", columns=("id", "v"))
    with pytest.raises(StreamFailed, match="row at offset 101 of t, partition 0, does not state its source table"):
        mine.among(records((1, ORDERS), (2, row)))
