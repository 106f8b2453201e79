"""One key followed through a topic: the stream's own pipeline, with the rule that decided about each of its events.

Every chunk is planned as the stream plans it (`ch_sink.pipeline.plan`), with a trace that keeps only the followed key's
events. What the plans store is kept in memory, where later lookups find it. Two things are not computed but read from
the sink's own tables (`Noted`): which records became dead letters or wait, and how far the stream has come.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.memory import MemoryHandover
from ch_sink.merge.resolved import factorize
from ch_sink.model.change import NOTHING_LOADED, ChangeBatch, HandoverId, Op, Records
from ch_sink.model.policy import Policy, TopicProfile
from ch_sink.model.values import TopicState
from ch_sink.order import Decision, Sequenced, State, Trace
from ch_sink.order.version import to_int, to_ints
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import BatchDecoder, Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import HandedOver, StoredRows
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.biography import Biography, Event, as_text, by_version, compared_with
from ch_sink.trust.key import WantedKey
from ch_sink.trust.own_tables import Noted
from ch_sink.trust.subject import Subject
from ch_sink.trust.topic import TopicReader
from ch_sink.types import arrow_type
from ch_sink.types.arrow import python_values

Course = tuple[State, Sequence[tuple[int, int]]]
"""The state at a partition's first record, and each offset from which on the epoch was at least so high."""
_OTHER_KEY = ("__debezium.newkey", "__debezium.oldkey")


@dataclass(frozen=True, slots=True)
class Reading:
    """A topic, and how the stream reads it into its table."""

    topic: TopicReader
    name: str
    target: Target
    decoder: BatchDecoder

    @staticmethod
    def of(subject: Subject) -> "Reading":
        """The reading of a subject's stream. Raises TableError."""
        target = Target.of(subject.table, subject.settings.policy)
        # A delete of a row without a key is known by the values that it had.
        decoder = subject.decoder(subject.table, target.wants_before(subject.key))
        return Reading(subject.topic, subject.settings.topic, target, decoder)


