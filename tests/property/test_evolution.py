"""Drawn histories of tables whose columns change, through the pipeline in memory: cuts, partitions, second attempts.

The table's part (what ALTER does, what a reader sees) is a few lines here; the engine's own is tested with the engine.
"""

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.decode import Decoder
from ch_sink.memory import MemoryHandover, MemoryLedger, MemoryPending
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import PartitionSink, Stores, open_sink
from ch_sink.pipeline.plans import Ports, StreamName
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.spec import TableSpec, plan_columns
from ch_sink.types.arrow import arrow_type
from ch_sink.types.column import Column
from tests.support.evolving import EvolvingSource
from tests.support.memory_stream import MemoryDeadLetters
from tests.support.memory_table import MemoryTable

POLICY = policy_of(evolve="add_columns", on_bad_record="fail")
ENGINES = {
    "replacing": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted"),
    "append": Engine(Family.MERGE_TREE, "MergeTree"),
}
SYSTEM = {
    "replacing": (Column("_version", "UInt128"), Column("_is_deleted", "UInt8")),
    "append": (Column("_op", "String"), Column("_sign", "Int8"), Column("_version", "UInt128")),
}


class Stream:
    """One stream into one table in memory; ``alter`` stands for the driver and the server."""

    def __init__(self, source: EvolvingSource, engine: str) -> None:
        self.source, self.records = source, source.records()
        plans = plan_columns(source.declared(), TableSpec("d", "t"))
        columns = tuple(Column(p.name, p.type, comment=p.comment) for p in plans if not p.system)
        self.table = TargetTable(
            "d", "t", ENGINES[engine], (*columns, *SYSTEM[engine]), ("id",), place_columns=frozenset(("id",))
        )
        self.stored = MemoryTable(self.table, ("id",))
        self.ledger, self.pending, self.letters = MemoryLedger("s"), MemoryPending(), MemoryDeadLetters()
        self.defaults: dict[str, Any] = {}
        self.altered = 0

    def sink(self, partition: int, attempt: int) -> PartitionSink:
        types = {c.name: arrow_type(c.type) for c in self.table.source_columns}
        table = self.table
        return open_sink(
            StreamName("s", "evolving", "id", partition, attempt),
            Target.of(table, POLICY),
            lambda want: Decoder(table, POLICY, want_before=want),
            Ports(self.stored, MemoryHandover(types)),
            Stores(self.stored, self.letters, self.pending),
        )

    def apply(self, partition: int, start: int, end: int, state: State, attempt: int) -> tuple[int, State]:
        """One chunk, up to a barrier; what the barrier asks for is left to `alter`."""
        whole = self.records[partition]
        chunk = Chunk(start, end, whole.slice(start, end))
        done = self.sink(partition, attempt).apply(chunk, state)
        self.asked = done.barrier
        return done.end, done.state

    def alter(self, barrier: Barrier | None) -> None:
        if barrier is None or not barrier.columns:
            return
        self.altered += 1
        for column in barrier.columns:
            self._add(column)

    def _add(self, column: UnknownColumn) -> None:
        if self.table.column(column.name) is not None:
            return
        assert column.clickhouse_type is not None
        made = Column(column.name, column.clickhouse_type, comment=column.comment)
        default = self.source.first_defaults[column.name]
        if default is not None:
            assert column.default is not None
            self.defaults[column.name] = default
        self.table = replace(self.table, columns=(made, *self.table.columns))
        self.table = replace(self.table, defaults=tuple((n, self._scalar(n, v)) for n, v in self.defaults.items()))
        types = [pa.field(c.name, arrow_type(c.type)) for c in self.table.source_columns]
        self.stored.alter(self.table, pa.schema(types))

    def _scalar(self, name: str, value: Any) -> pa.Scalar:
        column = self.table.column(name)
        assert column is not None
        return pa.scalar(value.encode() if isinstance(value, str) else value, arrow_type(column.type))

    def rows(self) -> list[tuple[Any, ...]]:
        """What a reader sees of the source's present columns: the newest version of each key."""
        newest: dict[int, dict[str, Any]] = {}
        for row in self.stored.rows:
            row = {n: row[n] if n in row else self.defaults.get(n) for n in {*row, *self.source.columns}}
            version = int.from_bytes(row["_version"], "little")
            known = newest.get(row["id"])
            if known is None or version > int.from_bytes(known["_version"], "little"):
                newest[row["id"]] = row
        alive = [r for _, r in sorted(newest.items()) if not r.get("_is_deleted") and r.get("_sign", 1) > 0]
        return [tuple(_plain(row[n]) for n in self.source.columns) for row in alive]


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@settings(max_examples=12)
@given(st.integers(0, 10**9), st.booleans(), st.sampled_from(sorted(ENGINES)))
def test_any_history_cut_and_second_attempt(seed: int, schemas: bool, engine: str) -> None:
    rng = random.Random(seed)
    source = EvolvingSource(schemas=schemas, partitions=2)
    source.write(1, v="first")
    source.live(rng, rng.randint(5, 40), changes=False)
    source.write(100)  # the last schema is told
    stream = Stream(source, engine)
    at, states = dict.fromkeys(stream.records, 0), dict.fromkeys(stream.records, State())
    while left := [p for p, r in stream.records.items() if at[p] < len(r)]:
        partition = rng.choice(left)
        start, end = at[partition], rng.randint(at[partition] + 1, len(stream.records[partition]))
        if rng.random() < 0.6:
            # Killed before its result was stored: with its rows in the table, perhaps after the table was altered.
            stream.apply(partition, start, end, states[partition], 0)
            stream.alter(stream.asked if rng.random() < 0.5 else None)
        reached = start
        while reached < end:
            before = reached
            reached, states[partition] = stream.apply(partition, reached, end, states[partition], 1)
            assert reached > before or stream.asked is not None
            stream.alter(stream.asked)
        at[partition] = end
    assert stream.rows() == source.truth()
    if engine == "append":
        assert len(stream.stored.rows) == sum(len(r) for r in stream.records.values())
    assert not stream.letters.stored
