"""Records are decoded in groups, whose columns come together in Kafka order; halving finds the bad ones.

Whatever decoding raises is about a record, and that record is bad: no bytes of one record stop a stream. What is not
about a record has types of its own (a server that does not answer, a table that cannot be served) and is passed on. An
exception that nobody expected is bad records of the kind ``unexpected``, and its first traceback is in the log: if it
is a defect that every record meets, ``errors.max_rate`` stops the stream, and the letters can be retried once it is
fixed.
"""

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.errors import ChSinkError, DecodeError, RecordError
from ch_sink.model.change import (
    BadRecord,
    ChangeBatch,
    Half,
    Op,
    Records,
    Skipped,
    SkippedPlaces,
    UnknownColumn,
    Updates,
)
from ch_sink.types import arrow_type
from ch_sink.types.column import Column

Mask = npt.NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)
D = TypeVar("D")
V = TypeVar("V")


@dataclass(slots=True)
class Part:
    """Row changes of one shape, in Kafka order. Columns as in ChangeBatch; images and keys by column name."""

    source_index: npt.NDArray[np.int64]
    op: npt.NDArray[np.uint8]
    commit: npt.NDArray[np.uint64]
    inner: npt.NDArray[np.uint64]
    has_commit: Mask
    source_ts: npt.NDArray[np.int64]
    names: list[str]
    tables: frozenset[str]
    after: dict[str, pa.Array]
    """A column that is missing here is null for every event."""
    before: dict[str, pa.Array]
    has_before: Mask
    key: dict[str, pa.Array] | None
    connector: str = ""
    unavailable: dict[str, Mask] = field(default_factory=dict)
    absent: dict[str, Mask] = field(default_factory=dict)
    absent_before: dict[str, Mask] = field(default_factory=dict)
    clamped: Counter[str] = field(default_factory=Counter)
    updates: dict[str, Updates] = field(default_factory=dict)
    null_deletes: Mask | None = None
    """Events whose form makes a later null a delete: flattened ones without a deleted mark. None: there are none."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class Shape:
    """Shared by all batches of a decoder: the image's columns and whether before images are decoded."""

    columns: tuple[Column, ...]
    before: bool


def as_places(places: Sequence[int]) -> npt.NDArray[np.int64]:
    """Places as an array: numpy takes a range number by number."""
    if isinstance(places, range):
        return np.arange(places.start, places.stop, places.step, dtype=np.int64)
    return np.asarray(places, dtype=np.int64)


def assemble(
    parts: list[Part],
    shape: Shape,
    offsets: npt.NDArray[np.int64],
    half: npt.NDArray[np.uint8],
    key_columns: dict[str, pa.DataType],
    skipped: SkippedPlaces,
    bad: list[BadRecord],
    unknown: list[UnknownColumn],
) -> ChangeBatch:
    """One batch of all parts. ``offsets`` and ``half`` are those of the chunk's records."""
    parts = parts or [no_events()]
    order = _order(parts)
    index, op = (_join([getattr(p, name) for p in parts], order) for name in ("source_index", "op"))
    others = ("commit", "inner", "has_commit", "source_ts", "has_before")
    names = parts[0].names if len(parts) == 1 else list(chain.from_iterable(p.names for p in parts))
    uniform = bool(names) and names.count(names[0]) == len(names)
    distinct = {name: code for code, name in enumerate(dict.fromkeys(names[:1] if uniform else names))}
    codes = np.zeros(len(names), dtype=np.int16)
    if len(distinct) > 1:
        codes[:] = [distinct[name] for name in names]
    keyed = key_columns and (not any(map(len, parts)) or any(p.key is not None for p in parts))
    clamped: Counter[str] = Counter()
    for part in parts:
        clamped.update(part.clamped)
    return ChangeBatch(
        source_index=index,
        offset=offsets[index],
        op=op,
        **{name: _join([getattr(p, name) for p in parts], order) for name in others},
        source_name=list(distinct),
        source_code=codes if order is None else codes[order],
        tables=frozenset().union(*(part.tables for part in parts)),
        half=_matching(half[index], op),
        key=_columns([p.key or {} for p in parts], parts, key_columns, order) if keyed else None,
        after=_columns([p.after for p in parts], parts, _types(shape.columns), order),
        before=_columns([p.before for p in parts], parts, _types(shape.columns), order) if shape.before else None,
        unavailable=_masks([p.unavailable for p in parts], parts, order),
        absent=_masks([p.absent for p in parts], parts, order),
        absent_before=_masks([p.absent_before for p in parts], parts, order),
        updates=_updates(parts, order),
        skipped=skipped,
        bad=sorted(bad, key=lambda b: b.index),
        unknown=unknown,
        clamped=clamped,
        connector=_first_connector(parts),
        null_deletes=_joined_mask([p.null_deletes for p in parts], parts, order),
        key_read_as={},
    )


