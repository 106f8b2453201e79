"""Rows that are changes already as events: no bytes to decode, columns stay columns.

A row states what it does (column `OP`) and a number that orders it (`NUMBER`). It becomes an event of the key's row: an
insert and the image after an update store it, a delete and the image before an update delete it. Of one key and number
storing wins (`ch_sink.sources.stated`), so images of an update need not be found together, and one that changes the key
deletes the old row and stores the new one.
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

from ch_sink.decode.stated_values import read_column
from ch_sink.errors import ConfigError
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records, UnknownColumn
from ch_sink.model.policy import TopicProfile
from ch_sink.ports import History
from ch_sink.sources import STATED
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import ValuePolicy

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
    """What happens to values that their columns cannot hold."""

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
            if not parse_type(column.type).nullable:
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
            UnknownColumn(name, first, added_type(self.kinds[name]))
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
