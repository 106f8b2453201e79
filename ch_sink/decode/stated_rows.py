"""Rows that are changes already as events: no bytes to decode, columns stay columns.

A row states what it does (column `OP`) and a number that orders it (`NUMBER`). It becomes an event of the key's row: an
insert and the image after an update store it, a delete and the image before an update delete it. Of one key and number
storing wins (`ch_sink.sources.stated`), so images of an update need not be found together, and one that changes the key
deletes the old row and stores the new one.

Columns of the DataFrame become those of the table by the converters that read events. So a value means what it means in
an event of the same type, and what its column cannot hold is found here, where it concerns one row: neither Arrow's
casts nor the server cut it unseen.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.key_layouts import KeyForm
from ch_sink.decode.parts import of_record
from ch_sink.errors import ConfigError, RecordError, StreamFailed, TableError
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records, UnknownColumn
from ch_sink.model.policy import TopicProfile
from ch_sink.ports import History
from ch_sink.sources import STATED
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type, nulls_within
from ch_sink.types.build import converter
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column, ValuePolicy, Years
from ch_sink.types.connect import Field, SourceType
from ch_sink.types.converter import Converter, takes_arrow

_TICKS = {
    "ms": ("io.debezium.time.Timestamp", "io.debezium.time.Time"),
    "us": ("io.debezium.time.MicroTimestamp", "io.debezium.time.MicroTime"),
    "ns": ("io.debezium.time.NanoTimestamp", "io.debezium.time.NanoTime"),
}
"""Names of date-times and of times of day, by their unit."""


@dataclass(frozen=True, slots=True)
class Values:
    """A column's values."""

    array: pa.Array
    """As they are inserted; null at the places of faults."""
    faults: dict[int, str]
    """Place → why the column cannot hold the value."""
    clamped: int = 0
    """How many values ``out_of_range: clamp | null`` changed."""


def read_column(given: pa.ChunkedArray, column: Column, policy: ValuePolicy, years: Years) -> Values:
    """The values of a DataFrame's column, as the table's column takes them.

    Raises StreamFailed if no value of the DataFrame's type goes into the column.
    """
    if pa.types.is_null(given.type):
        return Values(pa.nulls(len(given), arrow_type(column.type)), {})
    try:
        source, literal = _declared(given.type)
        # What the DataFrame says counts, and not what the column's comment says of another source.
        bare = replace(column, comment="", note="")
        made = converter(source, bare, encoding="json", policy=policy, omits=False, years=years)
    except TableError as error:
        raise StreamFailed(
            f"the DataFrame's column {column.name} is {given.type}: {error.message}",
            hint="Cast it in the DataFrame, or leave it out (except_column_list).",
        ) from None
    return _halved(given.combine_chunks(), literal, made)


def _declared(kind: pa.DataType) -> tuple[SourceType, pa.DataType]:
    """The type as Connect's, and the Arrow type of its literals. Raises TableError."""
    found = _scalar(kind)
    if found is not None:
        return found
    if pa.types.is_list(kind):
        item, literal = _declared(kind.value_type)
        return SourceType("array", items=item), pa.list_(literal)
    if pa.types.is_map(kind):
        key, key_literal = _declared(kind.key_type)
        item, literal = _declared(kind.item_type)
        return SourceType("map", keys=key, items=item), pa.map_(key_literal, literal)
    if pa.types.is_struct(kind):
        parts = [(member.name, *_declared(member.type)) for member in kind]
        source = SourceType("struct", fields=tuple(Field(name, part) for name, part, _ in parts))
        return source, pa.struct([pa.field(name, literal) for name, _, literal in parts])
    raise TableError("no column takes it")


def _scalar(kind: pa.DataType) -> tuple[SourceType, pa.DataType] | None:
    types = pa.types
    if types.is_boolean(kind):
        return SourceType("boolean"), kind
    if types.is_integer(kind):
        # Not int64: its negative values may be unsigned ones of MariaDB.
        return SourceType("int32"), pa.int64()
    if types.is_floating(kind):
        return SourceType("float32" if types.is_float32(kind) else "float64"), pa.float64()
    if types.is_string(kind) or types.is_large_string(kind):
        return SourceType("string"), pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return SourceType("bytes"), pa.binary()
    if types.is_date32(kind):
        return SourceType("int32", "io.debezium.time.Date"), pa.int32()
    if types.is_decimal(kind):
        scale = (("scale", str(kind.scale)),)
        return SourceType("bytes", "org.apache.kafka.connect.data.Decimal", scale), kind
    if (types.is_timestamp(kind) or types.is_time(kind)) and kind.unit in _TICKS:
        return SourceType("int64", _TICKS[kind.unit][types.is_time(kind)]), pa.int64()
    return None


