"""A chunk that begins with null values: what they mean is read from the records before it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.change import Headers, Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
BLOCK = {"connector": "mysql", "name": "s", "file": "b.1", "pos": 1, "row": 0}
ENVELOPE = {"op": "c", "before": None, "after": {"id": 1, "v": "x"}, "source": BLOCK}
ROW = {"id": 1, "v": "x"}


def records(start: int, values: list[Any]) -> Records:
    texts = [None if value is None else json.dumps(value).encode() for value in values]
    return chunk_of([b'{"id":1}'] * len(values), texts, first=start)


class Past:
    """What stands before the chunk."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.asked = 0

    def before(self, offset: int, limit: int) -> Records:
        self.asked += 1
        return records(offset - len(self.values), self.values)


@pytest.mark.parametrize(
    ("before", "deletes"),
    [
        ([ROW], 2),
        ([ENVELOPE, ROW, None], 2),
        ([{**ROW, "__deleted": "false"}], 0),
        ([ROW, ENVELOPE], 0),
        ([], 0),
    ],
)
def test_a_chunk_of_nulls_only(before: list[Any], deletes: int) -> None:
    past = Past(before)
    target = Target.of(TABLE, policy_of())
    made = plan(records(10, [None, None]), target, Decoder(TABLE, policy_of()), State(), Ports(history=past))
    assert past.asked == 1
    assert (made.counts["deletes"], made.counts["tombstone"]) == (deletes, 2 - deletes)


def test_the_past_is_not_read_where_the_chunk_tells_or_the_configuration_does() -> None:
    past = Past([ENVELOPE])
    target = Target.of(TABLE, policy_of())
    made = plan(records(10, [None, ROW, None]), target, Decoder(TABLE, policy_of()), State(), Ports(history=past))
    assert made.counts["deletes"] == 2
    pinned = policy_of(tombstones="delete")
    made = plan(records(10, [None]), Target.of(TABLE, pinned), Decoder(TABLE, pinned), State(), Ports(history=past))
    assert made.counts["deletes"] == 1
    assert past.asked == 0


def test_null_values_that_waited_are_deletes() -> None:
    """Only changes wait."""
    batch = Decoder(TABLE, policy_of()).decode(records(10, [None]), waited=True)
    assert len(batch) == 1
    assert not batch.skipped_counts


@pytest.mark.parametrize("table", ["orders", ""])
def test_a_null_of_one_of_several_tables_has_to_say_of_which(table: str) -> None:
    policy = policy_of(of_one_table=True)
    headers: Headers = [("__table", b"orders")] if table else []
    chunk = replace(records(10, [ROW, None]), headers=[None, headers])
    target = Target.of(TABLE, policy)
    if table:
        assert plan(chunk, target, Decoder(TABLE, policy), State(), Ports()).counts["deletes"] == 1
    else:
        with pytest.raises(StreamFailed, match=r"the null value at offset 11 .* does not state its source table"):
            plan(chunk, target, Decoder(TABLE, policy), State(), Ports())
