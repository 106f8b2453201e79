"""Rows that are changes already as events: no bytes to decode, columns stay columns.

A row states what it does (column `OP`) and a number that orders it (`NUMBER`). It becomes an event of the key's row: an
insert and the image after an update store it, a delete and the image before an update delete it. Of one key and number
storing wins (`ch_sink.sources.stated`), so images of an update need not be found together, and one that changes the key
deletes the old row and stores the new one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records, UnknownColumn
from ch_sink.model.policy import TopicProfile
from ch_sink.ports import History
from ch_sink.sources import STATED
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type
from ch_sink.types.chtype import parse_type

__all__ = ["BUCKET", "NUMBER", "OP", "RowDecoder", "Rows"]

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
    "timestamp_ntz": "DateTime64(6)",
}
"""The column types that new columns of the DataFrame get, by their types in Spark."""


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

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """See BatchDecoder."""
        del profile, waited
        assert isinstance(records.values, Rows)
        rows = records.values.table
        ops = rows.column(OP).to_numpy().astype(np.uint8)
        good, bad = np.ones(len(rows), dtype=np.bool_), []
        stores = ops != Op.DELETE
        columns: dict[str, pa.Array] = {}
        for column in self.table.source_columns:
            kind = arrow_type(column.type)
            if column.name not in rows.column_names:
                columns[column.name] = pa.nulls(len(rows), kind)
                continue
            made, faults = _cast(column.name, rows.column(column.name), kind)
            if not parse_type(column.type).nullable and column.name not in self.ignored_nulls:
                needed = made.is_null().to_numpy(zero_copy_only=False) & (stores | (column.name in self.keys))
                for place in np.flatnonzero(needed).tolist():
                    faults.setdefault(place, "null, and the table's column cannot hold null")
            columns[column.name] = made
            for place, reason in faults.items():
                if good[place]:
                    bad.append(BadRecord(place, f"column {column.name}: {reason}", "range", column.name))
                good[place] = False
        kept = np.flatnonzero(good)
        taken = {name: array.take(pa.array(kept)) for name, array in columns.items()}
        ops, stores = ops[kept], stores[kept]
        numbers = rows.column(NUMBER).to_numpy()[kept].astype(np.uint64)
        n, none = len(kept), pa.array(~stores)
        after = pa.table({name: pc.if_else(none, pa.scalar(None, a.type), a) for name, a in taken.items()})
        absent = {name: stores for name in columns if name not in rows.column_names}
        return ChangeBatch(
            source_index=kept,
            offset=records.offsets[kept],
            op=ops,
            commit=np.column_stack([np.zeros(n, dtype=np.uint64), numbers]),
            inner=np.zeros((n, 2), dtype=np.uint64),
            has_commit=np.ones(n, dtype=np.bool_),
            source_ts=np.zeros(n, dtype=np.int64),
            source_name=[STATED.name],
            source_code=np.zeros(n, dtype=np.int16),
            snapshot=np.zeros(n, dtype=np.bool_),
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
            clamped=Counter(),
        )

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
            UnknownColumn(name, first, f"Nullable({_MADE[self.kinds[name]]})" if self.kinds[name] in _MADE else None)
            for name in rows.column_names
            if name not in known and rows.column(name).null_count < len(rows)
        ]


def _cast(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """The column as this type, and the places of values that do not fit, with the reason.

    Raises StreamFailed if no value of the column's type does.
    """
    given = column.combine_chunks()
    if pa.types.is_timestamp(given.type):
        unit = kind.unit if pa.types.is_timestamp(kind) else "s"
        given = given.cast(pa.timestamp(unit, given.type.tz), safe=False)
        if not pa.types.is_timestamp(kind) and not pa.types.is_date(kind):
            given = given.cast(pa.int64())  # DateTime travels as seconds
    faults: dict[int, str] = {}
    try:
        return given.cast(kind), faults
    except pa.ArrowNotImplementedError:
        raise StreamFailed(
            f"the DataFrame's column {name} is {column.type}, which does not become what the table's column takes "
            f"({kind})",
            hint="Cast it in the DataFrame, or leave it out (except_column_list).",
        ) from None
    except pa.ArrowInvalid:
        values = []
        for place in range(len(given)):
            try:
                values.append(given.slice(place, 1).cast(kind))
            except pa.ArrowInvalid as error:
                values.append(pa.nulls(1, kind))
                faults[place] = str(error)
    return pa.concat_arrays(values), faults
