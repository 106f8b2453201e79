"""Feeds document events through the pipeline into a table in memory, with cuts, kills and second attempts."""

import contextlib
import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Applied, PartitionSink, StreamName
from ch_sink.pipeline.plan import Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Family, TargetTable
from ch_sink.types import arrow_type
from ch_sink.types.column import Column
from tests.support.hand import Event
from tests.support.harness import ENGINES
from tests.support.memory_table import Killed, MemoryHandover, MemoryLetters, MemoryPending, MemoryTable

__all__ = ["DocumentRun", "document_table"]


def document_table(columns: Sequence[Column], engine: str = "replacing", key: str = "_id") -> TargetTable:
    """A table of these source columns, ordered by the key."""
    made = ENGINES[engine]
    system = [Column("_version", "UInt128")]
    if made.sign_column:
        system.append(Column("_sign", "Int8"))
    if made.is_deleted_column:
        system.append(Column("_is_deleted", "UInt8"))
    if made.family is Family.MERGE_TREE:
        system += [Column("_op", "String"), Column("_sign", "Int8")]
    places = frozenset((key,))
    return TargetTable("d", "t", made, (*columns, *system), (key,), place_columns=places, dedup_window=1000)


class DocumentRun:
    """One partition of a topic into one table in memory."""

    def __init__(self, table: TargetTable, policy: Policy, events: Sequence[Event], key: str = "_id") -> None:
        self.policy, self.detected = policy, table
        self.target = Target.of(table, policy)
        self.table = MemoryTable(table, (key,), pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns]))
        self.keys = [None if e.key is None else json.dumps(e.key).encode() for e in events]
        self.values = [None if e.value is None else json.dumps(e.value, ensure_ascii=False).encode() for e in events]
        self.letters = MemoryLetters()
        self.handover, self.pending = MemoryHandover(), MemoryPending()
        self.attempt = 0
        self.state = State(alone=True)
        self.counts: dict[str, int] = {}
        self._sink: PartitionSink | None = None

    def records(self, start: int, end: int) -> Records:
        n = end - start
        return Records(
            "t", 0, np.arange(start, end), np.zeros(n, dtype=np.int64), self.keys[start:end], self.values[start:end]
        )

    def sink(self) -> PartitionSink:
        if self._sink is None:
            self._sink = PartitionSink(
                StreamName("s", "t", "id", 0, self.attempt),
                self.target,
                lambda want: Decoder(self.detected, self.policy, want_before=want),
                Ports(self.table, self.handover, None),
                self.table,
                self.letters,
                self.pending,
                deadline=1e9,
            )
        return self._sink

    def apply(self, start: int, end: int) -> Applied:
        done = self.sink().apply(Chunk(start, end, self.records(start, end)), self.state)
        self.state = done.state
        for name, n in done.counts.items():
            self.counts[name] = self.counts.get(name, 0) + n
        return done

    def run(self, rng: random.Random | None = None, longest: int = 10**9, kills: float = 0.0) -> "DocumentRun":
        """Everything, in chunks of up to ``longest`` events; some chunks die and are begun again.

        A second attempt of a collapsing table begins at the chunk that died (what came before is in its ledger), of
        any other one up to three chunks before.
        """
        rng = rng or random.Random(0)
        cuts = [0]
        while cuts[-1] < len(self.values):
            cuts.append(min(len(self.values), cuts[-1] + rng.randint(1, longest)))
        chunk = 0
        while chunk < len(cuts) - 1:
            if rng.random() < kills:
                self._die(cuts[chunk], cuts[chunk + 1], rng.randint(0, 2))
                chunk = chunk if self.target.collapsing else max(0, chunk - rng.randint(0, 3))
                continue
            self.apply(cuts[chunk], cuts[chunk + 1])
            chunk += 1
        return self

    def _die(self, start: int, end: int, inserts: int) -> None:
        self.table.fail_after = inserts
        with contextlib.suppress(Killed):
            self.sink().apply(Chunk(start, end, self.records(start, end)), self.state)
        self.table.fail_after = None
        self._sink = None
        self.attempt += 1

    def rows(self) -> list[dict[str, Any]]:
        """Current rows, texts as texts."""
        return [{name: _shown(value) for name, value in row.items()} for row in self.table.current()]


def _shown(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
