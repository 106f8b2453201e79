"""What a topic of several partitions needs of its Kafka keys."""

import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.support.hand import mysql, records_of
from tests.support.harness import ENGINES

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
HISTORY = TargetTable("d", "t", ENGINES["append without key"], (*TABLE.columns[:2], Column("_sign", "Int8")))


def change(key: Any, at: int, kind: str = "int64") -> tuple[bytes | None, bytes]:
    """A flattened row with its key, plain or in an envelope with a schema of this type."""
    row = json.dumps({"id": 1, "v": f"v{at}"}).encode()
    if key is None:
        return None, row
    schema = {"type": "struct", "fields": [{"field": "id", "type": kind, "optional": False}]}
    plain = {"id": key, "status": "x"} if kind == "ignored" else {"id": key}
    return json.dumps(plain if kind in ("", "ignored") else {"schema": schema, "payload": plain}).encode(), row


def planned(state: State, *changes: tuple[bytes | None, bytes], **policy: Any) -> Plan:
    made = policy_of(version_strategy="kafka_offset", **policy)
    chunk = chunk_of([key for key, _ in changes], [value for _, value in changes], first=100)
    return plan(chunk, Target.of(TABLE, made), Decoder(TABLE, made), state, Ports())


def values(made: Plan) -> list[Any]:
    return [v.decode() for insert in made.inserts for v in insert.rows.column("v").to_pylist()]


def test_the_first_key_in_another_form_ends_the_plan() -> None:
    begun = planned(State(), change(1, 1, "int32"))
    assert begun.barrier is None
    made = planned(begun.state, change(1, 2, "int32"), change(1, 3, "int64"), change(1, 4, "int32"))
    assert made.barrier is not None
    assert (made.barrier.kind, made.barrier.next_offset) == ("key_form", 101)
    assert values(made) == ["v2"]
    again = planned(made.state, change(1, 3, "int64"), change(1, 4, "int32"))
    assert again.barrier is not None
    assert again.barrier.next_offset == 100
    assert not again.inserts
    known = made.state.rewritten(*made.barrier.key_form)
    assert planned(known, change(1, 3, "int64"), change(1, 4, "int64")).barrier is None
    back = planned(known, change(1, 3, "int64"), change(1, 4, "int32")).barrier
    assert back is not None
    assert back.next_offset == 101


def test_a_topic_of_one_partition_takes_keys_in_any_form() -> None:
    made = planned(State(alone=True), change(1, 1, ""), change(1, 2, "int32"), change(1, 3, "int64"))
    assert (made.barrier, values(made)) == (None, ["v1", "v2", "v3"])
    assert planned(State(alone=True), change(None, 1), key_columns=("id",)).barrier is None


@pytest.mark.parametrize(
    ("given", "policy", "refused"),
    [
        (change(None, 1), {"key_columns": ("id",)}, "carry no key"),
        (
            change(1, 1, "ignored"),
            {"ignored_key_fields": ("status",)},
            "status, which ignored_key_fields leaves out",
        ),
    ],
)
def test_keys_that_are_not_the_table_s_need_one_partition(
    given: tuple[bytes | None, bytes], policy: dict[str, Any], refused: str
) -> None:
    with pytest.raises(StreamFailed, match=refused):
        planned(State(), given, **policy)
    assert values(planned(State(alone=True), given, **policy)) == ["v1"]


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (State(), "Use a topic of one partition, or let the connector write keys"),
        (State(uncounted=True), "the brokers"),
    ],
)
def test_a_table_without_a_key_needs_one_partition(state: State, step: str) -> None:
    """What is sent again is recognised in its own partition only."""
    given = records_of([mysql("c", None, None, {"id": 1, "v": "a"}, 100)])
    target, decoder = Target.of(HISTORY, policy_of()), Decoder(HISTORY, policy_of(), want_before=True)
    with pytest.raises(StreamFailed, match="the records of t carry no key") as caught:
        plan(given, target, decoder, state, Ports())
    assert step in (caught.value.hint or "")
    assert values(plan(given, target, decoder, State(alone=True), Ports())) == ["a"]


def test_truncates_have_no_key_in_any_table() -> None:
    policy = policy_of(truncate="apply")
    made = plan(
        records_of([mysql("t", None, None, None, 100)]),
        Target.of(TABLE, policy),
        Decoder(TABLE, policy),
        State(),
        Ports(),
    )
    assert made.barrier is not None
    assert made.barrier.kind == "truncate"


def test_one_record_without_a_key_is_enough() -> None:
    with pytest.raises(StreamFailed, match="carry no key"):
        planned(State(), change(1, 1, ""), change(None, 2), key_columns=("id",))
