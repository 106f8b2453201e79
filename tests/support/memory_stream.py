"""One stream's external systems in memory: topic, table, dead letters, schemas, and the states of streams."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode import decoder_for
from ch_sink.memory import MemoryHandover, MemoryLedger, MemoryPending
from ch_sink.model.change import Records, UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.model.values import TopicState
from ch_sink.pipeline.plans import BatchDecoder
from ch_sink.ports import DeadLetter, Fence, RegisteredSchema, StoredLetter
from ch_sink.ports.ledger import Alive, Compared, Condition, RecordedState, Request
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.ports import StreamPorts, StreamSettings
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type
from ch_sink.types.column import Column
from tests.support.local_runner import LocalPorts
from tests.support.memory_table import MemoryTable


@dataclass(slots=True)
class MemoryDeadLetters:
    """Dead letters of one stream and topic; the newest entry of an offset counts."""

    clock: Callable[[], float] = time.time
    stored: dict[tuple[int, int], StoredLetter] = field(default_factory=dict)

    def put(self, letters: Sequence[DeadLetter], token: str) -> None:
        for letter in letters:
            self.stored[letter.partition, letter.offset] = StoredLetter(letter, self.clock())

    def list(self, limit: int = 100, *, retried: bool = False) -> list[StoredLetter]:
        """Dead letters by partition and offset; those applied since only on request."""
        found = [self.stored[place] for place in sorted(self.stored)]
        return [s for s in found if retried or s.retried is None][:limit]

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        """See DeadLetters."""
        return sorted(o for (p, o), s in self.stored.items() if p == partition and first <= o < end and not s.retried)

    def count(self) -> dict[str, int]:
        """Dead letters not yet applied, by kind."""
        kinds = sorted(s.letter.kind for s in self.stored.values() if s.retried is None)
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def settle(self, places: Sequence[tuple[int, int]], outcome: str) -> None:
        """Note what became of dead letters, by (partition, offset)."""
        for place in places:
            if place in self.stored:
                self.stored[place] = replace(self.stored[place], retried=self.clock(), outcome=outcome)


class MemoryGroup:
    """A consumer group that accepts every commit."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self._asked: Callable[[], None] | None = None

    def commit(self, topic: str, ends: Mapping[int, int]) -> None:
        """See GroupOffsets.commit."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked()
        self.committed.update(ends)

    def last_committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """See GroupOffsets.last_committed."""
        return {p: self.committed[p] for p in partitions if p in self.committed}

    def before_commit(self, topic: str, partitions: Sequence[int], notice: Callable[[dict[int, int]], None]) -> None:
        """See GroupOffsets.before_commit."""
        self._asked = lambda: notice(self.last_committed(topic, partitions))


class MemoryRegistry:
    """Schemas by id."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        self._schemas = dict(schemas)

    def find(self, schema_id: int) -> RegisteredSchema | None:
        return self._schemas.get(schema_id)


class MemoryStreamStates:
    """The StreamStates of all jobs that share this object. ``clock``: seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self.requests: dict[str, tuple[int, Request]] = {}
        self.conditions: dict[str, tuple[int, Condition]] = {}
        self.beats: dict[str, tuple[float, Alive]] = {}
        self.compared: dict[str, Compared] = {}
        self.reads = 0

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        self.reads += 1
        return {name: self._recorded(name) for name in streams}

    def mark(self) -> object:
        return tuple(self.requests.items()), tuple((name, c.at) for name, c in self.compared.items())

    def ask(self, requests: Mapping[str, Request]) -> None:
        self.requests |= {name: (next(self._numbers), request) for name, request in requests.items()}

    def note(self, conditions: Mapping[str, Condition]) -> None:
        self.conditions |= {name: (next(self._numbers), condition) for name, condition in conditions.items()}

    def beat(self, beats: Mapping[str, Alive]) -> None:
        self.beats |= {name: (self._clock(), alive) for name, alive in beats.items()}

    def compare(self, comparisons: Mapping[str, Compared]) -> None:
        self.compared |= comparisons

    def _recorded(self, name: str) -> RecordedState:
        asked, request = self.requests.get(name, (0, None))
        noted, condition = self.conditions.get(name, (0, None))
        at, alive = self.beats.get(name, (0.0, None))
        quiet = self._clock() - at if alive else 0.0
        return RecordedState(request, condition, asked > noted, alive, quiet, self.compared.get(name))


class MemoryTopic:
    """A topic that holds these records. ``ends``: high watermarks, by default after the last records."""

    topic_id = "id"

    def __init__(self, name: str, records: Mapping[int, Records], ends: Mapping[int, int] | None = None) -> None:
        self.name, self.partitions = name, dict(records)
        self.ends = dict(ends) if ends is not None else {p: _end(r) for p, r in records.items()}

    def state(self, topic: str) -> TopicState:
        """See Topics.state."""
        low = {p: int(r.offsets[0]) if len(r) else self.ends[p] for p, r in self.partitions.items()}
        return TopicState(topic, self.topic_id, low, dict(self.ends))

    def read(self, partition: int, start: int, end: int) -> Records:
        """The records of [start, end)."""
        whole = self.partitions[partition]
        first, last = np.searchsorted(whole.offsets, (start, end)).tolist()
        return whole.slice(first, last)

    def history(self, partition: int) -> "MemoryHistory":
        """Earlier records of a partition."""
        return MemoryHistory(self.partitions[partition])


class MemoryHistory:
    """Earlier records of a partition."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def before(self, offset: int, limit: int) -> Records:
        """See History.before."""
        end = int(np.searchsorted(self._records.offsets, offset))
        return self._records.slice(max(0, end - limit), end)


