"""What a running stream's records become when they are ordered in another way than before."""

import json
from typing import Any

from ch_sink.decode import Decoder
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))


def envelope(value: str, pos: int) -> dict[str, Any]:
    source = {"connector": "mysql", "name": "shop", "ts_ms": 1, "snapshot": "false", "file": "b.000007", "pos": pos}
    return {"before": None, "after": {"id": 1, "v": value}, "source": source, "op": "u"}


def flattened(value: str) -> dict[str, Any]:
    return {"id": 1, "v": value, "__deleted": "false"}


def step(offset: int, value: dict[str, Any], state: State, **policy: Any) -> Plan:
    told = policy_of(**policy)
    records = chunk_of([b'{"id":1}'], [json.dumps(value).encode()], first=offset)
    return plan(records, Target.of(TABLE, told), Decoder(TABLE, told), state, Ports())


def versions(plans: list[Plan]) -> list[int]:
    return [int.from_bytes(row["_version"], "little") for p in plans for i in p.inserts for row in i.rows.to_pylist()]


def test_rows_that_come_to_be_flattened_win_over_those_in_envelopes() -> None:
    first = step(10, envelope("a", 900), State())
    second = step(11, flattened("b"), first.state)
    third = step(12, envelope("c", 950), second.state)
    found = versions([first, second, third])
    assert len(found) == 3
    assert found == sorted(found)


def test_rows_win_over_those_of_the_strategy_before() -> None:
    first = step(10, envelope("a", 900), State())
    second = step(11, envelope("b", 901), State.from_json(first.state.to_json()), version_strategy="kafka_offset")
    third = step(12, envelope("c", 902), State.from_json(second.state.to_json()))
    found = versions([first, second, third])
    assert len(found) == 3
    assert found == sorted(found)
