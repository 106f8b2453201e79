"""The biography of one row: every event of its key, and the rule that decided about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.change import ChangeBatch, Half, Op, Records
from ch_sink.model.floor import Floor
from ch_sink.order import Sequenced, State
from ch_sink.order.version import to_int, to_ints
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.inputs import BatchDecoder
from ch_sink.pipeline.ordering import Orderer
from ch_sink.pipeline.target import Target
from ch_sink.sources import source_for
from ch_sink.stream.tasks import RangeTask
from ch_sink.table.model import TargetTable
from ch_sink.trust.topic import TopicReader
from ch_sink.types.sql import literal, quote

__all__ = ["Biography", "Event", "biography", "stored_rows"]

_SETTINGS: dict[str, str | int] = {"output_format_json_quote_decimals": 1, "output_format_json_quote_64bit_integers": 0}


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the key."""

    partition: int
    offset: int
    op: str
    position: int
    """Commit position, or Kafka offset if those order the stream."""
    epoch: int
    version: int
    rule: str
    """newer, superseded, re-delivered, floor, handed over, dead letter."""
    why: str
    half: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "op": self.op,
            "position": self.position,
            "epoch": self.epoch,
            "version": str(self.version),
            "rule": self.rule,
            "why": self.why,
        }


@dataclass(slots=True)
class Biography:
    """All events of a key, in the order in which the stream met them, partition by partition."""

    key: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    stored: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table, superseded and deleted ones included."""

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "events": [event.as_json() for event in self.events], "stored": self.stored}


@dataclass(slots=True)
class _Seen:
    """What the partitions have shown so far."""

    wanted: dict[str, str]
    events: list[Event] = field(default_factory=list)
    raw_keys: set[bytes] = field(default_factory=set)
    truncates: list[tuple[int, int, int]] = field(default_factory=list)
    """Version, partition and offset of each that was applied."""


def biography(
    topic: TopicReader, name: str, target: Target, decoder: BatchDecoder, key: Mapping[str, Any], epoch: int = 0
) -> Biography:
    """Read the topic and judge the events of one key. ``epoch``: the lowest of the stream's versions.

    Raises ChSinkError.
    """
    state_now = topic.state(name)
    seen = _Seen({column: _text(value) for column, value in key.items()})
    for partition, low in sorted(state_now.low.items()):
        high = state_now.high[partition]
        task = RangeTask("explain", name, state_now.topic_id, partition, target.table, low, high, State())
        state = replace(State(), alone=len(state_now.low) == 1).raised_to(epoch)
        for chunk in _nonempty(topic.chunks(task, low)):
            state = _read(chunk.records, partition, target, decoder, state, seen, topic)
    return Biography(dict(key), _judged(seen))


def stored_rows(client: Client, table: TargetTable, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the key as they are in the table, oldest version first."""
    types = {column.name: column.type for column in table.columns}
    unknown = [name for name in key if name not in types]
    if unknown or not key:
        raise StreamFailed(
            f"{table.qualified} has no key column {unknown[0]!r}" if unknown else "the key names no column",
            hint="Write the key as JSON, e.g. '{\"id\": 7}'.",
        )
    where = " AND ".join(
        f"{quote(name)} IS NULL"
        if value is None
        else f"{quote(name)} = CAST({literal(_text(value))}, {literal(types[name])})"
        for name, value in key.items()
    )
    shown = ", ".join(f"toString({quote(column.name)}) AS {quote(column.name)}" for column in table.columns)
    return client.rows(f"SELECT {shown} FROM (SELECT * FROM {table.qualified} WHERE {where})", settings=_SETTINGS)


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
) -> State:
    history = topic.history(partition)
    profile = decoder.learn(records, state.profile, history)
    batch = decoder.decode(records, profile)
    source = source_for(batch.connector) if batch.connector else None
    orderer = Orderer(records, target, source, history, lambda earlier: decoder.decode(earlier, profile))
    order = orderer.whole(batch, state)
    mine = _matching(batch, seen.wanted)
    versions = to_ints(order.version)
    for i in np.flatnonzero(mine).tolist():
        raw = records.keys[int(batch.source_index[i])]
        if raw is not None:
            seen.raw_keys.add(raw)
        seen.events.append(_event(batch, order, partition, i, versions[i]))
    floor = state.floor
    for i in np.flatnonzero(batch.op == Op.TRUNCATE).tolist():
        if order.keep[i] and target.policy.changes.truncate == "apply":
            seen.truncates.append((versions[i], partition, int(batch.offset[i])))
            floor = max(floor, Floor(int(order.epoch[i]), to_int(order.commit, i), to_int(batch.inner, i)))
    for bad in batch.bad:
        if records.keys[bad.index] in seen.raw_keys:
            offset = int(records.offsets[bad.index])
            why = f"{bad.kind}: {bad.reason}"
            seen.events.append(Event(partition, offset, "?", 0, 0, 0, "dead letter", why))
    return replace(order.state, profile=profile.after(batch)).with_floor(floor)


