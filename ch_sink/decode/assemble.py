"""Change events of one shape as columns, and how the parts of a chunk come together in Kafka order."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import BadRecord, ChangeBatch, Half, Op, SkippedPlaces, UnknownColumn, Updates
from ch_sink.types import arrow_type
from ch_sink.types.column import Column

Mask = npt.NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)


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
    snapshot: Mask
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
    """Events whose form makes a later null value a delete: flattened events that carry no deleted mark.
    None: there are none."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class Shape:
    """What all batches of a decoder share: the image's columns and whether before images are decoded."""

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
    order = _order(parts)
    index = _join([p.source_index for p in parts], order, np.zeros(0, dtype=np.int64))
    op = _join([p.op for p in parts], order, np.zeros(0, dtype=np.uint8))
    names = parts[0].names if len(parts) == 1 else list(chain.from_iterable(p.names for p in parts))
    uniform = bool(names) and names.count(names[0]) == len(names)
    distinct = {name: code for code, name in enumerate(dict.fromkeys(names[:1] if uniform else names))}
    codes = np.zeros(len(names), dtype=np.int16)
    if len(distinct) > 1:
        codes[:] = [distinct[name] for name in names]
    keyed = key_columns and (not parts or any(p.key is not None for p in parts))
    clamped: Counter[str] = Counter()
    for part in parts:
        clamped.update(part.clamped)
    return ChangeBatch(
        source_index=index,
        offset=offsets[index],
        op=op,
        commit=_join([p.commit for p in parts], order, np.zeros((0, 2), dtype=np.uint64)),
        inner=_join([p.inner for p in parts], order, np.zeros((0, 2), dtype=np.uint64)),
        has_commit=_join([p.has_commit for p in parts], order, np.zeros(0, dtype=np.bool_)),
        source_ts=_join([p.source_ts for p in parts], order, np.zeros(0, dtype=np.int64)),
        source_name=list(distinct),
        source_code=codes if order is None else codes[order],
        snapshot=_join([p.snapshot for p in parts], order, np.zeros(0, dtype=np.bool_)),
        half=_matching(half[index], op),
        key=_columns([p.key or {} for p in parts], parts, key_columns, order) if keyed else None,
        after=_columns([p.after for p in parts], parts, _types(shape.columns), order),
        before=_columns([p.before for p in parts], parts, _types(shape.columns), order) if shape.before else None,
        has_before=_join([p.has_before for p in parts], order, np.zeros(0, dtype=np.bool_)),
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
    )


def _types(columns: tuple[Column, ...]) -> dict[str, pa.DataType]:
    return {column.name: arrow_type(column.type) for column in columns}


def _order(parts: list[Part]) -> npt.NDArray[np.intp] | None:
    """The permutation into Kafka order; None if the parts are already in order."""
    if len(parts) <= 1:
        return None
    index = np.concatenate([p.source_index for p in parts])
    return None if bool(np.all(index[1:] > index[:-1])) else np.argsort(index, kind="stable")


def _join(arrays: list[npt.NDArray[T]], order: npt.NDArray[np.intp] | None, empty: npt.NDArray[T]) -> npt.NDArray[T]:
    if not arrays:
        return empty
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
    return _join(pieces, order, np.zeros(0, dtype=np.bool_))


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
        whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces) if pieces else pa.nulls(0, arrow)
        arrays.append(whole if order is None else whole.take(pa.array(order)))
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items())))


def _masks(found: list[dict[str, Mask]], parts: list[Part], order: npt.NDArray[np.intp] | None) -> dict[str, Mask]:
    names = dict.fromkeys(name for masks in found for name in masks)
    out: dict[str, Mask] = {}
    for name in names:
        pieces = [masks.get(name, np.zeros(len(p), dtype=np.bool_)) for masks, p in zip(found, parts, strict=True)]
        mask = _join(pieces, order, np.zeros(0, dtype=np.bool_))
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
