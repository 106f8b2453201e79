"""A merge-engine table in memory: writer and lookup of the sink, and what a reader of the engine would see.

Rows are kept as they were inserted; the answers follow ClickHouse's rules (the newest version of a sorting key; sums of
signs). Nothing is merged in the background.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from ch_sink.order import layout_for
from ch_sink.ports import Fence, Insert, StoredRows
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable
from ch_sink.table.rollup import Rollup

Row = dict[str, Any]
_Key = tuple[Any, ...]


class MemoryTable:
    """One target table."""

    def __init__(self, table: TargetTable, key_columns: tuple[str, ...], schema: pa.Schema | None = None) -> None:
        """``schema``: that of the source columns as they are inserted; by default, that of the first insert."""
        self.table, self.keys = table, key_columns
        self.rows: list[Row] = []
        """All rows, in the order of insertion."""
        self.tokens: set[str] = set()
        self.rollups = {rollup.choice.name: MemoryRollup(rollup) for rollup in table.rollups}
        self._schema: pa.Schema | None = None
        self._by_key: dict[_Key, list[int]] = {}
        if schema is not None:
            self.alter(table, schema)

    def alter(self, table: TargetTable, schema: pa.Schema) -> None:
        """Give the table these columns. ``schema`` is that of the source columns."""
        self.table = table
        version = table.column("_version")
        self._schema = schema.append(pa.field("_version", layout_for(version.type if version else "UInt128").arrow))
        own = {
            "_sign": pa.int8(),
            "_is_deleted": pa.uint8(),
            "_op": pa.string(),
            SOURCE_TIME: pa.timestamp("ms", tz="UTC"),
        }
        for name, kind in own.items():
            if table.column(name) is not None:
                self._schema = self._schema.append(pa.field(name, kind))

    def write(self, insert: Insert, token: str, *, fence: Fence | None = None, by_content: bool = False) -> int:
        """See TableWriter.write: an insert whose token was seen before is dropped, whatever its rows."""
        if fence is not None:
            fence.check()
        rows = insert.rows.to_pylist()
        if by_content:
            token = f"{token}/{blake2b(repr(rows).encode(), digest_size=16).hexdigest()}"
        if token in self.tokens or not insert.rows.num_rows:
            return 0
        self.tokens.add(token)
        self._schema = insert.rows.schema if self._schema is None else self._schema
        for column in insert.rows.schema:
            if column.name not in self._schema.names:
                self._schema = self._schema.append(column)
        self.put(rows)
        return int(insert.rows.num_rows)

    def roll_up(self, rollup: str, rows: pa.Table, token: str, *, fence: Fence | None = None) -> None:
        """See TableWriter.roll_up."""
        if fence is not None:
            fence.check()
        self.rollups[rollup].add(rows.to_pylist(), token)

    def fill_rollups(self, supersede: Callable[[], Sequence[Fence]], *, doubtful: bool, last: str = "") -> None:
        """See TableAdmin.fill_rollups: from all rows, whose signs sum up to what lives."""
        wanted = {
            name for name, one in self.rollups.items() if doubtful or not one.filled or (last and one.kept != last)
        }
        if not wanted:
            return
        for fence in supersede():
            fence.check()
        for name in wanted:
            self.rollups[name] = MemoryRollup(self.rollups[name].rollup, filled=True)
            self.rollups[name].add(self.rows)

    def put(self, rows: Iterable[Row]) -> None:
        """Store rows, system columns included, without a token."""
        for row in rows:
            self._by_key.setdefault(self._key(row, self.keys), []).append(len(self.rows))
            self.rows.append(row)

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        """See RowLookup.fetch."""
        if self._schema is None:
            return StoredRows(keys.slice(0, 0))
        if not set(self.keys) >= set(keys.column_names):
            return self._same(keys)
        wanted = [self._key(key, self.keys) for key in keys.to_pylist()]
        tops = dict(zip(wanted, below.to_pylist(), strict=True)) if below is not None else {}
        places = sorted(place for key in dict.fromkeys(wanted) for place in self._by_key.get(key, ()))
        if self._version is not None and tops:
            low = {key: _number(top) for key, top in tops.items()}
            rows = self.rows
            places = [at for at in places if _number(rows[at][self._version]) < low[self._key(rows[at], self.keys)]]
        found = self._of_keys([self.rows[place] for place in places])
        # A row that lacks a column is older than the column.
        defaults = dict(self.table.defaults)
        whole = [{n: r[n] if n in r else _plain(defaults.get(n)) for n in self._schema.names} for r in found]
        return StoredRows(pa.Table.from_pylist(whole, schema=self._schema))

    def _same(self, keys: pa.Table) -> StoredRows:
        """The rows with these values, in whichever columns."""
        names = keys.column_names
        wanted = {self._key(key, names) for key in keys.to_pylist()}
        found = [row for row in self.rows if self._key(row, names) in wanted]
        return StoredRows(pa.Table.from_pylist(found, schema=self._schema))

    def current(self) -> list[Row]:
        """Live rows without system columns, as the current-state view shows them."""
        own = self.table.system_columns
        return [{c: v for c, v in row.items() if c not in own} for row in self.current_rows()]

    def current_rows(self) -> list[Row]:
        """Live rows, whole."""
        family = self.table.engine.family
        if family is Family.MERGE_TREE and not self.keys:
            return self._alive(self.rows, self.table.system_columns)
        if family is Family.MERGE_TREE:
            return [row for row in self._newest(self.rows, self.keys) if row["_sign"] > 0]
        if self._collapses:
            return self._alive(self.rows, {self._sign})
        return [row for row in self._newest(self.rows, self.table.sorting_key) if not self._is_deleted(row)]

    def sums(self) -> dict[_Key, int]:
        """Sum of signs by key."""
        out: Counter[_Key] = Counter()
        for row in self.rows:
            out[self._key(row, self.keys)] += row[self._sign]
        return dict(out)

    def highest_version(self) -> int:
        """The highest version in the table, −1 if it is empty, 0 if it has no versions."""
        name = self._version
        return max((_number(row[name]) for row in self.rows), default=-1) if name else 0

    def truncate(self, version: int) -> None:
        """Mark the live rows below this version as deleted, as the product's statement does."""
        gone = []
        name = self._version
        for row in self.current_rows():
            if name is None or _number(row[name]) >= version:
                continue
            mark = dict(row)
            if self.table.engine.family is Family.REPLACING:
                wide = isinstance(row[name], bytes)
                mark[name] = version.to_bytes(len(row[name]), "little") if wide else version
            if self.table.engine.is_deleted_column:
                mark[self.table.engine.is_deleted_column] = 1
            else:
                mark[self._sign] = -1
            gone.append(mark)
        self.put(gone)

    @property
    def _sign(self) -> str:
        return self.table.engine.sign_column or "_sign"

    @property
    def _version(self) -> str | None:
        known = "_version" if self._schema is not None and "_version" in self._schema.names else None
        return self.table.engine.version_column or known

    @property
    def _collapses(self) -> bool:
        return self.table.engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)

    def _of_keys(self, rows: list[Row]) -> list[Row]:
        return self._alive(rows, {self._sign}) if self._collapses else self._newest(rows, self.keys)

    def _newest(self, rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
        """The row of the highest version of each key; among equal ones the one inserted last."""
        name = self._version
        newest: dict[_Key, tuple[int, Row]] = {}
        for row in rows:
            key, version = self._key(row, by), _number(row[name]) if name else 0
            if key not in newest or version >= newest[key][0]:
                newest[key] = version, row
        return [row for _, row in newest.values()]

    def _alive(self, rows: Iterable[Row], but: Iterable[str]) -> list[Row]:
        """Each row as often as its signs sum to. ``but``: columns that do not distinguish rows."""
        sums: Counter[_Key] = Counter()
        first: dict[_Key, Row] = {}
        ignored = {*but, self._sign}
        for row in rows:
            values = tuple((name, _hashable(value)) for name, value in row.items() if name not in ignored)
            sums[values] += row[self._sign]
            first.setdefault(values, row)
        return [{**first[values], self._sign: 1} for values, total in sums.items() for _ in range(max(total, 0))]

    def _is_deleted(self, row: Row) -> bool:
        engine = self.table.engine
        if engine.is_deleted_column:
            return bool(row[engine.is_deleted_column] == 1)
        return engine.sign_column is not None and row[engine.sign_column] == -1

    @staticmethod
    def _key(row: Row, names: Sequence[str]) -> _Key:
        return tuple(_hashable(row[name]) for name in names)


@dataclass(slots=True)
class MemoryRollup:
    """A rollup whose expressions are plain columns, without a condition."""

    rollup: Rollup
    filled: bool = False
    kept: str = ""
    """The run of the job that left it as the table is."""
    groups: dict[_Key, list[Any]] = field(default_factory=dict)
    """Values of ``by`` → the number of rows and the sums."""
    tokens: set[str] = field(default_factory=set)
    """Of the differences that it has."""

    def add(self, rows: Iterable[Row], token: str = "") -> None:
        """Add signed rows. A token that was seen before changes nothing, whatever the rows."""
        if token in self.tokens:
            return
        self.tokens |= {token} if token else set()
        choice = self.rollup.choice
        for row in rows:
            group = tuple(_hashable(row[column]) for _, column in choice.by)
            values = [1, *(row[column] or 0 for _, column in choice.sums)]
            old = self.groups.get(group, [0] * len(values))
            self.groups[group] = [n + value * row[self.rollup.sign] for n, value in zip(old, values, strict=True)]

    def current(self) -> dict[_Key, list[Any]]:
        """What readers see: the groups that have rows."""
        return {group: values for group, values in self.groups.items() if values[0]}


def _plain(scalar: Any) -> Any:
    return scalar.as_py() if isinstance(scalar, pa.Scalar) else scalar


def _number(version: Any) -> Any:
    # Wide integers travel as little-endian bytes.
    return int.from_bytes(version, "little") if isinstance(version, bytes) else version


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, float) and value != value:
        return "nan"
    return value
