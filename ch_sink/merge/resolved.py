"""Input and result of the resolution of a batch, and the rows that are assembled from it.

Row images are numbered: the chunk's own rows, then rows from elsewhere. The merge decides *which* row each value comes
from; values are moved only at the end, as Arrow ``take``s, so that their types stay exact and no Python objects are
created.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.model.change import BadRecord, ChangeBatch, HandoverId
from ch_sink.order import Layout, Words
from ch_sink.ports import StoredRows
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.arrow import untimed


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """``codes[i]`` numbers the key of row i, from 0; equal keys have equal numbers."""

    codes: npt.NDArray[np.int64]
    count: int

    def first(self) -> npt.NDArray[np.int64]:
        """The first row of each key, by key number."""
        out = np.full(self.count, -1, dtype=np.int64)
        out[self.codes[::-1]] = np.arange(len(self.codes) - 1, -1, -1)
        return out


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [_empty(column.type)])
    return column


def _empty(kind: pa.DataType) -> pa.Array:
    return pa.array([], type=kind)


def factorize(table: pa.Table) -> KeyCodes:
    """Codes of the rows of ``table`` (all its columns together make the key). Nulls equal nulls, NaN equals NaN.

    Equal means equal as stored: two texts or bytes, two numbers of the column's type.
    """
    n = table.num_rows
    codes = np.zeros(n, dtype=np.int64)
    count = 1 if n else 0
    for column in table.columns:
        part, size = _codes(flat(column))
        if count * size < (1 << 62):
            codes = codes * size + part
            count = count * size
        else:  # the product would not fit: renumber what there is first
            codes, count = _dense(codes)
            codes = codes * size + part
            count = count * size
    dense, total = _dense(codes)
    return KeyCodes(dense, total)


def _codes(column: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    if pa.types.is_integer(column.type) and column.null_count == 0:
        values = np.asarray(column)
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if high - low < (1 << 31):
            return (values.astype(np.int64) - low), high - low + 1
        return _dense(values)
    if pa.types.is_fixed_size_binary(column.type) or pa.types.is_nested(column.type):
        column = _as_binary(column)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), max(len(encoded.dictionary), 1)


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_binary(column.type):
        return column.cast(pa.binary())
    return pa.array([repr(v) for v in untimed(column).to_pylist()], type=pa.string())


def _dense(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    uniques, inverse = np.unique(values, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64), len(uniques)


Bools = npt.NDArray[np.bool_]
Events = npt.NDArray[np.int64]
UNSET = -2
"""An origin that was not overridden: the value is the event's own."""
OUTRANKED = "the table has a row of the key with a higher version"
"""The reason in a trace for an event that comes behind such a row."""
Refs = npt.NDArray[np.int64]
"""Row numbers in a Pool; -1 is 'no row' and reads as null."""


class Pool:
    """Segments of rows with the same columns. Numbers of later segments follow those of earlier ones."""

    def __init__(self, first: pa.Table) -> None:
        self._segments = [first]
        self._starts = [0]
        self._size: int = first.num_rows
        self._joined: dict[str, pa.Array] = {}

    def add(self, rows: pa.Table) -> int:
        """Append a segment; returns the number of its first row."""
        start: int = self._size
        self._segments.append(rows)
        self._starts.append(start)
        self._size += rows.num_rows
        self._joined.clear()
        return start

    def replace(self, name: str, values: pa.Array) -> None:
        """Other values for a column of the first segment."""
        first = self._segments[0]
        at = first.schema.get_field_index(name)
        self._segments[0] = first.set_column(at, first.schema.field(at), values)
        self._joined.pop(name, None)

    def column(self, name: str) -> pa.Array:
        """All rows of one column, in number order."""
        if name not in self._joined:
            kind = self._segments[0].schema.field(name).type
            parts = [flat(s.column(name)).cast(kind) for s in self._segments if s.num_rows]
            self._joined[name] = pa.concat_arrays(parts) if parts else pa.array([], type=kind)
        return self._joined[name]

    def long(self, name: str) -> Bools:
        """A mask of the rows of a column with a value: neither NULL nor an empty text, array, map or JSON object."""
        values = self.column(name)
        held: Bools = np.asarray(values.is_valid())
        kind = values.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            nothing = pa.array([b"", b"{}"]).cast(kind)
            held &= ~np.asarray(pc.is_in(values, nothing))
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            held &= np.diff(np.asarray(values.offsets)) > 0
        return held

    def take(self, name: str, refs: Refs) -> pa.Array:
        """Values of a column at these row numbers."""
        first = self._segments[0].num_rows
        top = int(refs.max(initial=-1))
        source = flat(self._segments[0].column(name)) if top < first else self.column(name)
        if len(refs) == len(source) and len(refs) and refs[0] == 0 and (np.diff(refs) == 1).all():
            return source
        if len(refs) and int(refs.min()) < 0:
            return source.take(pa.array(np.maximum(refs, 0), mask=refs < 0))
        return source.take(pa.array(refs))


