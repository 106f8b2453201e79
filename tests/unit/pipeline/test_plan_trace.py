"""A trace notes which rule decided about each event, and changes nothing of what is planned."""

from typing import Any

import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch
from ch_sink.model.policy import policy_of
from ch_sink.order import Sequenced, State, Trace
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import StoredRows
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.unit.pipeline.test_plan_once import chunk, event

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
POLICY = policy_of(truncate="apply")
UNAVAILABLE = "__debezium_unavailable_value"
EVENTS = (
    event("c", 10, {"id": 1, "v": "a"}, 100),
    event("u", 20, {"id": 1, "v": UNAVAILABLE}, 200),
    event("c", 10, {"id": 1, "v": "a"}, 100),
    event("u", 30, {"id": 2, "v": UNAVAILABLE}, 300),
)


class Newer:
    """A table with a row of key 2 that outranks all events."""

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        schema = pa.schema(
            {"id": pa.int64(), "v": pa.string(), "_version": pa.binary(16), "_is_deleted": pa.uint8()}
        )  # fmt: skip
        rows = [{"id": 2, "v": "z", "_version": b"\xff" * 15 + b"\x0f", "_is_deleted": 0}]
        return StoredRows(pa.Table.from_pylist([row for row in rows if row["id"] in keys["id"].to_pylist()], schema))


def planned(trace: Trace | None) -> Plan:
    ports = Ports(Newer(), trace=trace)
    return plan(chunk(*EVENTS), Target.of(TABLE, POLICY), Decoder(TABLE, POLICY), State(alone=True), ports)


def shown(made: Plan) -> Any:
    rows = [row for insert in made.inserts for row in insert.rows.to_pylist()]
    return rows, dict(made.counts), made.state.to_json()


def test_a_trace_that_follows_everything_changes_no_plan() -> None:
    followed: list[int] = []

    def follow(batch: ChangeBatch, _: Sequenced) -> None:
        followed.extend(batch.offset.tolist())

    trace = Trace(follow)
    assert shown(planned(trace)) == shown(planned(None))
    assert followed == [0, 1, 2, 3]
    assert {offset: d.rule for offset, d in trace.decisions.items()} == {
        0: "applied", 1: "applied", 2: "re-delivered", 3: "superseded",
    }  # fmt: skip
    assert trace.decisions[2].offset == 0
    assert trace.decisions[3].version == int.from_bytes(b"\xff" * 15 + b"\x0f", "little")
    assert trace.filled[1].why == "v"


def test_a_trace_leaves_out_what_it_does_not_follow() -> None:
    def follow(batch: ChangeBatch, order: Sequenced) -> None:
        order.keep &= batch.offset == 0

    made = planned(Trace(follow))
    assert [row["id"] for row in shown(made)[0]] == [1]
    assert made.counts["looked_up"] == 0
    assert made.state.sources == planned(None).state.sources, "the others are ordered all the same"
