"""TRUNCATE at the source, as a statement over the target: every row below the floor is marked as gone.

The statement is an ``INSERT … SELECT`` that looks at what is live, so that running it again changes nothing.
"""

from ch_sink.errors import TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.arrow import sql_value
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import quote


def truncate_statement(table: TargetTable, floor: int, version_column: str | None, condition: str = "") -> str:
    """SQL that deletes all rows of the stream whose version lies below ``floor``.

    ``condition``: of a fence, without which it fails; empty for none.

    Rows with other values of the added columns that belong to the key are those of other topics, and stay.

    Raises:
        TableError: the table can mark no row as deleted, or stores no version.
    """
    engine = table.engine
    if version_column is None:
        raise TableError(
            f"a truncate cannot be applied to {table.qualified}: it stores no version",
            hint="Set truncate: ignore, or re-create the table with `ch_sink init`.",
        )
    version = quote(version_column)
    kind = next(c.type for c in table.columns if c.name == version_column)
    bound = f"to{kind}('{floor}')" if kind.startswith(("UInt", "Int")) else None
    if bound is None:
        raise TableError(
            f"a truncate cannot be applied to {table.qualified}: its {kind} version is not a position",
            hint="Set truncate: ignore, or use a UInt128 version column.",
        )
    columns = [quote(c.name) for c in table.stored_columns]
    mine = _own_rows(table)
    if condition:
        mine += f" AND throwIf(NOT ({condition}), 'superseded') = 0"
    if engine.family is Family.REPLACING and (engine.is_deleted_column or engine.sign_column):
        mark = quote(engine.is_deleted_column or engine.sign_column or "")
        gone = "1" if engine.is_deleted_column else "-1"
        return _insert(
            table,
            [*columns, version, mark],
            [*columns, bound, gone],
            f"FROM {table.qualified} FINAL WHERE {version} < {bound} AND {mark} != {gone}{mine}",
        )
    if engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
        sign = quote(engine.sign_column or "")
        return _insert(
            table,
            [*columns, version, sign],
            [*columns, version, "-1"],
            # A row that changed its table partition is paired inside each partition only.
            f"FROM {table.qualified} FINAL WHERE {version} < {bound} AND {sign} > 0{mine} "
            "SETTINGS do_not_merge_across_partitions_select_final = 1",
        )
    raise TableError(
        f"a truncate cannot be applied to {table.qualified} ({engine.name})",
        hint="Set truncate: ignore or fail.",
    )


def _own_rows(table: TargetTable) -> str:
    """The condition for rows of this stream in a table of several topics."""
    conditions = []
    for name, value in table.added:
        column = table.column(name)
        if column is None or name not in table.sorting_key:
            continue
        text = sql_value(value, parse_type(column.type))
        if text is None:
            raise TableError(
                f"a truncate cannot be applied to {table.qualified}: the added column {name!r} is a {column.type}",
                hint="Set truncate: ignore or fail, or make the column a String or an integer.",
            )
        conditions.append(f" AND {quote(name)} = {text}")
    return "".join(conditions)


def _insert(table: TargetTable, columns: list[str], values: list[str], rest: str) -> str:
    return f"INSERT INTO {table.qualified} ({', '.join(columns)}) SELECT {', '.join(values)} {rest}"


def own_rows(table: TargetTable, chosen: ColumnPolicy) -> str:
    """The condition on the rows of the stream; empty if all rows are, or if those of other topics may replace them."""
    added = [(name, sql) for name, sql in chosen.add if name in chosen.source]
    if table.engine.family is not Family.MERGE_TREE and any(name not in table.sorting_key for name, _ in added):
        return ""
    return " AND ".join(f"{quote(name)} = {sql}" for name, sql in added if table.column(name) is not None)
