"""The biography of one row: every event of its key, and the rule that decided about it."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.merge import version_column
from ch_sink.model.change import NOTHING_LOADED, ChangeBatch, Floor, Loaded, Op, Records
from ch_sink.model.policy import TopicProfile
from ch_sink.order import Sequenced, State
from ch_sink.order.sequence import drop_loaded, ordered
from ch_sink.order.version import to_int, to_ints
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.inputs import BatchDecoder
from ch_sink.pipeline.ordering import Orderer
from ch_sink.pipeline.target import Target
from ch_sink.sources import source_for
from ch_sink.stream.tasks import RangeTask
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.judge import Event, Noted, Truncate, judged
from ch_sink.trust.key import WantedKey
from ch_sink.trust.repaired_versions import counts
from ch_sink.trust.topic import TopicReader
from ch_sink.types import arrow_type
from ch_sink.types.sql import OWN, quote

__all__ = ["Biography", "Course", "biography", "stored_rows", "stored_versions"]

Course = tuple[State, Sequence[tuple[int, int]]]
"""The state at a partition's first record, and each offset from which on the epoch was at least so high."""
_SETTINGS: dict[str, str | int] = {
    **EVERY_TYPE,
    "output_format_json_quote_decimals": 1,
    "output_format_json_quote_64bit_integers": 0,
}


