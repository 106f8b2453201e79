"""Stored rows by key, typed as for an insert."""

import numpy as np
import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys, conform_table
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.settings import EVERY_TYPE
from ch_sink.errors import AccessDenied, TableError
from ch_sink.ports import StoredRows
from ch_sink.table.model import Family, TargetTable, times
from ch_sink.types.arrow import arrow_type, carried, sent_type
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import OWN, quote

_KEYS = "_keys"
_COUNT, _BELOW, _TOP, _T, _K = (f"{OWN}{name}" for name in ("rows", "below", "top", "t", "k"))


class ClickHouseLookup:
    """The RowLookup of one target table: one query per call, by the primary index.

    Keys are sent as an external table, so that every type compares exactly.
    """

    def __init__(self, client: Client, table: TargetTable, key_columns: tuple[str, ...]) -> None:
        """Raises TableError if the table lacks a key column."""
        self._client, self._table = client, table
        self._keys = key_columns
        self._types: dict[str, str] = {c.name: c.type for c in table.columns}
        for name in key_columns:
            if name not in self._types:
                raise TableError(
                    f"{table.qualified} has no column {name!r}, which is in the key of the change events",
                    hint="Add the column, or set key_columns.",
                )
        self._arrow = {c.name: kind for c in table.columns if (kind := _arrow(c.type)) is not None}
        self._sql = (
            _collapsing_sql(table, key_columns) if table.engine.family.collapses else _newest_sql(table, key_columns)
        )
        self._settings: dict[str, str | int] = {
            # Null is a key value like any other; without this setting, IN never matches it.
            "transform_null_in": 1,
            # The keys are sent as a table of their types. Grouping compares whole stored values, also of JSON.
            **EVERY_TYPE,
            "use_index_for_in_with_subqueries": 1,
        }

    @property
    def sql(self) -> str:
        """The query, with the keys as table ``_keys``."""
        return self._sql

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        """See RowLookup.fetch. Raises ClickHouseError."""
        named = keys.select(list(self._keys))
        types = [(name, sent_type(self._types[name])) for name in self._keys]
        sql, version = self._sql, _version(self._table)
        if below is not None and version is not None:
            sql = _newest_below_sql(self._table, self._keys, version)
            named = named.append_column(_BELOW, below)
            types.append((_BELOW, sent_type(self._types[version])))
        sent = Keys(_KEYS, named, types)
        doing = f"look up stored rows of {self._table.qualified}"
        found = self._client.arrow(sql, settings=self._settings, keys=sent, of=self._table, doing=doing)
        if _COUNT in found.column_names:
            times = np.asarray(found.column(_COUNT).combine_chunks() if found.num_rows else []).astype(np.int64)
            found = found.drop_columns([_COUNT])
            if len(times) and times.max() > 1:
                found = found.take(pa.array(np.repeat(np.arange(len(times)), times)))
        return StoredRows(conform_table(found, self._arrow))


class AnyKeyLookup:
    """The RowLookup of one target table, for whatever key columns it is asked."""

    def __init__(self, client: Client, table: TargetTable) -> None:
        self._client, self._table = client, table
        self._by: dict[tuple[str, ...], ClickHouseLookup] = {}

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        """See RowLookup.fetch. Raises ClickHouseError, TableError."""
        names = tuple(keys.column_names)
        if names not in self._by:
            self._by[names] = ClickHouseLookup(self._client, self._table, names)
        return self._by[names].fetch(keys, below)


def max_version(client: Client, table: TargetTable, empty: int = 0, condition: str = "") -> int:
    """The highest version of the rows that meet a condition, if one is given.

    ``empty`` if no row meets it, 0 if the table has no versions.

    Times count in their own unit since 1970 (seconds, or ticks of DateTime64). Raises ClickHouseError.
    """
    name = table.engine.version_column or ("_version" if table.column("_version") is not None else None)
    column = table.column(name) if name else None
    if column is None:
        return 0
    kind = parse_type(column.type).bare
    value = f"max({quote(column.name)})"
    if kind.name == "DateTime64":
        value = f"toInt64(CAST({value}, 'Decimal(38, {kind.precision})') * {10**kind.precision})"
    elif kind.name in ("DateTime", "Date", "Date32"):
        value = f"toInt64({value})"
    rows = client.rows(
        f"SELECT if(count() = 0, '{empty}', toString({value})) AS {_TOP} FROM {table.qualified} WHERE {condition or 1}",
        of=table,
        doing=f"read the highest version of {table.qualified}",
    )
    return int(rows[0][_TOP] or 0) if rows else 0


def has_rows(client: Client, table: TargetTable, condition: str = "") -> bool:
    """Whether the table has a row that meets the condition, whatever readers see of it. Raises ClickHouseError."""
    sql = f"SELECT 1 AS one FROM {table.qualified} WHERE {condition or 1} LIMIT 1"
    return bool(client.rows(sql, of=table, doing=f"look into {table.qualified}"))