@dataclass(frozen=True, slots=True)
class Scope:
    """Properties of the table and the source that decide how to resolve."""

    places: tuple[str, ...] = ()
    """Place columns that are not in the key: a change of their values moves the row."""
    sorting: tuple[str, ...] = ()
    """Those of them that are part of the sorting key as they are: if they change, so does the place."""
    sharding: tuple[str, ...] = ()
    """Those of them by which a row's server is chosen."""
    partitions: Callable[[pa.Table], Sequence[tuple[str, npt.NDArray[np.int64]]] | None] = lambda _: None
    """Row numbers by table partition; the answer is None if only the server knows."""
    omits_values: bool = False
    omits_long: bool = False
    """Events leave out long values: a row in which it is null or empty does not know it."""
    deferrable: bool = False
    lookup_all: bool = False
    """Every touched key is looked up: collapsing engines, and tables in which rows can move."""
    layout: Layout | None = None
    version_column: str | None = None
    deleted: tuple[str, int] | None = None
    """Column and value that mark a stored row as deleted."""
    history: bool = False
    """The table keeps every change, so that a lookup finds what it held before the chunk, whatever an earlier attempt
    has stored of it."""
    unique_versions: bool = True
    """Equal versions mean the same event (not so for time versions)."""
    upserts: frozenset[str] | None = None
    """Of a source whose updates insert rows that are not there: the columns that such an insert may leave null."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """The delete of a key's former owner, whose successor holds the key already."""

    event: int
    row: int
    """The former owner's row, -1 if it is not known."""
    below: int
    """A version just below the successor's, 0 if that is not known."""


