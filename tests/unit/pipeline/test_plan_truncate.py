"""A truncate inside a transaction: rows written after it stay, also those on other partitions."""

import json

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.types.column import Column
from tests.model import LAYOUTS
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.support.harness import ENGINES, PlainDecoder, target_table

COMMIT = 5000


def record(op, key, lsn, commit=COMMIT):
    row = {"id": key, "n": 1, "tag": "t", "big": "b", "place": 0, "day": 1}
    source = {"connector": "postgresql", "name": "pg", "ts_ms": 1, "snapshot": "false", "lsn": lsn}
    source["sequence"] = json.dumps([str(commit), str(lsn)])
    body = {"before": None, "after": None if op == "t" else row, "source": source, "op": op}
    return (None if op == "t" else json.dumps({"id": key}).encode(), json.dumps(body).encode())


def planned(*records, start=0, state=None, **policy):
    layout = LAYOUTS["key"]
    target = Target.of(target_table(layout, ENGINES["replacing"]), policy_of(truncate="apply", **policy))
    chunk = chunk_of([k for k, _ in records], [v for _, v in records], first=start)
    return plan(chunk, target, PlainDecoder(layout, want_before=False), state or State(), Ports())


def versions(made):
    return [int.from_bytes(v, "little") for i in made.inserts for v in i.rows.column("_version").to_pylist()]


def test_rows_of_the_same_transaction_on_another_partition_are_not_below_it():
    truncate = planned(record("t", 0, 4000), start=90)
    elsewhere = planned(record("c", 7, 4100), start=3)
    assert truncate.barrier.kind == "truncate"
    assert all(v >= truncate.barrier.version for v in versions(elsewhere))


def test_rows_of_earlier_transactions_are_below_it():
    truncate = planned(record("t", 0, 4000))
    earlier = planned(record("c", 7, 3900, commit=4999), start=10**6)
    assert all(v < truncate.barrier.version for v in versions(earlier))


def test_what_the_truncate_overtakes_in_its_chunk_is_not_written():
    made = planned(record("c", 1, 3900, commit=4000), record("c", 2, 3950), record("t", 0, 4000), record("c", 3, 4100))
    assert not made.inserts
    assert made.barrier.next_offset == 3
    assert made.counts["truncated"] == 2


def test_kafka_offsets_order_no_truncate_among_several_partitions():
    with pytest.raises(StreamFailed, match=r"truncate at offset 90 cannot be applied.*kafka_offset"):
        planned(record("t", 0, 4000), start=90, version_strategy="kafka_offset")
    alone = planned(record("t", 0, 4000), start=90, state=State(alone=True), version_strategy="kafka_offset")
    assert alone.barrier.kind == "truncate"


ROUTED = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))


def routed(op, key, lsn, table):
    row = {"id": key, "v": "x"}
    source = {"connector": "postgresql", "name": "pg", "lsn": lsn, "sequence": json.dumps([str(lsn), str(lsn)])}
    source |= {"db": "shop", "schema": "public", "table": table}
    body = {"before": None, "after": None if op == "t" else row, "source": source, "op": op}
    return (None if op == "t" else json.dumps({"id": key}).encode(), json.dumps(body).encode())


def planned_routed(state, *records, start=0):
    target = Target.of(ROUTED, policy_of(truncate="apply"))
    chunk = chunk_of([k for k, _ in records], [v for _, v in records], first=start)
    return plan(chunk, target, Decoder(ROUTED, policy_of(truncate="apply")), state, Ports())


@pytest.mark.parametrize("first", ["y2025", "y2026"])
def test_a_truncate_of_one_of_several_source_tables_is_refused(first):
    """Rows do not say of which table they are, whether it came in this chunk or before."""
    begun = planned_routed(State(), routed("c", 1, 10, "y2025"))
    assert planned_routed(begun.state, routed("t", 0, 20, "y2025"), start=5).barrier.kind == "truncate"
    both = r"offset 6 cannot be applied: the table also has rows of 'shop\.public\.y2025' and 'shop\.public\.y2026'"
    with pytest.raises(StreamFailed, match=both):
        planned_routed(begun.state, routed("c", 2, 20, first), routed("t", 0, 30, "y2026"), start=5)


def test_older_changes_of_a_table_that_comes_behind_a_truncate_are_not_dropped_with_it():
    begun = planned_routed(State(), routed("c", 1, 10, "y2025"), routed("t", 0, 20, "y2025"))
    elsewhere = State().met(tables=begun.state.tables)  # as another partition has it
    below = elsewhere.with_floor(begun.barrier.floor, begun.barrier.source)
    assert planned_routed(below, routed("c", 2, 15, "y2025"), start=9).counts["truncated"] == 1
    with pytest.raises(StreamFailed, match="a truncate of source 'pg' was applied, and changes of before it come from"):
        planned_routed(below, routed("c", 2, 15, "y2026"), start=9)
