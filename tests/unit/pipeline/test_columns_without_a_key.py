"""A column that comes in mid-stream, in a table whose rows are found by all of their values."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.event import SOURCE, records, row

TABLE = TargetTable(
    "d",
    "t",
    Engine(Family.MERGE_TREE, "MergeTree"),
    (Column("id", "Int64"), Column("v", "Nullable(String)"), Column("_sign", "Int8"), Column("_version", "UInt128")),
    ("id",),
)
WITH = TargetTable("d", "t", TABLE.engine, (Column("n", "Nullable(Int64)"), *TABLE.columns), ("id",))


def planned(
    added: dict[str, Any] | None,
    evolve: str,
    table: TargetTable = TABLE,
    key: int | None = None,
    value: Any = 5,
    source: dict[str, Any] = SOURCE,
) -> Plan:
    """An update whose row has the column ``n``. ``added``: its schema; None for JSON without schemas."""
    before, after = {**row(1), "n": value}, {**row(1, "new"), "n": value}
    event: dict[str, Any] = {"op": "u", "before": before, "after": after, "source": source}
    if added is not None:
        fields = [
            {"field": "id", "type": "int64", "optional": False},
            {"field": "v", "type": "string", "optional": True},
            {"field": "n", **added},
        ]
        images = [{"type": "struct", "field": f, "optional": True, "fields": fields} for f in ("before", "after")]
        event = {"schema": {"type": "struct", "fields": images}, "payload": event}
    policy = policy_of(evolve=evolve)
    target = Target.of(table, policy)
    found = records((key, json.dumps(event).encode()))
    return plan(found, target, Decoder(table, policy), State(alone=True), Ports())


@pytest.mark.parametrize(
    ("added", "default"),
    [({"type": "int64", "optional": True}, None), ({"type": "int64", "optional": False, "default": 5}, "5")],
)
def test_it_is_added_if_stored_rows_get_its_values(added: dict[str, Any], default: str | None) -> None:
    made = planned(added, "add_columns")
    assert made.barrier is not None
    assert [(c.name, c.default) for c in made.barrier.columns] == [("n", default)]


def test_json_is_refused_since_rows_are_found_by_it() -> None:
    table = replace(WITH, columns=(*WITH.columns, Column("j", "Array(JSON)")))
    with pytest.raises(StreamFailed, match=r"JSON column 'j' may give back another value") as refused:
        planned(None, "ignore", table)
    assert "MODIFY COLUMN `j` String" in (refused.value.hint or "")
    assert planned(None, "ignore", table, key=1).inserts


DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True}


@pytest.mark.parametrize(
    ("noted", "kind", "now", "stops"),
    [
        ("int64", "Nullable(Int64)", {"type": "int32", "optional": True}, True),
        ("int32", "Nullable(Int64)", {"type": "int64", "optional": True}, False),
        ("string", "Nullable(String)", {"type": "int64", "optional": True}, True),
        ("float64", "Nullable(Float64)", {"type": "float", "optional": True}, True),
        (
            'bytes org.apache.kafka.connect.data.Decimal {"parameters":{"scale":"4","connect.decimal.precision":"10"}}',
            "Nullable(Decimal(10, 4))",
            {**DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
            True,
        ),
        (
            'string io.debezium.time.ZonedTimestamp {"parameters":{"ch_sink.wide":"true"}}',
            "Nullable(String)",
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "optional": True},
            False,
        ),
        (
            'int32 io.debezium.time.Date {"parameters":{"ch_sink.wide":"true"}}',
            "Nullable(String)",
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True},
            True,
        ),
    ],
)
def test_a_type_that_becomes_smaller_stops_the_stream(noted: str, kind: str, now: dict[str, Any], stops: bool) -> None:
    table = replace(WITH, columns=(Column("n", kind, comment=f"debezium: {noted}"), *TABLE.columns))
    value = {"bytes": "BQ==", "string": "infinity"}.get(now["type"], 5)
    if not stops:
        assert planned(now, "add_columns", table, value=value).inserts
        return
    with pytest.raises(StreamFailed, match=r"column 'n' as .*smaller than before") as stopped:
        planned(now, "add_columns", table, value=value)
    assert "new snapshot" in (stopped.value.hint or "")
    with_key = planned(now, "add_columns", table, key=1, value=value)
    assert with_key.inserts or with_key.barrier is not None


def test_rows_of_another_type_are_filled_anew_where_they_have_a_key() -> None:
    """A table without a key cannot be filled from the source beside a running stream."""
    table = replace(WITH, columns=(Column("n", "Nullable(Int32)", comment="debezium: int32"), *TABLE.columns))
    for key, step in ((None, "load a new snapshot into a new table"), (1, "resync CONFIG --against source")):
        with pytest.raises(StreamFailed, match="does not hold these values") as stopped:
            planned({"type": "string", "optional": True}, "add_columns", table, key=key, value="007")
        assert step in (stopped.value.hint or "")


NOW = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": False, "default": 0}


@pytest.mark.parametrize(
    ("added", "evolve"),
    [
        (None, "add_columns"),
        ({"type": "int64", "optional": False}, "add_columns"),
        (NOW, "add_columns"),
        (None, "ignore"),
        ({"type": "int64", "optional": True}, "ignore"),
    ],
)
def test_it_stops_the_stream_if_their_values_are_not_known(added: dict[str, Any] | None, evolve: str) -> None:
    with pytest.raises(StreamFailed, match=r"new column 'n'.*found by all of their values") as error:
        planned(added, evolve)
    assert "DEFAULT" in str(error.value.hint)
    assert not planned(added, evolve, WITH).bad  # as the hint says


def test_a_default_that_postgresql_also_states_for_functions_is_not_known() -> None:
    postgres = {"connector": "postgresql", "name": "s", "ts_ms": 1, "snapshot": "false", "lsn": 1}
    stated = {"type": "int64", "optional": False}
    with pytest.raises(StreamFailed, match="found by all of their values"):
        planned({**stated, "default": 0}, "add_columns", source=postgres)
    for default, source in ((5, postgres), (0, SOURCE)):
        assert planned({**stated, "default": default}, "add_columns", source=source).barrier is not None


def test_rows_with_a_key_are_found_by_it() -> None:
    made = planned(None, "add_columns", key=1)
    assert made.barrier is not None
    assert [c.name for c in made.barrier.columns] == ["n"]


@pytest.mark.parametrize("tombstones", ["auto", "ignore"])
def test_a_null_does_not_say_which_of_its_rows_was_deleted(tombstones: str) -> None:
    found = records((None, json.dumps({**row(1), "__op": "c"}).encode()), (None, None))
    policy, state = policy_of(version_strategy="kafka_offset", tombstones=tombstones), State(alone=True)
    if tombstones == "ignore":
        assert plan(found, Target.of(TABLE, policy), Decoder(TABLE, policy), state, Ports()).counts["upserts"] == 1
    else:
        with pytest.raises(StreamFailed, match="a null value does not say which row it was"):
            plan(found, Target.of(TABLE, policy), Decoder(TABLE, policy), state, Ports())