class MemoryStream:
    """One topic into one table, with everything that outlives a job; also its own TableAdmin."""

    def __init__(
        self,
        table: TargetTable,
        key_columns: tuple[str, ...],
        topic: MemoryTopic,
        policy: Policy,
        decoder: Callable[[TargetTable, bool], BatchDecoder] | None = None,
        *,
        name: str = "s",
        schema: pa.Schema | None = None,
        chunk_offsets: int = 50_000,
    ) -> None:
        """
        Args:
            decoder: from the current table and whether before images are wanted; the product's by default.
            schema: of the source columns as they are inserted; by default from the table's types.
        """
        self.settings = StreamSettings(name, topic.name, policy, chunk_offsets)
        self.topic, self.detected = topic, table
        self._decoder = decoder or (lambda now, want: decoder_for(now, policy, want_before=want))
        kinds = schema if schema is not None else _schema(table)
        self.table = MemoryTable(table, key_columns, kinds)
        self.ledger = MemoryLedger(name)
        self.handover, self.pending = MemoryHandover({f.name: f.type for f in kinds}), MemoryPending()
        self.dead_letters, self.group = MemoryDeadLetters(), MemoryGroup()

    def ports(self) -> LocalPorts:
        """The ports as LocalRunner uses them."""
        return LocalPorts(
            open_ledger=lambda: MemoryLedger(self.ledger.stream, beside=self.ledger),
            admin=self,
            topics=self.topic,
            group=self.group,
            pending=self.pending,
            dead_letters=self.dead_letters,
            writer=lambda _: self.table,
            lookup=lambda _: self.table,
            handover=lambda _: self.handover,
            decoder=self._decoder,
            records=self.topic.read,
            history=self.topic.history,
        )

    def coordinator(self, settings: StreamSettings | None = None, *more: Any) -> Coordinator:
        """The coordinator of another job; ``more``: the ports that only some have."""
        ledger = self.ports().open_ledger()
        ports = StreamPorts(ledger, self, self.topic, self.pending, self.group, *more)
        return Coordinator(settings or self.settings, ports)

    def detect(self) -> TargetTable:
        """See TableAdmin."""
        return self.detected

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        """See TableAdmin; existing columns are not changed."""
        for column in columns:
            if self.detected.column(column.name) is None and column.clickhouse_type is not None:
                self._add(column, column.clickhouse_type)
        self.table.alter(self.detected, _schema(self.detected))
        self.handover.types = {c.name: arrow_type(c.type) for c in self.detected.source_columns}
        return self.detected

    def _add(self, column: UnknownColumn, kind: str) -> None:
        made = Column(column.name, kind, comment=column.comment)
        self.detected = replace(self.detected, columns=(made, *self.detected.columns))

    def truncate(
        self, table: TargetTable, version: int, version_column: str | None, supersede: Callable[[], Sequence[Fence]]
    ) -> None:
        """See TableAdmin."""
        self.table.truncate(version)

    def fill_rollups(
        self, table: TargetTable, supersede: Callable[[], Sequence[Fence]], *, doubtful: bool, last: str = ""
    ) -> None:
        """See TableAdmin."""
        self.table.fill_rollups(supersede, doubtful=doubtful, last=last)

    def keep_rollups(self, table: TargetTable, run: str) -> None:
        """See TableAdmin."""
        for rollup in self.table.rollups.values():
            rollup.kept = run

    def highest_version(self, table: TargetTable) -> int:
        """See TableAdmin."""
        return self.table.highest_version()

    def has_rows(self, table: TargetTable, *, of_any: bool = False) -> bool:
        """See TableAdmin."""
        return bool(self.table.rows)


def _schema(table: TargetTable) -> pa.Schema:
    return pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns])


def _end(records: Records) -> int:
    return int(records.offsets[-1]) + 1 if len(records) else 0