def may_have_rows(client: Client, table: TargetTable) -> bool:
    """Whether the table has rows, or its rows may not be read: a user that creates tables may lack SELECT."""
    try:
        return has_rows(client, table)
    except AccessDenied:
        return True


def _arrow(kind: str) -> pa.DataType | None:
    try:
        return arrow_type(kind)
    except TableError:  # a column that the sink does not fill keeps the server's type
        return None


def _select(table: TargetTable) -> list[str]:
    return [_readable(c.name, c.type) for c in table.columns if c.insertable]


def _readable(name: str, kind: str) -> str:
    value = carried(quote(name), kind)
    return value if value == quote(name) else f"{value} AS {quote(name)}"


def _where(table: TargetTable, keys: tuple[str, ...]) -> str:
    names = ", ".join(quote(k) for k in keys)
    left = f"{_T}.{names}" if len(keys) == 1 else "(" + ", ".join(f"{_T}.{quote(k)}" for k in keys) + ")"
    inside = "GLOBAL IN" if table.distributed else "IN"
    return f"{left} {inside} (SELECT {names} FROM {_KEYS})"


def _newest_sql(table: TargetTable, keys: tuple[str, ...]) -> str:
    columns = ", ".join(_select(table))
    version = _version(table)
    if version is None:
        final = " FINAL" if table.engine.family is not Family.MERGE_TREE else ""
        return f"SELECT {columns} FROM {table.qualified} AS {_T}{final} WHERE {_where(table, keys)}"
    # Among equal versions the engine keeps the row of the later part; a part's name has its partition and number.
    newest = f"{_T}.{quote(version)} DESC, _partition_id DESC, toUInt64(splitByChar('_', _part)[2]) DESC"
    by = ", ".join(f"{_T}.{quote(k)}" for k in keys)
    found = f"SELECT {columns} FROM {table.qualified} AS {_T} WHERE {_where(table, keys)} ORDER BY {by}, {newest}"
    if not times(table) or table.place_columns <= set(keys):
        return f"{found} LIMIT 1 BY {by}"
    # The delete row that leaves a place has the time of the row at the next one.
    places = "".join(f", {e}" for e in table.sorting_elements if e not in map(quote, keys))
    engine, of = table.engine, ", ".join(quote(k) for k in keys)
    live = f", {quote(engine.is_deleted_column)}" if engine.is_deleted_column else ""
    live = f", {quote(engine.sign_column)} DESC" if engine.sign_column else live
    return (
        f"SELECT * FROM ({found} LIMIT 1 BY {by}{places}, _partition_id) "
        f"ORDER BY {of}, {quote(version)} DESC{live} LIMIT 1 BY {of}"
    )


def _version(table: TargetTable) -> str | None:
    if table.engine.version_column is None and table.engine.family is Family.MERGE_TREE:
        return "_version" if table.column("_version") is not None else None
    return table.engine.version_column


def _newest_below_sql(table: TargetTable, keys: tuple[str, ...], version: str) -> str:
    """The newest row of each key below a version of its own."""
    columns = ", ".join(_select(table))
    names = ", ".join(f"{quote(k)} AS {OWN}key{n}" for n, k in enumerate(keys))
    same = " AND ".join(f"{_T}.{quote(k)} <=> {_K}.{OWN}key{n}" for n, k in enumerate(keys))
    by = ", ".join(f"{_T}.{quote(k)}" for k in keys)
    joined = "GLOBAL INNER JOIN" if table.distributed else "INNER JOIN"
    return (
        f"SELECT {columns} FROM {table.qualified} AS {_T} "
        f"{joined} (SELECT {names}, {_BELOW} FROM {_KEYS}) AS {_K} ON {same} "
        f"WHERE {_where(table, keys)} AND {_T}.{quote(version)} < {_K}.{_BELOW} "
        f"ORDER BY {by}, {_T}.{quote(version)} DESC LIMIT 1 BY {by}"
    )


def _collapsing_sql(table: TargetTable, keys: tuple[str, ...]) -> str:
    sign = table.engine.sign_column or "_sign"
    columns = [c for c in table.columns if c.insertable]
    names = ", ".join(f"{_T}.{quote(c.name)}" for c in columns if c.name != sign)
    shown = ", ".join(f"toInt8(1) AS {quote(sign)}" if c.name == sign else _readable(c.name, c.type) for c in columns)
    inner = f"SELECT {names}, sum(toInt64({_T}.{quote(sign)})) AS {_COUNT}"
    return (
        f"SELECT {shown}, {_COUNT} FROM ({inner} FROM {table.qualified} AS {_T} WHERE {_where(table, keys)} "
        f"GROUP BY {names} HAVING {_COUNT} > 0)"
    )
