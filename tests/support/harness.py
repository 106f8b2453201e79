"""Feeds a drawn history through the product's pipeline into a table, with cuts, interleavings, kills and retries."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Applied, PartitionSink, StreamName
from ch_sink.pipeline.plan import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.model import Batch, History, KafkaRecord, Layout
from tests.support.memory_table import Killed, MemoryHandover, MemoryLetters, MemoryPending, MemoryTable
from tests.support.plain_decoder import PlainDecoder

ENGINES = {
    "replacing": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted"),
    "sign": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", sign_column="_sign"),
    "collapsing": Engine(Family.COLLAPSING, "CollapsingMergeTree", sign_column="_sign"),
    "versioned": Engine(Family.VERSIONED_COLLAPSING, "VersionedCollapsingMergeTree", "_version", "_sign"),
    "append": Engine(Family.MERGE_TREE, "MergeTree"),
    "append without key": Engine(Family.MERGE_TREE, "MergeTree"),
}


def target_table(layout: Layout, engine: Engine) -> TargetTable:
    """The target of a model's layout."""
    columns = [Column(c.name, c.clickhouse) for c in layout.table.columns]
    columns.append(Column("_version", "UInt128"))
    if engine.sign_column:
        columns.append(Column("_sign", "Int8"))
    if engine.is_deleted_column:
        columns.append(Column("_is_deleted", "UInt8"))
    if engine.family is Family.MERGE_TREE:
        columns += [Column("_op", "String"), Column("_sign", "Int8")]
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


class ModelHistory:
    """Earlier records of a partition."""

    def __init__(self, topic: str, partition: int, records: list[KafkaRecord]) -> None:
        self.topic, self.partition, self.records = topic, partition, records

    def before(self, offset: int, limit: int) -> Records:
        return as_records(self.topic, self.partition, [r for r in self.records if r.offset < offset][-limit:])


class Run:
    """One stream over a history: the driver's part in a few lines."""

    def __init__(
        self,
        history: History,
        engine: Engine,
        *,
        policy: Policy | None = None,
        table: Any = None,
        handover: Any = None,
        pending: Any = None,
        decoder: Callable[[bool], BatchDecoder] | None = None,
        truncate: Callable[[int], None] | None = None,
        schema: pa.Schema | None = None,
        detected: TargetTable | None = None,
    ) -> None:
        """``schema``: source columns as the decoder gives them. ``detected``: the target, where it is a real one."""
        self.history = history
        policy = policy or policy_of(truncate="apply", on_bad_record="fail")
        self.target = Target.of(detected or target_table(history.layout, engine), policy)
        self.decoder = decoder or (lambda want: PlainDecoder(history.layout, want_before=want))
        plain = PlainDecoder(history.layout, want_before=False).schema
        self.table = table or MemoryTable(self.target.table, history.key, plain if decoder is None else schema or plain)
        self.handover = handover or MemoryHandover()
        self.pending = pending or MemoryPending()
        self.letters = MemoryLetters()
        self.states = dict.fromkeys(history.ends, State(alone=len(history.ends) == 1))
        self.floor = (0, 0, 0)
        self.truncate = truncate or self._truncate
        self.counts: Counter[str] = Counter()
        self.sinks: dict[int, PartitionSink] = {}
        self.attempt = 0
        self.before_ledger = False
        self.done: dict[int, tuple[int, State]] = {}
        """Per partition: how far the chunks of the running batch are known to be done (collapsing tables)."""
        self.between: list[str] = []
        """What was wrong after a batch: signs of a collapsing table that sum to neither 0 nor 1."""

    def sink(self, partition: int) -> PartitionSink:
        if partition not in self.sinks:
            history = self.history
            past = ModelHistory(history.topic, partition, history.records[partition])
            self.sinks[partition] = PartitionSink(
                StreamName("s", history.topic, "id", partition, self.attempt),
                self.target,
                self.decoder,
                Ports(self.table, self.handover, past),
                self.table,
                self.letters,
                self.pending,
                deadline=1e9,
                progress=lambda done: self._progress(partition, done),
            )
        return self.sinks[partition]

    def run(self, batches: list[Batch]) -> None:
        for batch in batches:
            for fault in batch.faults:
                self._kill(batch, fault.chunk, fault.point, fault.inserts)
            states = dict(self.states)
            for chunk in batch.chunks:
                self._chunk(chunk.partition, chunk.start, chunk.end, states)
            self.states = states
            self.done.clear()
            if self.target.collapsing and isinstance(self.table, MemoryTable):
                wrong = {k: n for k, n in self.table.sums().items() if n not in (0, 1)}
                self.between += [f"after a batch: signs of {k} sum to {n}" for k, n in wrong.items()]
        self.drain()

    def drain(self) -> None:
        """After the last batch: waiting changes whose hand-over came later."""
        before = -1
        while (left := sum(self.sink(p).waiting for p in self.states)) and left != before:
            before = left
            for partition, state in self.states.items():
                self.sink(partition).retry_pending(state.with_floor(self.floor))

    def _kill(self, batch: Batch, at: int, point: str, inserts: int) -> None:
        states = dict(self.states)
        for number, chunk in enumerate(batch.chunks):
            if number < at:
                self._chunk(chunk.partition, chunk.start, chunk.end, states)
                continue
            self.before_ledger = point == "before_ledger" and self.target.collapsing
            if point != "before_ledger":
                self.table.fail_after = 0 if point == "before_insert" else inserts
            with contextlib.suppress(Killed):
                self._chunk(chunk.partition, chunk.start, chunk.end, states)
            self.table.fail_after = None
            self.before_ledger = False
            break
        # A truncate's floor is noted when it is carried out; the states of a killed batch are lost.
        self.attempt += 1
        self.sinks.clear()

    def _progress(self, partition: int, done: Applied) -> None:
        if self.before_ledger:
            raise Killed
        if done.barrier is None:
            self.done[partition] = (done.end, done.state)

    def _chunk(self, partition: int, start: int, end: int, states: dict[int, State]) -> None:
        records = [r for r in self.history.records[partition] if start <= r.offset < end]
        if partition in self.done and self.done[partition][0] > start:
            start, states[partition] = self.done[partition]
        while start < end:
            states[partition] = states[partition].with_floor(self.floor)
            part = as_records(self.history.topic, partition, [r for r in records if r.offset >= start])
            done = self.sink(partition).apply(Chunk(start, end, part), states[partition])
            self.counts.update(done.counts)
            states[partition] = done.state
            start = done.end
            if done.barrier is not None and done.barrier.kind == "truncate":
                self.truncate(done.barrier.version)
                self.floor = max(self.floor, done.barrier.floor)

    def _truncate(self, version: int) -> None:
        table = self.table
        engine = self.target.table.engine
        live = table.current_rows()
        for row in live:
            if table.version(row) < version:
                gone = dict(row)
                if engine.family is Family.REPLACING:
                    gone["_version"] = version.to_bytes(16, "little")
                    gone.update({engine.is_deleted_column: 1} if engine.is_deleted_column else {engine.sign_column: -1})
                else:
                    gone[engine.sign_column] = -1
                table.rows.append(gone)

    def current(self) -> list[dict[str, Any]]:
        return sorted(self.table.current(), key=repr)

    def truth(self) -> list[dict[str, Any]]:
        return sorted(self.history.truth, key=repr)
