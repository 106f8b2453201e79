"""What ``check`` says of what a connector or its converter changes: only where sampled events show it."""

import json
from typing import Any

import pytest

from ch_sink.discovery.connector_findings import change_findings, partition_finding, rounded_findings
from ch_sink.discovery.look import Sampled, examine
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.event import chunk_of

MICRO = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
ZONED = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
OLD, NEW = -12_219_292_800_000_001, -12_219_292_800_000_000


def seen(key: dict[str, Any], rows: list[dict[str, Any]], *, connector: str = "postgresql", op: str = "r") -> Sampled:
    """A topic of rows with the key ``k`` and a column ``n`` that can be null and has the default 7."""
    k, n = {"field": "k", **key}, {"field": "n", "type": "int32", "optional": True, "default": 7}
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [k, n]}]}
    events = [{"op": op, "after": row, "source": {"connector": connector}} for row in rows]
    values = [json.dumps({"schema": schema, "payload": event}).encode() for event in events]
    whole = {"type": "struct", "fields": [k]}
    keys = [json.dumps({"schema": whole, "payload": {"k": row["k"]}}).encode() for row in rows]
    found = chunk_of(keys, values)
    return examine([found], "t", policy_of())


@pytest.mark.parametrize(
    ("key", "value", "connector", "warned"),
    [
        (MICRO, OLD, "postgresql", True),
        (MICRO, NEW, "postgresql", False),
        (MICRO, OLD, "mysql", False),
        (ZONED, "1500-03-11T00:00:00Z", "postgresql", True),
        (ZONED, "-0043-03-13T00:00:00Z", "postgresql", True),
        (ZONED, "2024-03-11T00:00:00Z", "postgresql", False),
        ({"type": "int64"}, OLD, "postgresql", False),
        ({"type": "int32", "name": "io.debezium.time.Date"}, -171605, "postgresql", False),
    ],
)
def test_old_times_in_a_key_of_postgresql_are_warned_of(key: Any, value: Any, connector: str, warned: bool) -> None:
    """Dates come as they are, and newer times too."""
    found = list(change_findings(seen(key, [{"k": value, "n": 1}], connector=connector).marks))
    assert [(f.level, f.title) for f in found] == ([("warn", "old times")] if warned else [])


@pytest.mark.parametrize(
    ("connector", "kind", "key", "refused"),
    [
        ("mariadb", "float32", (), True),
        ("mysql", "float32", (), True),
        ("mysql", "float32", ("id",), False),
        ("mysql", "float64", (), False),
        ("postgresql", "float32", (), False),
    ],
)
def test_rows_that_would_not_be_found_again_by_a_rounded_column_are_refused(
    connector: str, kind: str, key: tuple[str, ...], refused: bool
) -> None:
    columns = (Column("id", "Int64"), Column("v", "Nullable(Float32)", comment=f"debezium: {kind}"))
    table = TargetTable("d", "t", Engine(Family.MERGE_TREE, "MergeTree"), columns, ("id",))
    told = [(f.level, "v to six digits" in f.detail) for f in rounded_findings(connector, table, key, None)]
    assert told == ([("fail", True)] if refused else [])


@pytest.mark.parametrize(
    ("values", "warned"), [([7, 1], True), ([7, None], False), ([1, 2], False), ([None], False), ([], False)]
)
def test_a_default_where_null_never_comes_is_warned_of(values: list[int | None], warned: bool) -> None:
    """A null proves that the converter leaves nulls alone; if no value is the default, it has replaced none."""
    rows = [{"k": i, "n": n} for i, n in enumerate(values)]
    found = list(change_findings(seen({"type": "int64"}, rows, op="c").marks))
    assert [(f.level, f.title) for f in found] == ([("warn", "defaults")] if warned else [])


@pytest.mark.parametrize(
    ("topic", "others", "op", "connector", "root"),
    [
        ("s.public.orders_2023", ["s.public.orders"], "r", "postgresql", "s.public.orders"),
        ("s.public.orders_2023_01", ["s.public.orders", "s.public.orders_2023"], "r", "postgresql", "orders_2023:"),
        ("s.public.orders_2023", ["s.public.orders"], "c", "postgresql", ""),
        ("s.public.orders_2023", ["s.public.orders"], "r", "mysql", ""),
        ("s.public.orders_2023", ["s.public.customers", "s.public", "s"], "r", "postgresql", ""),
        ("s.public.orders", ["s.public.orders", "s.public.orders_2023"], "r", "postgresql", ""),
    ],
)
def test_a_topic_that_may_be_a_partition_s_is_named_with_its_root(
    topic: str, others: list[str], op: str, connector: str, root: str
) -> None:
    marks = seen({"type": "int64"}, [{"k": 1, "n": 1}], op=op, connector=connector).marks
    found = list(partition_finding(marks, topic, others))
    assert bool(found) is bool(root)
    assert all(root in f.detail and "skip: true" in (f.remedy or "") for f in found)


@pytest.mark.parametrize(
    ("tables", "field", "ignored", "warned"),
    [
        (["public.a", "public.b"], False, "", "public.a, public.b"),
        (["public.a", "public.a", "a"], False, "", ""),
        (["public.a", "public.b"], True, "", ""),
        (["public.a", "public.b"], True, "__dbz__physicalTableIdentifier", ""),
        (["a.t", "b.t", "c.t", "d.t"], False, "", "a.t, b.t, c.t, …"),
    ],
)
def test_source_tables_that_keys_do_not_tell_apart_are_warned_of(
    tables: list[str], field: bool, ignored: str, warned: str
) -> None:
    """As a router makes such a topic, with and without the field that it adds to keys."""
    events = [
        {"op": "c", "after": {"id": 1}, "source": {"connector": "postgresql", "schema": s, "table": t}}
        for s, _, t in (name.rpartition(".") for name in tables)
    ]
    own = {"__dbz__physicalTableIdentifier": "x"} if field else {}
    chunk = chunk_of([json.dumps({"id": 1, **own}).encode()] * len(events), [json.dumps(e).encode() for e in events])
    marks = examine([chunk], "t", policy_of(ignored_key_fields=(ignored,) if ignored else ())).marks
    found = [f.detail for f in change_findings(marks) if f.title == "source tables"]
    assert (f"({warned})" in found[0]) if warned else not found