@dataclass(slots=True)
class Biography:
    """All events of a key, by partition and offset."""

    key: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    stored: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table, superseded and deleted ones included."""
    raw_keys: frozenset[bytes] = frozenset()
    """The Kafka keys of these events."""
    ids: tuple[tuple[str, int, int], ...] = ()
    """Source name, commit position and inner position of each half of a key change."""

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "events": [event.as_json() for event in self.events], "stored": self.stored}


@dataclass(slots=True)
class _Seen:
    """What the partitions have shown so far."""

    wanted: WantedKey
    stored: Set[int] = frozenset()
    """Versions of the rows that the table has of the key."""
    events: list[Event] = field(default_factory=list)
    raw_keys: set[bytes] = field(default_factory=set)
    bad: list[tuple[bytes | None, Event]] = field(default_factory=list)
    """Records that cannot be decoded, with their Kafka keys."""
    truncates: list[Truncate] = field(default_factory=list)
    ids: list[tuple[str, int, int]] = field(default_factory=list)
    keyed: bool = True


def biography(
    topic: TopicReader,
    name: str,
    target: Target,
    decoder: BatchDecoder,
    key: dict[str, Any],
    wanted: WantedKey,
    *,
    epoch: int = 0,
    course: Mapping[int, Course] = MappingProxyType({}),
    noted: Noted = Noted(),  # noqa: B008 (immutable)
) -> Biography:
    """Read the topic and judge the events of one key. Raises ChSinkError.

    Args:
        epoch: the lowest of the stream's versions, in partitions of which ``course`` says nothing.
        course: how the stream began each partition, and where its epochs rose otherwise than by its positions.
    """
    state_now = topic.state(name)
    seen = _Seen(wanted, stored=noted.stored or frozenset())
    loaded = max((load.loaded for load in noted.loads), default=NOTHING_LOADED)
    for partition, low in sorted(state_now.low.items()):
        high = state_now.high[partition]
        began, rises = course.get(partition, (State(base_epoch=epoch), ()))
        state = replace(began, alone=len(state_now.low) == 1)
        starts = [low, *(offset for offset, _ in rises if low < offset < high), high]
        for first, end in pairwise(starts):
            state = state.raised_to(max((e for offset, e in rises if offset <= first), default=0))
            task = RangeTask("explain", name, state_now.topic_id, partition, target.table, first, end, State())
            for chunk in _nonempty(topic.chunks(task, first)):
                state = _read(chunk.records, partition, target, decoder, state, seen, topic, loaded)
    mine = [event for raw, event in seen.bad if raw is not None and raw in seen.raw_keys]
    engine = target.table.engine
    marks = engine.is_deleted_column or engine.sign_column or engine.family is Family.MERGE_TREE
    forgets = target.policy.changes.deletes == "ignore" and not marks
    events = judged([*seen.events, *mine], seen.truncates, noted, keyed=seen.keyed, forgets_deletes=forgets)
    return Biography(key, events, raw_keys=frozenset(seen.raw_keys), ids=tuple(seen.ids))


def stored_rows(client: Client, table: TargetTable, wanted: WantedKey) -> list[dict[str, Any]]:
    """The rows of the key as they are in the table, oldest version first."""
    names = [quote(column.name) for column in table.columns if column.default_kind != "EPHEMERAL"]
    shown = ", ".join(f"toString({name}) AS {name}" for name in names)
    return client.rows(
        f"SELECT {shown} FROM (SELECT * FROM {table.qualified} WHERE {wanted.condition})",
        settings=_SETTINGS,
        of=table,
    )


def stored_versions(client: Client, table: TargetTable, condition: str) -> frozenset[int] | None:
    """Versions of the rows that meet a condition, without those that collapse; None if versions are no numbers."""
    name, engine = version_column(table), table.engine
    if name is None or not counts(table):
        return None
    collapses = engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)
    having = f"HAVING sum({quote(engine.sign_column or '')}) > 0" if collapses else ""
    found = client.rows(
        f"SELECT toString({quote(name)}) AS {OWN}v FROM {table.qualified} WHERE {condition} "
        f"GROUP BY {quote(name)} {having}",
        settings=_SETTINGS,
        of=table,
    )
    return frozenset(int(row[f"{OWN}v"]) for row in found)


def _nonempty(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    return (chunk for chunk in chunks if len(chunk.records))


def _read(
    records: Records,
    partition: int,
    target: Target,
    decoder: BatchDecoder,
    state: State,
    seen: _Seen,
    topic: TopicReader,
    loaded: Loaded,
) -> State:
    history = topic.history(partition)
    profile = decoder.learn(records, state.profile, history)
    batch = decoder.decode(records, profile)
    source = source_for(batch.connector) if batch.connector else None
    orderer = Orderer(records, target, source, history, lambda earlier: decoder.decode(earlier, profile))
    order = orderer.whole(batch, state)
    applied = order.keep.copy()
    drop_loaded(batch, order, loaded, inner_is_log=source is not None and source.inner_is_log)
    shown, order.keep = applied & ~order.keep, applied
    versions = to_ints(order.version)
    # Of repeats, if they were applied after all: those of a dead letter that was open then.
    late = to_ints(ordered(batch, order.epoch, batch.commit, state, target.layout, target.policy.versions).version)
    unknown = {column.first_offset: column.name for column in batch.unknown}
    for i in np.flatnonzero(_matching(batch, seen)).tolist():
        raw = records.keys[int(batch.source_index[i])]
        if raw is not None:
            seen.raw_keys.add(raw)
        event = _event(batch, order, partition, i, versions[i], unknown)
        if batch.key is not None:
            event = replace(event, key=repr([column[i].as_py() for column in batch.key.columns]))
        if not order.keep[i] and late[i] in seen.stored:
            event = replace(event, version=late[i], position=to_int(batch.commit, i), rule="", why="")
        if shown[i]:
            event = replace(event, rule="loaded", why="it came behind rows of the source that showed it")
        seen.events.append(event)
        if batch.half[i]:
            name = batch.source_name[int(batch.source_code[i])]
            seen.ids.append((name, to_int(batch.commit, i), to_int(batch.inner, i)))
    floor = state.floor
    for i in np.flatnonzero(batch.op == Op.TRUNCATE).tolist():
        if order.keep[i] and target.policy.changes.truncate == "apply":
            seen.truncates.append(Truncate(versions[i], partition, int(batch.offset[i])))
            floor = max(floor, Floor(int(order.epoch[i]), to_int(order.commit, i), to_int(batch.inner, i)))
    seen.raw_keys |= _unreadable(batch, records, target, decoder, profile, seen.wanted)
    for bad in batch.bad:
        why = f"{bad.kind}: {bad.reason}"
        event = Event(partition, int(records.offsets[bad.index]), "?", 0, 0, 0, "dead letter", why)
        seen.bad.append((records.keys[bad.index], event))
    return replace(order.state, profile=profile.after(batch)).with_floor(floor)


def _unreadable(
    batch: ChangeBatch,
    records: Records,
    target: Target,
    decoder: BatchDecoder,
    profile: TopicProfile,
    wanted: WantedKey,
) -> set[bytes]:
    """Those Kafka keys of records that cannot be read which are of the wanted key."""
    raws = sorted({raw for bad in batch.bad if (raw := records.keys[bad.index])})
    known = [(raw, row) for raw, row in zip(raws, decoder.key_values(raws, profile), strict=True) if row is not None]
    names = [target.policy.columns.target(name) for name in profile.key_columns]
    types = {column.name: column.type for column in target.table.columns}
    if not known or not set(wanted.columns) <= {*names, *dict(target.table.added)}:
        return set()
    columns = zip(names, zip(*(row for _, row in known), strict=True), strict=True)
    rows = pa.table({name: pa.array(values, arrow_type(types[name])) for name, values in columns})
    for name, value in target.table.added:
        rows = rows.append_column(name, pa.array([value.as_py()] * len(known), value.type))
    return {raw for (raw, _), found in zip(known, wanted.within(rows), strict=True) if found}


def _event(
    batch: ChangeBatch, order: Sequenced, partition: int, i: int, version: int, unknown: dict[int, str]
) -> Event:
    offset = int(batch.offset[i])
    why = f"the table lacks its column {unknown[offset]!r}, or has it too narrow" if offset in unknown else ""
    return Event(
        partition,
        offset,
        chr(int(batch.op[i])),
        to_int(order.commit, i),
        int(order.epoch[i]),
        version,
        "" if order.keep[i] else "re-delivered",
        why if order.keep[i] else "an identical record is at an earlier offset",
        int(batch.half[i]),
        tuple(sorted(name for name, mask in batch.unavailable.items() if mask[i])),
    )


def _matching(batch: ChangeBatch, seen: _Seen) -> npt.NDArray[np.bool_]:
    """Which events are of the wanted key; without keys, which have its values before or after."""
    rows = np.array(batch.op != Op.TRUNCATE, dtype=np.bool_)
    if batch.key is not None:
        return np.logical_and(seen.wanted.within(batch.key), rows)
    seen.keyed = seen.keyed and not len(batch)
    found = np.logical_and(seen.wanted.within(batch.after), batch.op != Op.DELETE)
    if batch.before is not None:
        found = np.logical_or(found, np.logical_and(seen.wanted.within(batch.before), batch.has_before))
    return np.asarray(np.logical_and(found, rows), dtype=np.bool_)
