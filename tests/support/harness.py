"""Feeds a drawn history through the product's coordinator into a table, with cuts, interleavings, kills and retries."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.pipeline.plans import BatchDecoder
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.rollup import RollupChoice
from ch_sink.types.column import Column
from tests.model import Batch, History, KafkaRecord, Layout
from tests.model.plans import Fault
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic
from tests.support.plain_decoder import PlainDecoder
from tests.support.rollups import with_rollups

ENGINES = {
    "replacing": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted"),
    "sign": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", sign_column="_sign"),
    "collapsing": Engine(Family.COLLAPSING, "CollapsingMergeTree", sign_column="_sign"),
    "versioned": Engine(Family.VERSIONED_COLLAPSING, "VersionedCollapsingMergeTree", "_version", "_sign"),
    "append": Engine(Family.MERGE_TREE, "MergeTree"),
    "append without key": Engine(Family.MERGE_TREE, "MergeTree"),
}


VERSIONS = ("UInt64", "Int64", "UInt128", "UInt256")
"""Types of version columns that tables made by hand have."""


def target_table(layout: Layout, engine: Engine, version: str = "UInt128") -> TargetTable:
    """The target of a model's layout. ``version``: type of its version column."""
    columns = [Column(c.name, c.clickhouse) for c in layout.table.columns]
    columns.append(Column("_version", version))
    if engine.sign_column:
        columns.append(Column("_sign", "Int8"))
    if engine.is_deleted_column:
        columns.append(Column("_is_deleted", "UInt8"))
    if engine.family is Family.MERGE_TREE:
        columns += [Column("_op", "String"), Column("_sign", "Int8"), Column("_source_time", "DateTime64(3)")]
    names = {c.name for c in layout.table.columns}
    used = set(layout.order_by) | {n for n in names if re.search(rf"\b{n}\b", layout.partition_by or "")}
    return TargetTable(
        "default",
        "t",
        engine,
        tuple(columns),
        sorting_key=layout.order_by,
        partition_key=layout.partition_by or "",
        place_columns=frozenset(used),
        dedup_window=10_000,
    )


def as_records(topic: str, partition: int, records: list[KafkaRecord]) -> Records:
    return Records(
        topic,
        partition,
        np.array([r.offset for r in records], dtype=np.int64),
        np.array([r.timestamp for r in records], dtype=np.int64),
        [r.key for r in records],
        [r.value for r in records],
        [list(r.headers) or None for r in records],
    )


def topic_of(history: History) -> MemoryTopic:
    """The history's topic as Kafka holds it."""
    records = {p: as_records(history.topic, p, found) for p, found in history.records.items()}
    return MemoryTopic(history.topic, records, history.ends)


def batches_of(plan: list[Batch], *, collapsing: bool) -> list[LocalBatch]:
    """A drawn plan as the runner carries it out."""
    return [
        LocalBatch(
            batch.ranges,
            {p: [c.end for c in batch.chunks if c.partition == p] for p in batch.ranges},
            [chunk.partition for chunk in batch.chunks],
            [_kill_of(fault, collapsing) for fault in batch.faults],
        )
        for batch in plan
    ]


def _kill_of(fault: Fault, collapsing: bool) -> Kill:
    if fault.point == "before_insert":
        return Kill("before insert", step=fault.chunk)
    if fault.point == "after_insert":
        return Kill("after insert", nth=fault.inserts, step=fault.chunk)
    return Kill("before progress" if collapsing else "after step", step=fault.chunk)


class Run:
    """One stream over a history, in memory unless other ports are given."""

    def __init__(
        self,
        history: History,
        engine: Engine,
        *,
        policy: Policy | None = None,
        decoder: Callable[[bool], BatchDecoder] | None = None,
        schema: pa.Schema | None = None,
        version: str = "UInt128",
        rollups: Sequence[RollupChoice] = (),
    ) -> None:
        """``schema``: source columns as the decoder gives them; by default as the plain decoder does."""
        self.history = history
        plain = PlainDecoder(history.layout, want_before=False).schema
        made = decoder or (lambda want: PlainDecoder(history.layout, want_before=want))
        self.stream = MemoryStream(
            with_rollups(target_table(history.layout, engine, version), rollups),
            history.key,
            topic_of(history),
            policy or policy_of(truncate="apply", on_bad_record="fail"),
            lambda _, want: made(want),
            schema=plain if decoder is None else schema or plain,
        )
        self.table, self.letters = self.stream.table, self.stream.dead_letters
        self.runner = LocalRunner(self.stream.settings, self.stream.ports(), after_batch=self._look)
        self.collapsing = engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)
        self.between: list[str] = []
        """What was wrong after a batch: signs of a collapsing table that sum to neither 0 nor 1."""

    def run(self, plan: list[Batch]) -> None:
        self.run_batches(batches_of(plan, collapsing=self.collapsing))

    def run_batches(self, batches: list[LocalBatch]) -> None:
        self.runner.run(batches)
        self.runner.stop()

    @property
    def waiting(self) -> int:
        """Changes that still wait for values."""
        return len(self.stream.pending)

    def _look(self) -> None:
        if self.collapsing:
            wrong = {k: n for k, n in self.table.sums().items() if n not in (0, 1)}
            self.between += [f"after a batch: signs of {k} sum to {n}" for k, n in wrong.items()]
