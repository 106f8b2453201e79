"""An insert that asks its fence: ``INSERT … SELECT … FROM input(…) WHERE throwIf(…)``.

The rows travel as for a plain insert, stay one block and one part, and keep their deduplication token (tried on 26.9).
``input()`` knows no column of the table: it is told the types, and nulls become defaults on the way into the table.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import TableError
from ch_sink.table.model import TargetTable
from ch_sink.types.sql import literal, quote

__all__ = ["SETTINGS", "SUPERSEDED", "fenced", "fenced_query", "with_defaults"]

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
    # The table has its types already.
    "allow_suspicious_low_cardinality_types": 1,
    "allow_suspicious_fixed_string_types": 1,
    "allow_suspicious_variant_types": 1,
    "allow_experimental_variant_type": 1,
    "allow_experimental_dynamic_type": 1,
    "allow_experimental_json_type": 1,
    "enable_json_type": 1,
}


_NEVER_NULLABLE = frozenset({"Array", "Map", "Tuple", "Nested", "JSON", "Variant", "Dynamic", "Object"})


def fenced_query(table: TargetTable, rows: pa.Table, condition: str) -> str:
    """The query for an insert of these rows, which fails unless the condition holds."""
    return fenced([(name, _type(table, rows, name)) for name in rows.column_names], condition)


def fenced(columns: Sequence[tuple[str, str]], condition: str) -> str:
    """The same for columns of these names and types."""
    names = ", ".join(quote(name) for name, _ in columns)
    structure = ", ".join(f"{quote(name)} {kind}" for name, kind in columns)
    return f"SELECT {names} FROM input({literal(structure)}) WHERE throwIf(NOT ({condition}), 'superseded') = 0"


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


def _type(table: TargetTable, rows: pa.Table, name: str) -> str:
    """The column's type; Nullable if it has nulls that the table turns into its default."""
    bare = _bare(table, name)
    if rows.column(name).null_count and bare.partition("(")[0] not in {*_NEVER_NULLABLE, "Nullable"}:
        return f"Nullable({bare})"
    return bare


def _bare(table: TargetTable, name: str) -> str:
    """The type without LowCardinality around it, which changes no value."""
    column = table.column(name)
    if column is None:
        raise TableError(f"{table.qualified} has no column {name!r}")
    kind = column.type
    while kind.startswith("LowCardinality(") and kind.endswith(")"):
        kind = kind[len("LowCardinality(") : -1]
    return kind