def _halved(given: pa.Array, literal: pa.DataType, made: Converter) -> Values:
    """Converted together where all values fit; else halving finds those that do not."""
    parts, faults, clamped = list[pa.Array](), dict[int, str](), 0
    waiting = [(0, len(given))]
    while waiting:
        start, end = waiting.pop()
        try:
            found = made.convert(_literals(given.take(np.arange(start, end)), literal, made))
        except Exception as error:
            if not of_record(error):
                raise
            if end - start == 1:
                parts.append(pa.nulls(1, made.arrow))
                faults[start] = error.message if isinstance(error, RecordError) else f"cannot be read: {error}"
                continue
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
        else:
            parts.append(found.array)
            clamped += found.clamped
    return Values(pa.concat_arrays(parts), faults, clamped)


def _literals(given: pa.Array, literal: pa.DataType, made: Converter) -> Any:
    """The values as the converter takes them: as Arrow where it can, else as Python's."""
    if given.type == made.arrow and pa.types.is_floating(given.type):
        return given
    read = given.cast(literal)
    return read if takes_arrow(made) and not pa.types.is_decimal(literal) else read.to_pylist(maps_as_pydicts="strict")


BUCKET, NUMBER, OP = "__ch_sink_bucket", "__ch_sink_number", "__ch_sink_op"

_MADE = {
    "tinyint": "Int8",
    "smallint": "Int16",
    "int": "Int32",
    "bigint": "Int64",
    "float": "Float32",
    "double": "Float64",
    "boolean": "Bool",
    "string": "String",
    "binary": "String",
    "date": "Date32",
    "timestamp": "DateTime64(6, 'UTC')",
    "timestamp_ntz": "DateTime64(6, 'UTC')",
}

_TOP = 1 << 54
"""Numbers below this fit every version column that ch_sink knows."""


def added_type(kind: str) -> str | None:
    """The column type that a new column of this type in Spark gets, None if it is not known."""
    if kind.startswith("decimal("):
        return f"Nullable({kind.capitalize()})"
    return f"Nullable({_MADE[kind]})" if kind in _MADE else None