def no_events() -> Part:
    """A part without events."""
    none = np.zeros(0, dtype=np.int64)
    no, words = np.zeros(0, dtype=np.bool_), np.zeros((0, 2), dtype=np.uint64)
    return Part(none, none.astype(np.uint8), words, words, no, none, [], frozenset(), {}, {}, no, None)


def _types(columns: tuple[Column, ...]) -> dict[str, pa.DataType]:
    return {column.name: arrow_type(column.type) for column in columns}


def _order(parts: list[Part]) -> npt.NDArray[np.intp] | None:
    """The permutation into Kafka order; None if the parts are already in order."""
    if len(parts) <= 1:
        return None
    index = np.concatenate([p.source_index for p in parts])
    return None if bool(np.all(index[1:] > index[:-1])) else np.argsort(index, kind="stable")


def _join(arrays: list[npt.NDArray[T]], order: npt.NDArray[np.intp] | None) -> npt.NDArray[T]:
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined if order is None else joined[order]


def _first_connector(parts: list[Part]) -> str:
    """The connector of the first event."""
    first = min((part for part in parts if len(part)), key=lambda part: int(part.source_index[0]), default=None)
    return first.connector if first is not None else ""


def _joined_mask(found: list[Mask | None], parts: list[Part], order: npt.NDArray[np.intp] | None) -> Mask | None:
    if all(mask is None for mask in found):
        return None
    pieces = [np.zeros(len(p), dtype=np.bool_) if mask is None else mask for mask, p in zip(found, parts, strict=True)]
    return _join(pieces, order)


def _columns(
    found: list[dict[str, pa.Array]],
    parts: list[Part],
    types: dict[str, pa.DataType],
    order: npt.NDArray[np.intp] | None,
) -> pa.Table:
    arrays: list[pa.Array] = []
    for name, arrow in types.items():
        pieces = [
            columns[name] if name in columns else pa.nulls(len(part), arrow)
            for columns, part in zip(found, parts, strict=True)
        ]
        whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        arrays.append(whole if order is None else whole.take(pa.array(order)))
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items())))


def _masks(found: list[dict[str, Mask]], parts: list[Part], order: npt.NDArray[np.intp] | None) -> dict[str, Mask]:
    names = dict.fromkeys(name for masks in found for name in masks)
    out: dict[str, Mask] = {}
    for name in names:
        pieces = [masks.get(name, np.zeros(len(p), dtype=np.bool_)) for masks, p in zip(found, parts, strict=True)]
        mask = _join(pieces, order)
        if mask.any():
            out[name] = mask
    return out


def _updates(parts: list[Part], order: npt.NDArray[np.intp] | None) -> dict[str, Updates]:
    out: dict[str, Updates] = {}
    place = None if order is None else np.argsort(order).tolist()
    start = 0
    for part in parts:
        for name, found in part.updates.items():
            mine = out.setdefault(name, Updates(found.base, {}))
            for own, others in ((mine.changes, found.changes), (mine.otherwise, found.otherwise)):
                for i, change in others.items():
                    own[start + i if place is None else place[start + i]] = change
        start += len(part)
    return out


