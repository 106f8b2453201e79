"""A plan decodes its chunk once, whatever ends it early, and keeps exactly what stands before that end."""

import json
from typing import Any

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
POLICY = policy_of(evolve="add_columns", truncate="apply")


def event(op: str, lsn: int, row: dict[str, Any] | None, commit: int = 100) -> tuple[bytes | None, bytes | None]:
    source = {"connector": "postgresql", "name": "pg", "ts_ms": 1, "snapshot": "false", "lsn": lsn}
    source["sequence"] = json.dumps([str(commit), str(lsn)])
    body = {"before": None, "after": row, "source": source, "op": op}
    return (None if op == "t" else json.dumps({"id": (row or {}).get("id", 9)}).encode(), json.dumps(body).encode())


def create(key: int, lsn: int, **more: Any) -> tuple[bytes | None, bytes | None]:
    return event("c", lsn, {"id": key, "v": "x", **more})


TOMBSTONE = (b'{"id":1}', None)
BROKEN = (b'{"id":1}', b"{")


class Counting(Decoder):
    calls = 0

    def decode(self, records: Records, *given: Any, **more: Any) -> ChangeBatch:
        self.calls += 1
        return super().decode(records, *given, **more)


def chunk(*pairs: tuple[bytes | None, bytes | None]) -> Records:
    return chunk_of([k for k, _ in pairs], [v for _, v in pairs])


def planned(records: Records) -> tuple[Plan, int]:
    decoder = Counting(TABLE, POLICY)
    made = plan(records, Target.of(TABLE, POLICY), decoder, State(alone=True), Ports())
    return made, decoder.calls


def shown(made: Plan) -> Any:
    rows = [row for insert in made.inserts for row in insert.rows.to_pylist()]
    return rows, made.bad, dict(made.counts), made.state.to_json()


def test_a_chunk_with_a_new_column_is_left_whole_for_the_table_to_get_it() -> None:
    made, calls = planned(chunk(create(1, 10), TOMBSTONE, BROKEN, create(2, 20, extra=7), create(3, 30)))
    assert calls == 1
    assert (made.barrier.kind, made.barrier.next_offset) == ("new_columns", 0)
    assert [*made.inserts, *made.bad, *made.counts] == []


def test_at_a_truncate() -> None:
    before = [create(1, 10), TOMBSTONE, BROKEN]
    behind = [event("t", 30, None, commit=200), create(3, 40), TOMBSTONE, BROKEN]
    made, calls = planned(chunk(*before, *behind))
    assert calls == 1
    assert (made.barrier.kind, made.barrier.next_offset) == ("truncate", 4)
    assert not made.inserts
    assert (made.counts["truncated"], made.counts["truncates"], made.counts["tombstone"]) == (1, 1, 1)
    assert [bad.index for bad in made.bad] == [2]
    assert made.state.of("pg").commit == 200


def test_columns_that_come_behind_a_truncate_are_added_first() -> None:
    made, _ = planned(chunk(create(1, 10), event("t", 20, None, commit=200), create(2, 30, extra=1)))
    assert (made.barrier.kind, made.barrier.next_offset) == ("new_columns", 0)


def test_a_truncate_that_repeats_an_earlier_one_ends_nothing() -> None:
    truncate = event("t", 20, None, commit=200)
    made, _ = planned(chunk(truncate))
    state = made.state.with_floor(made.barrier.floor, made.barrier.source)
    again = chunk(truncate, create(1, 30), event("t", 40, None, commit=300), create(2, 50))
    again.offsets += 1
    repeated = plan(again, Target.of(TABLE, POLICY), Decoder(TABLE, POLICY), state, Ports())
    assert repeated.barrier.next_offset == 4
    assert repeated.counts["truncates"] == 1
