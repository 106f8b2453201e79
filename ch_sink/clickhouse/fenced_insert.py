"""An insert that asks its fence: ``INSERT … SELECT … FROM input(…) WHERE throwIf(…)``.

The rows travel as for a plain insert, stay one block and one part, and keep their deduplication token (tried on 26.9).
``input()`` knows no column of the table: it is told the types, and nulls become defaults on the way into the table.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.clickhouse.plain_meaning import EVERY_TYPE
from ch_sink.errors import TableError
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import sent_type, travels_as_text, without_unreadable_nulls
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.sql import literal, quote

__all__ = ["SETTINGS", "SUPERSEDED", "fenced", "fenced_query", "input_type", "needs_query", "readable", "with_defaults"]

SUPERSEDED = frozenset({395, 394})
"""FUNCTION_THROW_IF_VALUE_IS_NON_ZERO, QUERY_WAS_CANCELLED: what a superseded insert may end with."""

SETTINGS: dict[str, str | int] = {
    # One block: what is read is not cut, and nothing is spread over threads.
    "max_block_size": 1 << 30,
    "max_threads": 1,
    "max_insert_threads": 1,
    # A null in a column that is not Nullable takes the column's default here, too.
    "insert_null_as_default": 1,
    # The answer is that of the ledger, not of a cache.
    "use_query_cache": 0,
    "select_sequential_consistency": 1,
    **EVERY_TYPE,
}


_NEVER_NULLABLE = frozenset({"Array", "Map", "Tuple", "Nested", "JSON", "Variant", "Dynamic", "Object"})


def fenced_query(table: TargetTable, rows: pa.Table, condition: str) -> str:
    """The query for an insert of these rows, which fails unless the condition holds, if there is one."""
    return fenced([(name, input_type(table, rows, name)) for name in rows.column_names], condition)


def fenced(columns: Sequence[tuple[str, str]], condition: str) -> str:
    """The same for columns of these names and types."""
    names = ", ".join(quote(name) for name, _ in columns)
    structure = ", ".join(f"{quote(name)} {kind}" for name, kind in columns)
    where = f" WHERE throwIf(NOT ({condition}), 'superseded') = 0" if condition else ""
    return f"SELECT {names} FROM input({literal(structure)}){where}"


def readable(table: TargetTable, rows: pa.Table) -> pa.Table:
    """The rows, with the column's or the type's default for each null that the server does not take for it."""
    rows = with_defaults(table, rows)
    for at, name in enumerate(rows.column_names):
        values = without_unreadable_nulls(rows.column(name), _column(table, name).type)
        if values is not rows.column(name):
            rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def needs_query(table: TargetTable, rows: pa.Table) -> bool:
    """Whether these rows have a null for which a plain insert fails, or stores another value.

    A null that comes as text is no default, and 26.5 stores an empty text for one in a LowCardinality column.
    """
    kinds = (_column(table, name).type for name in rows.column_names if rows.column(name).null_count)
    return any(
        kind.startswith("LowCardinality(") or (travels_as_text(kind) and not parse_type(kind).nullable)
        for kind in kinds
    )


def with_defaults(table: TargetTable, rows: pa.Table) -> pa.Table:
    """The rows; a null whose column has no Nullable form becomes the column's default, as in a plain insert."""
    for name, default in table.defaults:
        if name not in rows.column_names or not rows.column(name).null_count:
            continue
        if _bare(table, name).partition("(")[0] in _NEVER_NULLABLE:
            at, column = rows.schema.get_field_index(name), rows.column(name)
            places = np.where(np.asarray(pc.is_null(column)), len(column), np.arange(len(column)))
            whole = pa.chunked_array([*column.chunks, pa.array([default.as_py()], column.type)])
            rows = rows.set_column(at, rows.schema.field(at), whole.take(pa.array(places)))
    return rows


def input_type(table: TargetTable, rows: pa.Table, name: str) -> str:
    """The type of a column's values as sent: Nullable if it has nulls that the table turns into its default."""
    bare = _bare(table, name)
    if rows.column(name).null_count and bare.partition("(")[0] not in {*_NEVER_NULLABLE, "Nullable"}:
        return f"Nullable({bare})"
    return bare


def _bare(table: TargetTable, name: str) -> str:
    return sent_type(_column(table, name).type)


def _column(table: TargetTable, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise TableError(f"{table.qualified} has no column {name!r}")
    return column
