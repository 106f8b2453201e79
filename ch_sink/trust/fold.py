"""A topic folded by key into a shadow table: the stream's own pipeline, with everything but the rows kept in memory.

The coordinator, decoder, ordering and merging are those of the stream, so a row becomes exactly what the stream would
store. The ledger, waiting changes and dead letters are this run's own and end with it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.clickhouse import AnyKeyLookup, ClickHouseTableAdmin, ClickHouseWriter, Client
from ch_sink.errors import READ_AGAIN, DataLoss, StreamFailed
from ch_sink.memory import MemoryHandover, MemoryLedger, MemoryPending
from ch_sink.model.change import HandoverId
from ch_sink.model.counts import counted, grouped
from ch_sink.model.policy import Policy
from ch_sink.observe.logs import Step
from ch_sink.order import State, is_one_of_several
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Attempt, Stores, open_sink
from ch_sink.pipeline.plans import BatchDecoder, Ports, StreamName
from ch_sink.pipeline.target import Target
from ch_sink.ports import (
    DeadLetter,
    Fact,
    Fence,
    FinishedRange,
    HandedOver,
    Handover,
    RangeIntent,
    TableRefilled,
    TopicFacts,
)
from ch_sink.stream.batch_plan import OffsetRange, plan_ranges
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.ports import NoGroup, StreamPorts, StreamSettings
from ch_sink.stream.run_task import TaskPorts, run_task
from ch_sink.stream.tasks import RangeTask, Task
from ch_sink.table.model import TargetTable
from ch_sink.trust.topic import TopicReader

_LIMIT = 500_000
"""Offsets in one batch."""
_NOT_BY_TOPIC = (
    "The topic has changes that one column cannot show as they are. If the stream stands there, `ch_sink status` names "
    "its next step; after that use --against source."
)

MakeDecoder = Callable[[TargetTable, bool], BatchDecoder]
"""The table and whether before images are wanted."""


def lenient(policy: Policy, shadow: TargetTable) -> Policy:
    """The stream's choices, except that nothing stops a fold which did not stop the stream.

    A shadow has numbers as versions, also that of a table which has times.
    """
    changes = replace(policy.changes, evolve="ignore", on_bad_record="dead_letter")
    timed = policy.versions.strategy == "source_time" and Target.of(shadow, policy).layout.kind != "time"
    versions = replace(policy.versions, strategy="auto") if timed else policy.versions
    return replace(policy, changes=changes, versions=versions)


@dataclass(slots=True)
class Letters:
    """The records that cannot be applied."""

    whole: bool = False
    """Keep their values and headers, too, which the topic has."""
    stored: dict[tuple[int, int], DeadLetter] = field(default_factory=dict)

    def put(self, letters: Sequence[DeadLetter], token: str) -> None:
        """See DeadLetters."""
        for letter in letters:
            kept = letter if self.whole else replace(letter, value=None, headers=())
            self.stored[letter.partition, letter.offset] = kept

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        """See DeadLetters."""
        return sorted(offset for p, offset in self.stored if p == partition and first <= offset < end)

    def of_kind(self, kind: str) -> set[tuple[int, int]]:
        """Partition and offset of those of a kind."""
        return {place for place, letter in self.stored.items() if letter.kind == kind}

    @property
    def kinds(self) -> Counter[str]:
        """How many, by kind."""
        return Counter(letter.kind for letter in self.stored.values())


class Fold:
    """One topic into one shadow table, up to any offset and then further on."""

    def __init__(
        self,
        client: Client,
        shadow: TargetTable,
        settings: StreamSettings,
        topic: TopicReader,
        decoder: MakeDecoder,
        handover: Handover | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        whole_letters: bool = False,
    ) -> None:
        """``handover``: values of key changes that began before the fold. ``say``: is given the progress.

        ``whole_letters``: see `Letters`.
        """
        self.say = say
        self._client, self._shadow, self._topic, self._decoder = client, shadow, topic, decoder
        self._settings = replace(settings, name=f"shadow:{settings.name}", policy=lenient(settings.policy, shadow))
        self._ledger = MemoryLedger(self._settings.name)
        self._handover: Handover = MemoryHandover()
        if handover is not None:
            self._handover = _Behind(self._handover, handover)
        self._pending = MemoryPending()
        self.letters = Letters(whole_letters)
        admin = _ShadowAdmin(shadow, ClickHouseTableAdmin(client, shadow.database, shadow.name, settings.policy))
        ports = StreamPorts(self._ledger, admin, topic, self._pending, NoGroup())
        self._coordinator = Coordinator(self._settings, ports)
        self.at: dict[int, int] = {}
        """Partition → the next offset."""

    def begin(
        self,
        at: Mapping[int, int],
        states: Mapping[int, tuple[int, State]] | None = None,
        facts: Sequence[Fact] = (),
    ) -> None:
        """Begin at these offsets, with the states that the stream had there. Raises KafkaError.

        ``facts``: what the fold knows besides, as the stream's ledger would.
        """
        self.at = dict(at)
        if facts:
            self._ledger.claim("facts")
            # The shadow is empty at first.
            self._ledger.record(*(replace(f, top="") if isinstance(f, TableRefilled) else f for f in facts))
            self._ledger.release()
        if states:
            self._seed(states)
        self._coordinator.open()

    def _seed(self, states: Mapping[int, tuple[int, State]]) -> None:
        """Let the ledger know what the stream knew at these offsets; rows are loaded as keys are read now."""
        topic = self._topic.state(self._settings.topic)
        epoch = max(state.epoch for _, state in states.values())
        self._ledger.claim("seed")
        self._ledger.record(TopicFacts(topic.topic_id, len(topic.low), epoch))
        known = [(p, offset, state.filled()) for p, (offset, state) in sorted(states.items()) if offset > 0]
        name, identity = topic.topic, topic.topic_id
        self._ledger.intents([RangeIntent(name, identity, p, offset - 1, offset) for p, offset, _ in known])
        self._ledger.results(
            [FinishedRange(name, identity, p, offset - 1, offset, state=s.to_json()) for p, offset, s in known]
        )
        self._ledger.release()

    def commit(self) -> int:
        """The commit position up to which changes were seen, 0 if versions do not come from positions.

        Of several databases, whose positions do not compare: that of the one which is behind.
        """
        states = [state for _, state in self.states().values() if not state.by_offset]
        reached: dict[str, int] = {}
        for name, source, epoch in [(n, s, state.epoch) for state in states for n, s in state.sources.items()]:
            if source.epoch == epoch:
                reached[name] = max(source.commit, reached.get(name, 0))
        behind = min if any(map(is_one_of_several, reached)) else max
        return behind(reached.values(), default=0)

    @property
    def truncates(self) -> bool:
        """Whether truncates are carried out."""
        return self._settings.policy.changes.truncate == "apply"

    def states(self) -> dict[int, tuple[int, State]]:
        """Partition → the next offset and the state there."""
        return {p: (offset, self._coordinator.state_at(p, offset)) for p, offset in self.at.items()}

    def waiting(self) -> dict[int, list[int]]:
        """Partition → offsets of the records that wait for the values of a row that changed its key."""
        found = {p: [r.offset for r in self._pending.open(self.topic_id, p) if r.swap is None] for p in self.at}
        return {p: offsets for p, offsets in found.items() if offsets}

    @property
    def topic_id(self) -> str:
        """Identity of the topic that is folded."""
        return self._coordinator.topic.topic_id

    def unresolved(self) -> list[DeadLetter]:
        """Changes that lack a value and after which no other one of the same key comes. Raises KafkaError.

        A later change is either applied, which makes the row what the source has, or such a change itself.
        """
        open_: dict[tuple[int, bytes | None], DeadLetter] = {}
        for letter in sorted(self.letters.stored.values(), key=lambda letter: letter.offset):
            if letter.kind == "unresolved":
                open_[letter.partition, letter.key] = letter
        for partition in {p for p, _ in open_}:
            mine = {key: letter.offset for (p, key), letter in open_.items() if p == partition}
            first, end = min(mine.values()) + 1, self.at[partition]
            where = self._settings.name, self._settings.topic, self.topic_id, partition
            task = RangeTask(*where, self._shadow, first, end, self._coordinator.state_at(partition, end))
            for chunk in self._topic.chunks(task, first):
                for key, offset in zip(chunk.records.keys, chunk.records.offsets.tolist(), strict=True):
                    if key is not None and offset > mine.get(key, end):
                        open_.pop((partition, key), None)
        return list(open_.values())

    def close(self) -> None:
        """End the fold."""
        self._coordinator.close()

    def to(self, ends: Mapping[int, int]) -> None:
        """Fold everything below these offsets. Raises ChSinkError, without a next step for a table of this run."""
        goal = {partition: max(end, self.at.get(partition, 0)) for partition, end in ends.items()}
        self.at = {**dict.fromkeys(goal, 0), **self.at}
        total = left = sum(goal[p] - self.at[p] for p in goal)
        while any(self.at[p] < end for p, end in goal.items()):
            held = self._coordinator.waiting_for_others(self.at, goal)
            read = {p: end if p not in held else self.at[p] for p, end in goal.items()}
            reach = plan_ranges(self.at, read, _LIMIT, self._settings.chunk_offsets)
            ranges = [
                OffsetRange(self._settings.topic, self.topic_id, p, self.at[p], end, 0, goal[p])
                for p, end in sorted(reach.items())
                if end > self.at[p]
            ]
            try:
                self._coordinator.run_batch(ranges, lambda tasks: [run_task(task, self._open_task) for task in tasks])
            except StreamFailed as error:
                own = self._shadow.name in str(error.hint)
                raise StreamFailed(error.message, hint=_NOT_BY_TOPIC if own else error.hint) from None
            except DataLoss as error:
                raise DataLoss(error.message, hint=READ_AGAIN) from None
            self.at |= {r.partition: r.end for r in ranges} | self._coordinator.held
            left = sum(max(0, goal[p] - self.at[p]) for p in goal)
            if total > _LIMIT:
                text = f"applying changes: {grouped(total - left)} of {counted(total, 'offset')}"
                self.say(Step(text, 1 - left / total))

    def _open_task(self, task: Task) -> TaskPorts:
        table = task.table
        sink = open_sink(
            StreamName(f"{task.stream}/{self._coordinator.run_id}", task.topic, task.topic_id, task.partition),
            Target.of(table, self._settings.policy),
            lambda before: self._decoder(table, before),
            Ports(AnyKeyLookup(self._client, table), self._handover, self._topic.history(task.partition)),
            Stores(ClickHouseWriter(self._client, table), self.letters, self._pending),
            Attempt(deadline=math.inf),
        )

        def chunks(first: int) -> Iterator[Chunk]:
            assert isinstance(task, RangeTask)
            return self._topic.chunks(task, first)

        return TaskPorts(sink, chunks, self._ledger)


@dataclass(frozen=True, slots=True)
class _Behind:
    """A hand-over of the fold's own, with another one behind it that is only read."""

    own: Handover
    other: Handover

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        """See Handover."""
        found = self.own.get(ids)
        # The fold has not seen a row that was inserted before it began; the stream has.
        older = self.other.get([one for one in ids if found.found.get(one, -1) < 0])
        if not older.rows.num_rows:
            return HandedOver({**older.found, **found.found}, found.rows)
        if not found.rows.num_rows:
            return HandedOver({**found.found, **older.found}, older.rows)
        rows = pa.concat_tables([found.rows, older.rows.select(found.rows.column_names).cast(found.rows.schema)])
        shifted = {one: row if row < 0 else row + found.rows.num_rows for one, row in older.found.items()}
        return HandedOver({**found.found, **shifted}, rows)

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        """See Handover."""
        self.own.put(ids, rows, known, token)


@dataclass(frozen=True, slots=True)
class _ShadowAdmin:
    """The shadow keeps its shape; a truncate is carried out on it as on any table."""

    table: TargetTable
    inner: ClickHouseTableAdmin

    def detect(self) -> TargetTable:
        return self.table

    def carry_out(self, table: TargetTable, columns: object, key: object) -> TargetTable:
        return self.table

    def truncate(
        self, table: TargetTable, version: int, version_column: str | None, supersede: Callable[[], Sequence[Fence]]
    ) -> None:
        self.inner.truncate(table, version, version_column, supersede)

    def highest_version(self, table: TargetTable) -> int:
        return 0

    def has_rows(self, table: TargetTable, *, of_any: bool = False) -> bool:
        """None of which the fold does not know: whoever made the shadow has loaded them."""
        return False

    def fill_rollups(self, table: TargetTable, supersede: object, *, doubtful: bool, last: str = "") -> None:
        """It has none."""

    def keep_rollups(self, table: TargetTable, run: str) -> None:
        """It has none."""
