"""Dates and times that Python's do not reach, at each place where rows are compared or named."""

import pyarrow as pa
import pytest

from ch_sink.decode import Decoder
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.order.redelivery import _row
from ch_sink.pipeline.merging import _not_stored_so
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import StoredRows
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.partition import partition_groups
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.hand import Event, postgres, records_of
from tests.support.memory_stream import MemoryTopic

DAYS = (-719_528, 2_932_896)
"""0000-01-01 and 9999-12-31."""
SECONDS = tuple(day * 86_400 for day in DAYS)
DATE = Column("d", "Date32", comment="debezium: int32 io.debezium.time.Date")


def dates() -> pa.Array:
    return pa.array(DAYS, pa.int32()).cast(pa.date32())


class Stored:
    """Holds these rows."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        return StoredRows(self.rows)


def test_rows_are_compared_with_stored_ones() -> None:
    times = pa.array(SECONDS, pa.int64()).cast(pa.timestamp("s", "UTC"))
    many = pa.array([[one] for one in SECONDS], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("s")))
    rows = pa.table({"id": [1, 2], "d": dates(), "t": times, "many": many})
    assert _not_stored_so(rows, ("id",), Stored(rows.slice(1))).equals(rows.slice(0, 1))
    other = rows.set_column(1, "d", pa.array([DAYS[0] + 1, DAYS[1] - 1], pa.int32()).cast(pa.date32()))
    assert _not_stored_so(rows, ("id",), Stored(other)).equals(rows)


def stored(events: list[Event], key: tuple[str, ...] = ()) -> int:
    """How many rows are stored of events that are all sent twice, each time in a chunk of its own."""
    policy = policy_of(on_bad_record="fail", key_columns=key)
    table = document_table((Column("id", "Int64"), DATE), "append", "id")
    found = records_of([*events, *events])
    ports = Ports(history=MemoryTopic("t", {0: found}).history(0))
    state, rows = State(alone=True), 0
    for chunk in (found.slice(0, len(events)), found.slice(len(events), len(found))):
        made = plan(chunk, Target.of(table, policy), Decoder(table, policy), state, ports)
        state, rows = made.state, rows + sum(insert.rows.num_rows for insert in made.inserts)
    return rows


@pytest.mark.parametrize("day", DAYS)
def test_rows_without_a_key_that_are_sent_again_are_known(day: int) -> None:
    assert stored([postgres("c", None, None, {"id": i, "d": day}, 100 + i, 90 + i) for i in (1, 2)]) == 2


@pytest.mark.parametrize("day", DAYS)
def test_rows_of_a_configured_key_that_are_sent_again_are_known(day: int) -> None:
    assert stored([postgres("c", None, None, {"id": 1, "d": day}, 100, 90)], ("d",)) == 1


def test_keys_are_told_apart() -> None:
    policy = policy_of(on_bad_record="fail")
    table = document_table((Column("id", "Int64"), DATE), "replacing", "d")
    found = records_of([postgres("c", {"d": day}, None, {"id": 1, "d": day}, 100, 90) for day in (*DAYS, *DAYS)])
    decoder = Decoder(table, policy)
    profile = decoder.learn(found)
    batch = decoder.decode(found, profile)
    rows = [_row(batch, event) for event in range(4)]
    assert rows[:2] == rows[2:]
    assert rows[0] != rows[1]
    values = decoder.key_values([key for key in found.keys if key is not None], profile)
    assert values[:2] == values[2:]
    assert None not in values
    assert values[0] != values[1]


def test_partitions_of_times_have_names() -> None:
    kind = pa.timestamp("ms", "UTC")
    rows = pa.table({"t": pa.array([one * 1000 for one in SECONDS], pa.int64()).cast(kind)})
    columns = (Column("t", "DateTime64(3, 'UTC')"),)
    table = TargetTable("d", "t", Engine(Family.REPLACING, "ReplacingMergeTree"), columns, ("t",), partition_key="t")
    groups = partition_groups(table, rows)
    assert groups is not None
    assert [numbers.tolist() for _, numbers in groups] == [[0], [1]]
    assert len({name for name, _ in groups}) == 2
    again = partition_groups(table, rows.slice(0, 1))
    assert again is not None
    assert again[0][0] == groups[0][0]