def biography(
    reading: Reading,
    wanted: WantedKey,
    noted: Noted = Noted(),  # noqa: B008 (immutable)
    *,
    epoch: int = 0,
    courses: Mapping[int, Course] = MappingProxyType({}),
    found: Biography | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Biography:
    """Read the topic for the events of one key, and run the pipeline over them. Raises ChSinkError.

    Args:
        epoch: the lowest of the stream's versions, in partitions of which ``courses`` says nothing.
        courses: how the stream began each partition, and where its epochs rose otherwise than by its positions.
        found: what is filled, also if the reading ends early.
    """
    topic = reading.topic.state(reading.name)
    life, found = _Life(reading, wanted, noted, topic, say), found or Biography({})
    try:
        for partition in sorted(topic.low):
            began, rises = courses.get(partition, (State(base_epoch=epoch), ()))
            life.read(partition, began, rises)
    finally:
        life.tell(found)
    return found


class _Life:
    """Follows one key through the partitions of a topic."""

    def __init__(
        self, reading: Reading, wanted: WantedKey, noted: Noted, topic: TopicState, say: Callable[[str], None]
    ) -> None:
        self.say = say
        self.reading, self.wanted, self.noted, self.topic = reading, wanted, noted, topic
        self.target = replace(reading.target, policy=_unstoppable(reading.target.policy))
        self.rows = _Rows(self.target)
        self.handover = _Handover()
        self.events: list[Event] = []
        self.bad: list[tuple[bytes | None, Event]] = []
        """Records that cannot be decoded, with their Kafka keys."""
        self.raw_keys: set[bytes] = set()
        self.ids: list[tuple[str, int, int]] = []
        self.floors = State()
        """The truncates of all partitions so far."""
        self.loaded = max((load.loaded for load in noted.loads), default=NOTHING_LOADED)
        # The partition and the chunk in hand:
        self.partition = 0
        self.records: Records
        self.profile: TopicProfile

    def read(self, partition: int, began: State, rises: Sequence[tuple[int, int]]) -> None:
        """Read a partition: the part that the stream has applied as the stream does, the rest for what is to come."""
        low, high, applied = self.topic.low[partition], self.topic.high[partition], self.noted.applied
        end = high if applied is None else min(max(applied.get(partition, 0), low), high)
        self.partition = partition
        ports = Ports(self.rows, self.handover, self.reading.topic.history(partition), self._failed)
        state = replace(began, alone=len(self.topic.low) == 1, loaded=self.loaded)
        starts = [low, *(offset for offset, _ in rises if low < offset < end), end]
        for first, until in pairwise(starts):
            state = state.raised_to(max((e for offset, e in rises if offset <= first), default=0))
            for chunk in self._chunks(first, until):
                state = self._apply(chunk, state, ports)
        for chunk in self._chunks(end, high):
            self._unread(chunk.records, state.profile)

    def tell(self, found: Biography) -> None:
        """Note what the partitions have shown."""
        letters = [event for raw, event in self.bad if raw is not None and raw in self.raw_keys]
        alive = [e for e in self.events if e.rule == "applied"]
        keys = dict.fromkeys(e.key for e in alive)
        stored = self.noted.stored if len(keys) == 1 else None
        others = {e.version for e in self.events}
        ruled = [compared_with(e, self.events) for e in self.events if e.rule != "applied"]
        for key in keys:
            ruled += by_version([e for e in alive if e.key == key], stored, others)
        found.events = sorted([*letters, *ruled], key=lambda e: (e.partition, e.offset))
        found.raw_keys, found.ids = frozenset(self.raw_keys), tuple(self.ids)

    def _chunks(self, first: int, end: int) -> Iterator[Chunk]:
        if first >= end:
            return
        table = self.target.table
        task = RangeTask("explain", self.topic.topic, self.topic.topic_id, self.partition, table, first, end, State())
        for chunk in self.reading.topic.chunks(task, first):
            self.say(f"reading {self.topic.topic}, partition {self.partition}: offset {chunk.first} of {end}")
            if len(chunk.records):
                yield chunk

    def _failed(self, first: int, end: int) -> Collection[int]:
        """Records that were dead letters when they were sent again, as known now."""
        letters = {**self.noted.letters, **self.noted.dropped, **dict.fromkeys(self.noted.outranked, "")}
        return [offset for p, offset in letters if p == self.partition and first <= offset < end]

    def _apply(self, chunk: Chunk, state: State, ports: Ports) -> State:
        """Plan a chunk as the stream does, and keep what it stores of the key."""
        records = chunk.records
        decoder = self.reading.decoder
        while len(records):
            self.profile = decoder.learn(records, state.profile, ports.history)
            end, first, trace = self._end_of_plan(records), len(self.events), Trace(self._follow)
            self.records = records.slice(0, end)
            state = replace(state.with_floors_of(self.floors), profile=self.profile)
            made = plan(self.records, self.target, decoder, state, replace(ports, trace=trace))
            self._store(made)
            state = made.state
            self.events[first:] = [self._decided(event, trace) for event in self.events[first:]]
            if made.barrier is not None and made.barrier.kind == "key_form":
                state = state.rewritten(*made.barrier.key_form)
                end = int(np.searchsorted(records.offsets, made.barrier.next_offset))
            elif made.barrier is not None:
                self.floors = self.floors.with_floor(made.barrier.floor, made.barrier.source)
                self._truncate(made.barrier)
                end = int(np.searchsorted(records.offsets, made.barrier.next_offset))
            records = records.slice(end, len(records))
        return state

    def _end_of_plan(self, records: Records) -> int:
        """The place behind the key's first dead letter: what repeats it is judged as in a later chunk."""
        failed = set(self._failed(int(records.offsets[0]), int(records.offsets[-1]) + 1))
        places = [at for at, offset in enumerate(records.offsets.tolist()) if offset in failed] if failed else []
        mine = self._of_key(records.keys[at] for at in places)
        return next((at + 1 for at in places if records.keys[at] in mine), len(records))

    def _store(self, made: Plan) -> None:
        if made.handover is not None:
            self.handover.put(made.handover.ids, made.handover.rows, made.handover.known, "")
        self.rows.parts += [insert.rows for insert in made.inserts]
        self.raw_keys |= self._of_key(self.records.keys[bad.index] for bad in made.bad)
        for bad in made.bad:
            event = Event(self.partition, int(self.records.offsets[bad.index]), "?", 0, 0, 0, "dead letter")
            event = replace(event, why=f"{bad.kind}: {bad.reason}")
            self.bad.append((self.records.keys[bad.index], self._noted(event) or event))

    def _truncate(self, barrier: Barrier) -> None:
        """Remove what a truncate deletes, rows of partitions that were read before included."""
        self.rows.truncate(barrier.version)
        why = f"below the truncate at offset {barrier.next_offset - 1} of partition {self.partition}"
        for at, event in enumerate(self.events):
            if event.rule == "applied" and event.version < barrier.version:
                self.events[at] = replace(event, rule="floor", why=why)

    def _follow(self, batch: ChangeBatch, order: Sequenced) -> None:
        """Note the key's events, and leave all others out."""
        mine = self._matching(batch)
        versions = to_ints(order.version)
        for i in np.flatnonzero(mine).tolist():
            event = self._event(batch, i, to_int(order.commit, i), int(order.epoch[i]), versions[i])
            event = self._noted(event) or event
            self.events.append(event)
            mine[i] = not event.rule
        order.keep &= mine

    def _event(self, batch: ChangeBatch, i: int, position: int, epoch: int, version: int) -> Event:
        raw = self.records.keys[int(batch.source_index[i])]
        if raw is not None:
            self.raw_keys.add(raw)
        if batch.half[i]:
            name = batch.source_name[int(batch.source_code[i])]
            self.ids.append((name, to_int(batch.commit, i), to_int(batch.inner, i)))
        return Event(
            self.partition,
            int(batch.offset[i]),
            chr(int(batch.op[i])),
            position,
            epoch,
            version,
            half=int(batch.half[i]),
            kept=tuple(sorted(name for name, mask in batch.unavailable.items() if mask[i])),
            key=""
            if batch.key is None
            else repr([python_values(column.slice(i, 1))[0] for column in batch.key.columns]),
            other_key=self._other_key(int(batch.source_index[i])) if batch.half[i] else "",
        )

    def _other_key(self, place: int) -> str:
        """The other key of a half of a key change, as its header states it."""
        headers = self.records.headers[place] if self.records.headers is not None else None
        for name, value in headers or ():
            if name in _OTHER_KEY and value is not None:
                [found] = self.reading.decoder.key_values([value], self.profile)
                if found is None:
                    return value.decode("utf-8", "replace")
                names = [self.target.policy.columns.target(column) for column in self.profile.key_columns]
                return as_text(dict(zip(names, found, strict=True)))
        return ""

    def _unread(self, records: Records, profile: TopicProfile) -> None:
        """The key's events that the stream has not come to."""
        self.records = records
        self.profile = self.reading.decoder.learn(records, profile, self.reading.topic.history(self.partition))
        batch = self.reading.decoder.decode(records, self.profile)
        unknown = {column.first_offset: column.name for column in batch.unknown}
        for i in np.flatnonzero(self._matching(batch)).tolist():
            event = self._event(batch, i, to_int(batch.commit, i), 0, 0)
            why = "not applied yet"
            if event.offset in unknown:
                why = f"the table lacks its column {unknown[event.offset]!r}, or has it too narrow"
            self.events.append(replace(event, rule="not read yet", why=why))
        self.raw_keys |= self._of_key(records.keys[bad.index] for bad in batch.bad)
        for bad in batch.bad:
            offset = int(records.offsets[bad.index])
            event = Event(self.partition, offset, "?", 0, 0, 0, "not read yet", f"{bad.kind}: {bad.reason}")
            self.bad.append((records.keys[bad.index], event))

    def _noted(self, event: Event) -> Event | None:
        """The event as the sink's own tables and the ledger explain it; None if they say nothing."""
        place, noted = (event.partition, event.offset), self.noted
        if place in noted.erased:
            return replace(event, rule="erased", why="`ch_sink purge --key` has removed the row")
        if any(event.partition == load.partition and event.offset < load.offset for load in noted.loads):
            why = "the table was filled from the source since, which showed the change"
            return replace(event, rule="loaded", why=why)
        if place in noted.waiting:
            return replace(event, rule="waiting", why="for the row under its old key, or behind a change that does")
        if event.version in (noted.stored or ()):
            return None  # a repair or a resync may have stored the row of a dead letter
        if place in noted.letters:
            return replace(event, rule="dead letter", why=noted.letters[place])
        if place in noted.dropped:
            return replace(event, rule="dead letter", why=f"{noted.dropped[place]}; it was dropped")
        return None

    def _decided(self, event: Event, trace: Trace) -> Event:
        """The event with the rule that order or merge noted."""
        if event.rule:
            return event
        made = trace.decisions.get(event.offset, Decision("applied"))
        event = replace(event, rule=made.rule, why=made.why)
        if made.offset >= 0 or made.version >= 0:
            other = Event(event.partition, made.offset, "", 0, 0, made.version)
            event = replace(event, against=other)
        return event

    def _matching(self, batch: ChangeBatch) -> npt.NDArray[np.bool_]:
        """A mask of the events of the wanted key; without keys, of those that have its values before or after."""
        rows = np.array(batch.op != Op.TRUNCATE, dtype=np.bool_)
        if batch.key is not None:
            return np.logical_and(self.wanted.within(batch.key), rows)
        found = np.logical_and(self.wanted.within(batch.after), batch.op != Op.DELETE)
        if batch.before is not None:
            found = np.logical_or(found, np.logical_and(self.wanted.within(batch.before), batch.has_before))
        return np.asarray(np.logical_and(found, rows), dtype=np.bool_)

    def _of_key(self, keys: Iterable[bytes | None]) -> set[bytes]:
        """Those Kafka keys, of records that may be unreadable, which are of the wanted key."""
        raws = sorted({raw for raw in keys if raw})
        values = self.reading.decoder.key_values(raws, self.profile)
        known = [(raw, row) for raw, row in zip(raws, values, strict=True) if row is not None]
        table = self.target.table
        names = [self.target.policy.columns.target(name) for name in self.profile.key_columns]
        types = {column.name: column.type for column in table.columns}
        if not known or not set(self.wanted.columns) <= {*names, *dict(table.added)}:
            return set()
        columns = zip(names, zip(*(row for _, row in known), strict=True), strict=True)
        rows = pa.table({name: pa.array(values, arrow_type(types[name])) for name, values in columns})
        for name, value in table.added:
            rows = rows.append_column(name, pa.array([value.as_py()] * len(known), value.type))
        return {raw for (raw, _), found in zip(known, self.wanted.within(rows), strict=True) if found}


class _Rows:
    """Rows of the key that the plans would have stored: a lookup in the table finds the same (`RowLookup`)."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.parts: list[pa.Table] = []

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        """See RowLookup."""
        rows = self._all()
        if not rows.num_rows:
            return StoredRows(rows if self.parts else keys.slice(0, 0))
        names, asked = keys.column_names, keys.num_rows
        codes = factorize(pa.concat_tables([keys, rows.select(names).cast(keys.schema)])).codes
        wanted = {code: place for place, code in enumerate(codes[:asked].tolist())}
        limits = to_ints(self.target.layout.from_arrow(below)) if below is not None else None
        versions = self._versions(rows)
        chosen: dict[int, int] = {}
        alive: list[int] = []
        for at, code in enumerate(codes[asked:].tolist()):
            if code not in wanted or (limits is not None and versions[at] >= limits[wanted[code]]):
                continue
            alive.append(at)
            if code not in chosen or versions[at] >= versions[chosen[code]]:
                chosen[code] = at
        if self.target.collapsing:
            return StoredRows(self._uncancelled(rows.take(pa.array(alive, pa.int64()))))
        return StoredRows(rows.take(pa.array(sorted(chosen.values()), pa.int64())))

    def truncate(self, version: int) -> None:
        """Remove the rows below a version, all of them where rows have none."""
        versions = self._versions(self._all()) if self.parts and self.target.system.version else []
        stay = [at for at, own in enumerate(versions) if own >= version]
        self.parts = [self._all().take(pa.array(stay))] if stay else []

    def _all(self) -> pa.Table:
        return pa.concat_tables(self.parts) if self.parts else pa.table({})

    def _versions(self, rows: pa.Table) -> list[int]:
        name = self.target.system.version
        if name is None:
            return list(range(rows.num_rows))
        return to_ints(self.target.layout.from_arrow(rows.column(name)))

    def _uncancelled(self, rows: pa.Table) -> pa.Table:
        """The rows whose signs sum to more than zero, that often."""
        sign = self.target.system.sign or "_sign"
        codes = factorize(rows.drop_columns([sign])).codes
        sums = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(sums, codes, np.asarray(rows.column(sign)).astype(np.int64))
        first = np.unique(codes, return_index=True)[1]
        return rows.take(pa.array(np.repeat(first, np.maximum(sums[codes[first]], 0))))


class _Handover(MemoryHandover):
    """The hand-overs of the followed key; of any other key the values count as handed over, and are not read."""

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        """See Handover."""
        found = super().get(ids)
        others = {one: -1 for one in ids if one not in found.found and one.inner_high != (1 << 64) - 1}
        return HandedOver(found.found | others, found.rows)


def _unstoppable(policy: Policy) -> Policy:
    """The stream's choices, except that nothing stops the reading of what has not stopped the stream."""
    changes = replace(
        policy.changes,
        evolve="ignore",
        on_bad_record="dead_letter",
        on_unresolved="null",
        deletes="ignore",
        truncate="apply" if policy.changes.truncate == "apply" else "ignore",
    )
    return replace(policy, changes=changes)