def _matching(half: npt.NDArray[np.uint8], op: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A half counts only on its operation: ``newkey`` on a delete, ``oldkey`` on a create."""
    right = ((half == Half.DELETE) & (op == Op.DELETE)) | ((half == Half.CREATE) & (op == Op.CREATE))
    return np.where(right, half, np.uint8(Half.NONE))


log = logging.getLogger("ch_sink")

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""Exceptions that decoding JSON text may raise."""
_MOST_PARTS = 8
"""With more pieces than this, all good records are decoded again as one once the bad ones are known."""


class Fault(Exception):
    """At least one of the given records cannot be decoded; which one may be unknown."""

    def __init__(
        self,
        reason: str,
        kind: str = "decode",
        column: str | None = None,
        suspects: Sequence[int] = (),
    ) -> None:
        """``suspects``: the records that fail at this step (by place in the chunk), if known."""
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.column = column
        self.suspects = suspects
        self.unknown: Sequence[UnknownColumn] = ()
        """Fields of the records' schema that the table lacks or has otherwise, a possible reason for the failure."""


class Read:
    """The result of a group's payloads: a part without keys, the records that change no row, unknown columns."""

    __slots__ = ("part", "skipped", "unknown")

    def __init__(self, part: Part, skipped: SkippedPlaces, unknown: list[tuple[int, UnknownColumn]]) -> None:
        self.part = part
        self.skipped = skipped
        self.unknown = unknown
        """Unknown columns with the place of the first event that has them."""


def fails(function: Callable[[Any], Any], value: Any) -> bool:
    """Whether a function refuses a value."""
    try:
        function(value)
    except (Fault, DecodeError, *UNREADABLE):
        return True
    return False


def each(function: Callable[[V], D], values: Sequence[V], places: Sequence[int]) -> list[D]:
    """The results of a function for values at these places. Raises Fault for those for which it raises DecodeError."""
    found: list[D] = []
    faults: dict[int, str] = {}
    for value, place in zip(values, places, strict=True):
        try:
            found.append(function(value))
        except (DecodeError, *UNREADABLE) as error:
            faults[place] = str(error)
    if faults:
        raise Fault(next(iter(faults.values())), suspects=list(faults))
    return found


def skipped(kind: Callable[[V], Skipped], values: Sequence[V], places: Sequence[int]) -> SkippedPlaces:
    """Records that change no row, by their kind. Raises Fault, as `each`."""
    out: SkippedPlaces = {}
    for found, place in zip(each(kind, values, places), places, strict=True):
        out.setdefault(found, []).append(place)
    return out


@dataclass(slots=True)
class Found:
    """The result of decoding records."""

    parts: list[Part] = field(default_factory=list)
    skipped: SkippedPlaces = field(default_factory=dict)
    nulls: list[int] = field(default_factory=list)
    """Places of the records whose payload is null."""
    unknown: list[UnknownColumn] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)

    def add(self, other: "Found") -> None:
        self.parts += other.parts
        self.nulls += other.nulls
        self.unknown += other.unknown
        self.bad += other.bad
        self.skip(other.skipped)

    def skip(self, skipped: SkippedPlaces) -> None:
        """Note records that change no row."""
        for kind, places in skipped.items():
            self.skipped.setdefault(kind, []).extend(places)


Attempt = Callable[[Records, Sequence[int]], Found]
"""Decodes the records at these places together. Raises Fault, or anything `of_record`, if one of them is bad."""
_shown: set[str] = set()
"""Places of unexpected exceptions that are in the log already."""


def of_record(error: Exception) -> bool:
    """Whether what decoding raised is about the records, not about the table, a server or the machine's files."""
    return isinstance(error, RecordError) or not isinstance(error, (ChSinkError, OSError))


def unless_bad(default: D, function: Callable[[], D]) -> D:
    """The function's result; ``default`` if it raises an error about the record."""
    try:
        return function()
    except Exception as error:
        if not of_record(error):
            raise
        return default


def _as_fault(error: Exception, records: Records) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, RecordError):
        return Fault(error.message)
    if isinstance(error, RecursionError):
        return Fault("its values are nested too deeply")
    # Not the error's text: it may show a value of a column that is masked.
    kind, where = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(where.filename).name}, line {where.lineno}"
    if place not in _shown:
        _shown.add(place)
        trace = "".join(traceback.format_tb(error.__traceback__))
        log.error("decoding a record of %s raised %s, which was not expected:\n%s", records.topic, kind, trace)
    return Fault(f"decoding raised an unexpected {kind} ({place})", "unexpected")


def isolate(records: Records, index: Sequence[int], attempt: Attempt) -> Found:
    """Decode the records at these places, except bad ones: whether a record is bad is always decided alone."""
    pieces, found = _halve(records, index, attempt)
    if pieces > _MOST_PARTS:
        failed = {b.index for b in found.bad}
        _, again = _halve(records, [i for i in index if i not in failed], attempt)
        again.bad += found.bad
        again.unknown += [column for column in found.unknown if column not in again.unknown]
        return again
    return found


def _halve(records: Records, index: Sequence[int], attempt: Attempt) -> tuple[int, Found]:
    out = Found()
    pieces = 0
    waiting: list[Sequence[int]] = [index]
    while waiting:
        some = waiting.pop()
        if not len(some):
            continue
        try:
            out.add(attempt(records, some))
            pieces += 1
        except Exception as error:
            if not of_record(error):
                raise
            fault = _as_fault(error, records)
            if len(some) == 1:
                out.bad.append(BadRecord(some[0], fault.reason, fault.kind, fault.column))
                # Pending column changes: its value may fit the column once that has been widened.
                first = int(records.offsets[some[0]])
                out.unknown.extend(replace(column, first_offset=first) for column in fault.unknown)
            elif len(fault.suspects):
                suspects = set(fault.suspects)
                waiting.extend([i] for i in suspects)
                waiting.append([i for i in some if i not in suspects])
            else:
                middle = len(some) // 2
                waiting.append(some[middle:])
                waiting.append(some[:middle])
    return pieces, out
