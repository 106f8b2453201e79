"""Hand-written events of several partitions through the whole coordinator into a table in memory, across lives."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.pipeline.chunks import join_records
from ch_sink.table.rollup import RollupChoice
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.hand import Event, records_of
from tests.support.kills import Kill, Killed
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic
from tests.support.rollups import with_rollups

NOTHING = Records("t", 0, np.zeros(0, np.int64), np.zeros(0, np.int64), [], [])


class MemoryFed:
    """One topic into a table (id, big), or of other columns, the first of which is the key."""

    def __init__(
        self,
        engine: str = "replacing",
        partitions: int = 2,
        policy: Policy | None = None,
        deadline: float = math.inf,
        columns: Sequence[Column] = (Column("id", "Int64"), Column("big", "Nullable(String)")),
        version: str = "UInt128",
        rollups: Sequence[RollupChoice] = (),
        **settings: Any,
    ) -> None:
        """``deadline``: seconds after which a waiting change is given up. ``settings``: as of StreamSettings."""
        table = with_rollups(document_table(columns, engine, columns[0].name, version), rollups)
        self.topic = MemoryTopic("t", dict.fromkeys(range(partitions), NOTHING), dict.fromkeys(range(partitions), 0))
        self.stream = MemoryStream(table, (columns[0].name,), self.topic, policy or policy_of(truncate="apply"))
        self.runner = LocalRunner(
            replace(self.stream.settings, **settings), replace(self.stream.ports(), deadline=deadline)
        )
        self.read = dict.fromkeys(range(partitions), 0)

    def send(self, partition: int, *events: Event) -> None:
        """The source sends events; they are read by the next batch."""
        first = self.topic.ends.setdefault(partition, 0)
        more = replace(records_of(events, first), partition=partition)
        self.topic.partitions[partition] = join_records([self.topic.partitions.get(partition, NOTHING), more])
        self.topic.ends[partition] = first + len(events)
        self.read.setdefault(partition, 0)

    def feed(self, partition: int, *events: Event, kills: Sequence[Kill] = (), cut: int | None = None) -> None:
        """Send events, and read the partition to its end in one batch; ``cut``: records of a chunk."""
        self.send(partition, *events)
        self.batch(partition, kills=kills, cut=cut)

    def batch(self, *partitions: int, kills: Sequence[Kill] = (), cut: int | None = None) -> None:
        """Read these partitions to their ends."""
        ranges = {p: (self.read[p], self.topic.ends[p]) for p in partitions}
        cuts = {p: [*range(start + cut, end, cut), end] for p, (start, end) in ranges.items()} if cut else {}
        self.runner.run([LocalBatch(ranges, cuts, kills=kills)])
        self.read.update({p: end for p, (_, end) in ranges.items()})

    def poll(
        self, limit: int | None = None, *, ceiling: dict[int, int] | None = None, kill: Kill | None = None
    ) -> dict[int, tuple[int, int]]:
        """One batch as the job plans it; returns what it read. ``kill`` ends the life."""
        self.runner._switch.arm(*([kill] if kill is not None else []))
        try:
            made = self.runner.coordinator
            ranges = made.plan(self.topic.state("t"), limit, ceiling)
            made.run_batch(ranges, self.runner._execute)
        except Killed:
            self.runner.kill()
            return {}
        self.read.update({r.partition: r.end for r in ranges})
        return {r.partition: (r.start, r.end) for r in ranges}

    def recreate(self, topic_id: str, partitions: int) -> None:
        """The topic is deleted, and created again without records."""
        self.topic.topic_id = topic_id
        self.topic.partitions = dict.fromkeys(range(partitions), NOTHING)
        self.topic.ends, self.read = dict.fromkeys(range(partitions), 0), dict.fromkeys(range(partitions), 0)

    def view(self) -> dict[int, Any]:
        """``big`` of the live rows, by id."""
        return {row["id"]: _text(row["big"]) for row in self.stream.table.current()}

    def sums(self) -> dict[Any, int]:
        """Sum of signs by key, of a collapsing table."""
        return self.stream.table.sums()

    @property
    def letters(self) -> list[tuple[int, int, str]]:
        """Partition, offset and kind of the dead letters."""
        found = [stored.letter for stored in self.stream.dead_letters.list()]
        return [(letter.partition, letter.offset, letter.kind) for letter in found]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
