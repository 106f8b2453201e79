"""The data of the core: records from Kafka, and the change events decoded from them.

Everything from decode to merge works on these structures and on nothing else: no clock, no network.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.values import Values, taken

Headers = list[tuple[str, bytes | None]]
ReadAs = dict[str, tuple[str, ...]]
"""Key column → as what its values were read: ``plain``, as they look, or the types that were stated, in order."""


def both_readings(one: ReadAs, other: ReadAs) -> ReadAs:
    """The readings of either."""
    found = {name: tuple(sorted({*one.get(name, ()), *ways})) for name, ways in other.items()}
    return {**one, **found}


class Op(IntEnum):
    """Operation of a change event, as the ordinal of its letter in the envelope."""

    CREATE = ord("c")
    READ = ord("r")
    UPDATE = ord("u")
    DELETE = ord("d")
    TRUNCATE = ord("t")


class Half(IntEnum):
    """The half of a primary-key change that an event is, by its Debezium header."""

    NONE = 0
    DELETE = 1
    """``d`` of the old key, header ``__debezium.newkey``."""
    CREATE = 2
    """``c`` of the new key, header ``__debezium.oldkey``."""


class Skipped(StrEnum):
    """Kinds of record that change no row: skipped and counted, never an error."""

    TOMBSTONE = "tombstone"
    HEARTBEAT = "heartbeat"
    TRANSACTION = "transaction"
    MESSAGE = "message"
    SCHEMA_CHANGE = "schema_change"
    WATERMARK = "watermark"
    NOTIFICATION = "notification"


SkippedPlaces = dict[Skipped, list[int]]
"""Kind → places of the records of that kind."""


@dataclass(slots=True)
class Records:
    """The records of one topic-partition, in offset order.

    Keys and values are objects of bytes because both the consumer hands them over and the decoders take them so;
    offsets need not be contiguous. All sequences have the same length. ``headers`` may be
    None (no record has any), and so may each entry of it.
    """

    topic: str
    partition: int
    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    """Kafka's record time in milliseconds since 1970, -1 if there is none."""
    keys: list[bytes | None]
    values: Values
    headers: list[Headers | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def without_content(self) -> "Records":
        """The offsets and times alone; keys and values are null."""
        nothing: list[bytes | None] = [None] * len(self)
        return Records(self.topic, self.partition, self.offsets, self.timestamps, nothing, nothing)

    def slice(self, start: int, end: int) -> "Records":
        """The records at the places [start, end)."""
        part = slice(start, end)
        return Records(
            self.topic,
            self.partition,
            self.offsets[part],
            self.timestamps[part],
            self.keys[part],
            self.values[part],
            None if self.headers is None else self.headers[part],
        )

    def take(self, index: "list[int] | npt.NDArray[np.int64]") -> "Records":
        """The records at these places, in that order."""
        places = np.asarray(index, dtype=np.int64)
        return Records(
            self.topic,
            self.partition,
            self.offsets[places],
            self.timestamps[places],
            [self.keys[i] for i in places.tolist()],
            taken(self.values, places.tolist()),
            None if self.headers is None else [self.headers[i] for i in places.tolist()],
        )


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be applied: its place in the chunk's Records, and why."""

    index: int
    reason: str
    kind: str = "decode"
    """Kind of failure, for counting: decode, position, unresolved, range, …"""
    column: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownColumn:
    """A field of the row image that the target table lacks, or has with an older type."""

    name: str
    first_offset: int
    clickhouse_type: str | None
    """The column type that it would get. None if it is not known (a schemaless field that was null so far), or if
    the column is there and cannot be changed."""
    default: str | None = None
    """SQL text of the source's default, where the schema carries one."""
    comment: str = ""
    """The source's type as the column's comment states it, if known."""
    after: str | None = None
    """The field before it in the row image; empty if it is the first, None if that is not known."""
    change: Literal["add", "widen", "refine", "narrow", "null", "type", "reserved"] = "add"
    """``reserved``: the sink fills the table's column of this name itself.

    ``refine``: like ``widen``, but until then the column would round values, as no value of them is out of its range.
    ``type``: the column is not for the source's present type, and no wider one is.
    ``narrow``: nothing but `narrow`.

    ``widen``, ``null``: the table has the column, noted for an older type of the source; the present one is
    wider, or can be null."""
    inferred: bool = False
    """``comment`` is a guess from values, and is never written to the table."""
    filled: bool = False
    """Whether it is known what rows have in it that were at the source before: ``default``, or NULL without one."""

    doubtful: bool = False
    """The connector also states ``default`` where the source has a function, such as nextval()."""
    narrow: bool = False
    """The source may have changed former values without an event. Only reported of tables that only grow."""
    default_text: str | None = None
    """``default`` as a column of text holds it."""

    @property
    def retyped(self) -> bool:
        """Whether the column would store other values than the source's. This stops every stream."""
        return self.change in ("type", "refine")


@dataclass(frozen=True, slots=True)
class Updates:
    """A column's values in events that state only which parts of the value changed (in a document)."""

    base: str
    """The column that the new value is made from: this one as it was before the event, or, where it is another one,
    that one as it is after the event."""
    changes: dict[int, Callable[[Any], pa.Array]]
    """Event → function from the base's value, as Python has it, to an array of the one new value. Raises DecodeError
    where it cannot be made."""
    otherwise: dict[int, Callable[[Any], pa.Array]] = field(default_factory=dict)
    """The same from this column's value before the event, where the base has none (null or empty)."""


@dataclass(slots=True)
class ChangeBatch:
    """The change events of one chunk, in Kafka order, as columns of equal length *n*.

    Records that change no row are not in it; ``skipped`` says where they are. Truncates are rows of it, with null
    key and images. ``source_index`` is each event's index in the chunk's Records.
    """

    source_index: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    op: npt.NDArray[np.uint8]
    commit: npt.NDArray[np.uint64]
    """Shape (n, 2): high (16 bits used) and low word of the commit position *as the event states it*; if it states
    none, the least it can be (``ch_sink.sources.Positions``)."""
    inner: npt.NDArray[np.uint64]
    """Shape (n, 2): place of the single change inside its transaction (lsn; pos and row; change_lsn and serial)."""
    has_commit: npt.NDArray[np.bool_]
    """False if the event states no commit position (null first element of PostgreSQL's ``sequence``)."""
    source_ts: npt.NDArray[np.int64]
    """Source time in milliseconds since 1970 (``source.ts_ms``), 0 if absent."""
    source_name: list[str]
    """Distinct logical connector names (``source.name``) of the batch …"""
    source_code: npt.NDArray[np.int16]
    """… and each event's index into them."""
    half: npt.NDArray[np.uint8]
    key: pa.Table | None
    """Key columns typed as the target's columns, named as them; None for a topic without keys."""
    after: pa.Table
    """Row after the change: all insertable source columns of the target, null rows if there is none."""
    before: pa.Table | None
    """Row before the change, same columns, null rows if there is none; None if it was not asked for."""
    has_before: npt.NDArray[np.bool_]
    """True if ``before`` is present (its columns outside the key may still be fillers)."""
    unavailable: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Column → mask of the events whose ``after`` value is the unavailable-value placeholder (null there).
    Columns without a single such event are absent."""
    absent: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Column → mask of the events whose ``after`` lacks the field altogether (null there)."""
    absent_before: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """The same of ``before``, if the records' schema declares it."""
    updates: dict[str, Updates] = field(default_factory=dict)
    """Column → events whose ``after`` value is computed from an earlier one; they are ``unavailable`` too."""
    skipped: SkippedPlaces = field(default_factory=dict)
    """Kind → places (in the chunk's Records) of the records of that kind, which change no row."""
    bad: list[BadRecord] = field(default_factory=list)
    unknown: list[UnknownColumn] = field(default_factory=list)
    key_read_as: ReadAs = field(default_factory=dict)
    """As what the key columns are read from Kafka keys, where their values depend on that."""
    tables: frozenset[str] = frozenset()
    """Whole names of the source tables that the events state."""
    connector: str = ""
    """``source.connector`` of the batch's events (mysql, postgresql, …), of the first if they differ; empty when
    there are none."""
    null_deletes: npt.NDArray[np.bool_] | None = None
    """Whether a null value after the event deletes its key's row, as the event's form says; None: nowhere."""
    clamped: Counter[str] = field(default_factory=Counter)
    """Column → values that ``out_of_range: clamp | null`` changed."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def skipped_counts(self) -> Counter[Skipped]:
        """Number of records by kind, for the kinds that change no row."""
        return Counter({kind: len(places) for kind, places in self.skipped.items()})


Masks = dict[str, npt.NDArray[np.bool_]]
_BY_EVENT = tuple("source_index offset op commit inner has_commit source_ts source_code half has_before".split())
"""Fields of a batch that are arrays of one entry, or one row, for each event."""


def head(batch: ChangeBatch, place: int, offset: int) -> ChangeBatch:
    """The batch of the records before this offset, events and all others; ``place``: how many records these are.

    ``clamped`` stays that of the whole batch: its values are counted by column, not by record.
    """
    cut = event_range(batch, 0, int(np.searchsorted(batch.source_index, place)))
    skipped = {kind: [at for at in places if at < place] for kind, places in batch.skipped.items()}
    cut.skipped = {kind: places for kind, places in skipped.items() if places}
    cut.bad = [bad for bad in batch.bad if bad.index < place]
    cut.unknown = [column for column in batch.unknown if column.first_offset < offset]
    return cut


def event_range(batch: ChangeBatch, start: int, end: int) -> ChangeBatch:
    """The events [start, end) of a batch. Columns are views; what concerns records stays that of the whole."""
    if (start, end) == (0, len(batch)):
        return replace(batch)
    part = slice(start, end)
    return replace(
        batch,
        **{name: getattr(batch, name)[part] for name in _BY_EVENT},
        key=None if batch.key is None else batch.key.slice(start, end - start),
        after=batch.after.slice(start, end - start),
        before=None if batch.before is None else batch.before.slice(start, end - start),
        unavailable=_masks(batch.unavailable, part),
        absent=_masks(batch.absent, part),
        absent_before=_masks(batch.absent_before, part),
        null_deletes=None if batch.null_deletes is None else batch.null_deletes[part],
        updates={name: _updates(found, start, end) for name, found in batch.updates.items()},
    )


def _masks(masks: Masks, part: slice) -> Masks:
    cut = {name: mask[part] for name, mask in masks.items()}
    return {name: mask for name, mask in cut.items() if mask.any()}


def _updates(found: Updates, start: int, end: int) -> Updates:
    return Updates(
        found.base,
        {event - start: change for event, change in found.changes.items() if start <= event < end},
        {event - start: change for event, change in found.otherwise.items() if start <= event < end},
    )


@dataclass(frozen=True, slots=True)
class HandoverId:
    """The source's name and the position of the change as the event states it, in words of 64 bits."""

    source: str
    commit_high: int
    """The commit position uses the low 16 bits; the source time in milliseconds is above them."""
    commit_low: int
    inner_high: int
    inner_low: int


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """Position of a truncate. Floors compare by epoch, then commit position, then inner position."""

    epoch: int = 0
    commit: int = 0
    inner: int = 0


NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True, order=True)
class Loaded:
    """Rows were loaded from the source: they show every change of this epoch below the position."""

    epoch: int = 0
    position: int = 0
    """As the source's positions are; 0 if it is unknown."""
    until: int = 0
    """Milliseconds since 1970: a change of later has another origin than its position says."""


NOTHING_LOADED = Loaded()


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """A place where the positions of a source stepped back, as the log and the ledger show it."""

    kind: str
    """``redelivery``, ``regress`` or ``new source``."""
    source: str
    offset: int
    commit: int
    """Commit position of the event."""
    highest: int
    """Highest commit position before it."""

    def __str__(self) -> str:
        if self.kind == "new source":
            return (
                f"source {self.source!r} is new and begins at position {self.commit}, below {self.highest} of the "
                "sources before it: from here on its changes win"
            )
        return f"source {self.source!r} stepped back from position {self.highest} to {self.commit} ({self.kind})"