class Rows(Sequence[bytes | None]):
    """Rows as the values of records: the text of one is made when somebody shows it."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            first, end, _ = place.indices(len(self))
            return Rows(self.table.slice(first, max(0, end - first)))
        row = {
            name: column[place].as_py()
            for name, column in zip(self.table.column_names, self.table.columns, strict=True)
        }
        return msgspec.json.encode(row, enc_hook=str)


@dataclass(frozen=True)
class RowDecoder:
    """A BatchDecoder for one table."""

    table: TargetTable
    keys: tuple[str, ...]
    ignored_nulls: frozenset[str] = frozenset()
    """Columns of which a null in an update means that the value is as before."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Type of each column in Spark."""
    values: ValuePolicy = field(default_factory=ValuePolicy)
    """Policy for values that their columns cannot hold."""

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """Nothing is learned: the keys are stated."""
        del records, profile, history
        return TopicProfile(connector=STATED.name, key_columns=self.keys, key_source="configuration")

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        """See BatchDecoder."""
        del profile
        return [tuple(msgspec.json.decode(key).values()) for key in keys]

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        """See BatchDecoder."""
        del keys
        return []

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """See BatchDecoder. Raises ConfigError for a number that no version holds."""
        del profile, waited
        assert isinstance(records.values, Rows)
        rows = records.values.table
        numbers = _expect_numbers(rows.column(NUMBER).to_numpy())
        ops = rows.column(OP).to_numpy().astype(np.uint8)
        columns, bad, clamped = self._columns(rows, ops)
        good = np.ones(len(rows), dtype=np.bool_)
        good[[record.index for record in bad]] = False
        stores = ops != Op.DELETE
        kept = np.flatnonzero(good)
        taken = {name: array.take(pa.array(kept)) for name, array in columns.items()}
        ops, stores = ops[kept], stores[kept]
        n, none = len(kept), pa.array(~stores)
        after = pa.table({name: pc.if_else(none, pa.scalar(None, a.type), a) for name, a in taken.items()})
        absent = {name: stores for name in columns if name not in rows.column_names}
        return ChangeBatch(
            source_index=kept,
            offset=records.offsets[kept],
            op=ops,
            commit=np.column_stack([np.zeros(n, dtype=np.uint64), numbers[kept]]),
            inner=np.zeros((n, 2), dtype=np.uint64),
            has_commit=np.ones(n, dtype=np.bool_),
            source_ts=np.zeros(n, dtype=np.int64),
            source_name=[STATED.name],
            source_code=np.zeros(n, dtype=np.int16),
            half=np.zeros(n, dtype=np.uint8),
            key=pa.table({name: taken[name] for name in self.keys}),
            after=after,
            before=None,
            has_before=np.zeros(n, dtype=np.bool_),
            unavailable=self._unavailable(after, ops),
            absent={name: mask for name, mask in absent.items() if mask.any()},
            bad=bad,
            unknown=self._unknown(rows, records, stores),
            connector=STATED.name,
            clamped=clamped,
        )

    def _columns(
        self, rows: pa.Table, ops: npt.NDArray[np.uint8]
    ) -> tuple[dict[str, pa.Array], list[BadRecord], Counter[str]]:
        """The values of the table's columns, the rows with one that does not fit, and the values that were clamped."""
        columns, reasons, clamped = dict[str, pa.Array](), dict[int, tuple[str, str]](), Counter[str]()
        # A clamped key would identify another row.
        strict = replace(self.values, out_of_range="fail")
        for column in self.table.source_columns:
            name = column.name
            if name not in rows.column_names:
                columns[name] = pa.nulls(len(rows), arrow_type(column.type))
                continue
            policy = strict if name in self.keys else self.values
            read = read_column(rows.column(name), column, policy, self.table.years)
            columns[name] = read.array
            if read.clamped:
                clamped[name] = read.clamped
            kind, stated = parse_type(column.type), (ops != Op.DELETE) | (name in self.keys)
            for place in np.flatnonzero(nulls_within(read.array, kind) & stated).tolist():
                read.faults.setdefault(place, f"a null within it, and the table's {column.type} cannot hold one")
            if not kind.nullable:
                needed = ops != Op.DELETE if name not in self.ignored_nulls else ops == Op.CREATE
                empty = read.array.is_null().to_numpy(zero_copy_only=False) & (needed | (name in self.keys))
                for place in np.flatnonzero(empty).tolist():
                    read.faults.setdefault(place, "null, and the table's column cannot hold null")
            for place, reason in read.faults.items():
                reasons.setdefault(place, (name, reason))
        bad = [
            BadRecord(place, f"column {name}: {reason}", "range", name)
            for place, (name, reason) in sorted(reasons.items())
        ]
        return columns, bad, clamped

    def _unavailable(self, after: pa.Table, ops: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.bool_]]:
        found = {}
        for name in self.ignored_nulls & set(after.column_names):
            mask = after.column(name).is_null().to_numpy() & (ops == Op.UPDATE)
            if mask.any():
                found[name] = mask
        return found

    def _unknown(self, rows: pa.Table, records: Records, stores: npt.NDArray[np.bool_]) -> list[UnknownColumn]:
        if not stores.any():
            return []
        known = {column.name for column in self.table.columns} | {BUCKET, NUMBER, OP}
        first = int(records.offsets[0])
        return [
            UnknownColumn(name, first, added_type(self.kinds[name]), filled=True)  # former rows have NULL
            for name in rows.column_names
            if name not in known and rows.column(name).null_count < len(rows)
        ]


def _expect_numbers(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Raises ConfigError for a number that no version holds: beyond these, versions would begin again at 0."""
    outside = np.flatnonzero((numbers < 0) | (numbers >= _TOP))
    if len(outside):
        raise ConfigError(
            f"sequence_by: {numbers[outside[0]]} is outside of 0 to 2^54 - 1",
            hint="Order changes by a commit's number, or by a time from 1970 on (times count in microseconds).",
        )
    return numbers.astype(np.uint64)