def _event(batch: ChangeBatch, order: Sequenced, partition: int, i: int, version: int) -> Event:
    return Event(
        partition,
        int(batch.offset[i]),
        chr(int(batch.op[i])),
        to_int(order.commit, i),
        int(order.epoch[i]),
        version,
        "" if order.keep[i] else "re-delivered",
        "" if order.keep[i] else "an identical record is at an earlier offset",
        int(batch.half[i]),
    )


def _judged(seen: _Seen) -> list[Event]:
    """The events with their rules."""
    floor = max(seen.truncates, default=(0, 0, 0))
    alive = [e for e in seen.events if not e.rule and e.version >= floor[0]]
    newest = max(alive, key=lambda e: e.version, default=None)
    out = []
    for event in sorted(seen.events, key=lambda e: (e.partition, e.offset)):
        if event.rule == "re-delivered" and event.version < floor[0]:
            out.append(replace(event, rule="floor", why=_truncated(floor)))
        elif event.rule:
            out.append(event)
        elif event.version < floor[0]:
            out.append(replace(event, rule="floor", why=_truncated(floor)))
        elif event.half == Half.DELETE:
            out.append(replace(event, rule="handed over", why="the row went on under another key"))
        elif newest is not None and event is newest:
            out.append(replace(event, rule="newer", why=_newest(event)))
        else:
            above = f"offset {newest.offset} of partition {newest.partition} has a higher version" if newest else ""
            out.append(replace(event, rule="superseded", why=above))
    return out


def _newest(event: Event) -> str:
    if event.op == "d":
        return "the highest version: the row is deleted"
    came = "; its missing values came from the row's old key" if event.half == Half.CREATE else ""
    return "the highest version: this is the row" + came


def _truncated(floor: tuple[int, int, int]) -> str:
    return f"below the truncate at offset {floor[2]} of partition {floor[1]}"


def _matching(batch: ChangeBatch, wanted: Mapping[str, str]) -> Any:
    rows = batch.key if batch.key is not None else batch.after
    lacking = [name for name in wanted if name not in rows.column_names]
    if lacking and len(batch):
        raise StreamFailed(
            f"the events have no key column {lacking[0]!r}", hint=f"Their key is ({', '.join(rows.column_names)})."
        )
    found = np.ones(len(batch), dtype=np.bool_)
    for name, value in wanted.items():
        found &= np.array([_text(v) == value for v in _listed(rows, name)], dtype=np.bool_)
    return found


def _listed(rows: Any, name: str) -> Sequence[Any]:
    values: list[Any] = rows.column(name).to_pylist()
    return values


def _text(value: Any) -> str:
    """A key's value as text, the same for what JSON writes and what a column holds."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return "NULL" if value is None else str(value)