@dataclass(slots=True)
class Resolved:
    """The events of a batch, resolved. Arrays have one entry per event."""

    codes: npt.NDArray[np.int64]
    keys: int
    apply: Bools
    """False: skipped (re-delivered, superseded, dropped by a swap), pending or bad."""
    image: Refs
    """Row that holds the event's values: its own for c, r, u; the last known one for d."""
    previous: Refs
    """Row that the key had before, if it is known and matters."""
    origin: dict[str, Refs]
    """Column → row that its value comes from, for columns with unavailable values."""
    pool: Pool
    bases: dict[str, dict[int, int]]
    """Column → event → row that holds the value from which the event's own value is made."""
    superseded: Bools
    """A stored row of the key has this version or a higher one."""
    stored: StoredRows | None = None
    stored_codes: npt.NDArray[np.int64] | None = None
    stored_start: int = 0
    stored_words: npt.NDArray[np.uint64] | None = None
    """Versions of the stored rows (n, 2); also as numbers in ``stored_versions``."""
    stored_versions: list[int] = field(default_factory=list)
    handover: list[tuple[HandoverId, int]] = field(default_factory=list)
    """(identity, row number or -1): values that the delete halves hand over."""
    handover_origin: dict[str, list[int]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    """Events that wait for a hand-over, and later ones of the same keys."""
    awaited: dict[int, HandoverId] = field(default_factory=dict)
    """The hand-over for which an event waits; events without one wait for an earlier one of their key."""
    opened: dict[int, int] = field(default_factory=dict)
    """Create halves that opened a swap of keys, each with the delete half that closed it, -1 while it is open."""
    closers: dict[bytes, int] = field(default_factory=dict)
    """Kafka keys that an earlier chunk left doubled, each with the delete half that closed the swap."""
    bad: list[BadRecord] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    doubled: dict[bytes, int] = field(default_factory=dict)
    """Kafka keys of which two rows live while their transaction goes on, with the inner position that made them two."""
    swapped: list[Swapped] = field(default_factory=list)
    settled: set[bytes] = field(default_factory=set)
    """Kafka keys whose former owner left in this chunk."""

    def value_refs(self, column: str, events: npt.NDArray[np.int64]) -> Refs:
        """The origins of a column's values of these events."""
        base = self.image[events]
        if column in self.origin:
            mine = self.origin[column][events]
            return np.where(mine >= -1, mine, base)
        return base


@dataclass(frozen=True, slots=True)
class System:
    """The table's own columns and how they are written."""

    version: str | None
    layout: Layout | None
    sign: str | None
    is_deleted: str | None
    defaults: tuple[tuple[str, pa.Scalar], ...] = ()
    """Columns with a constant default."""

    @staticmethod
    def of(table: TargetTable, layout: Layout | None) -> "System":
        engine = table.engine
        return System(version_column(table), layout, engine.sign_column, engine.is_deleted_column, table.defaults)


def version_column(table: TargetTable) -> str | None:
    """The column that holds versions: the engine's, else ``_version`` where a table of another engine has it."""
    if table.engine.version_column is not None:
        return table.engine.version_column
    if table.engine.family in (Family.COLLAPSING, Family.MERGE_TREE) and table.column("_version") is not None:
        return "_version"
    return None


@dataclass(slots=True)
class Merged:
    """Rows for the table, in steps: all inserts of one step come before those of the next."""

    steps: list[tuple[str, pa.Table]]
    upserts: int = 0
    deletes: int = 0
    moves: int = 0


def rows_of(out: Resolved, batch: ChangeBatch, events: Events) -> pa.Table:
    """Source columns of the rows of these events; key columns come from the Kafka key."""
    keys = batch.key
    columns = []
    for name in batch.after.column_names:
        if keys is not None and name in keys.column_names:
            columns.append(keys.column(name).take(pa.array(events)).cast(batch.after.schema.field(name).type))
        else:
            columns.append(out.pool.take(name, out.value_refs(name, events)))
    return pa.table(columns, schema=batch.after.schema)


def rows_at(out: Resolved, batch: ChangeBatch, refs: Refs) -> pa.Table:
    """Source columns of the rows with these numbers, filled values included."""
    n = len(batch)
    columns = []
    for name in batch.after.column_names:
        mine = refs
        if name in out.origin:
            inside = (refs >= 0) & (refs < n)
            mine = refs.copy()
            mine[inside] = out.value_refs(name, refs[inside])
        columns.append(out.pool.take(name, mine))
    return pa.table(columns, schema=batch.after.schema)


def with_system(rows: pa.Table, system: System, versions: Words | None, deleted: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows with those of the version, sign and is_deleted columns that the table has."""
    if system.version is not None and system.layout is not None and versions is not None:
        rows = rows.append_column(system.version, system.layout.to_arrow(versions))
    if system.sign is not None:
        rows = rows.append_column(system.sign, pa.array(np.where(deleted, -1, 1).astype(np.int8)))
    if system.is_deleted is not None:
        rows = rows.append_column(system.is_deleted, pa.array(deleted.astype(np.uint8)))
    return rows
