"""Source columns that the table lacks, as the user's choices make them."""

from collections.abc import Sequence
from dataclasses import replace

from ch_sink.decode.chosen.masks import masked_text
from ch_sink.errors import StreamFailed
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import TargetTable
from ch_sink.types.chtype import parse_type
from ch_sink.types.lexer import Kind, tokenize
from ch_sink.types.sql import literal

__all__ = ["chosen_unknown"]


def chosen_unknown(
    found: Sequence[UnknownColumn], table: TargetTable, chosen: ColumnPolicy, evolve: str
) -> list[UnknownColumn]:
    """The columns under the table's names; masked ones as text, excluded ones not at all.

    Raises StreamFailed for one whose name another column is renamed to or an added one has, unless new columns are
    ignored.
    """
    masks = dict(chosen.mask)
    taken = {new for _, new in chosen.rename} | {name for name, _ in chosen.add}
    renamed = {old for old, _ in chosen.rename}
    out: list[UnknownColumn] = []
    for column in found:
        if column.name in chosen.exclude:
            continue
        if column.name in taken and column.name not in renamed:
            if evolve != "ignore":
                raise _taken(column.name, column.first_offset, table, dict(chosen.add))
            continue
        name = chosen.target(column.name)
        if column.name in masks:
            column = _masked(column, masks[column.name], chosen.mask_key)
        after = (
            None if column.after in chosen.exclude else chosen.target(column.after) if column.after else column.after
        )
        change = "reserved" if name in table.system_columns else column.change
        out.append(replace(column, name=name, after=after, change=change))
    return out


def _masked(column: UnknownColumn, kind: str, key: str) -> UnknownColumn:
    if column.clickhouse_type is None:
        return replace(column, comment="")
    text = "Nullable(String)" if parse_type(column.clickhouse_type).nullable else "String"
    return replace(column, clickhouse_type=text, comment="", default=_default(column.default, kind, key))


def _default(default: str | None, kind: str, key: str) -> str | None:
    """The default of rows that existed before the column did, masked where it is a plain text or number."""
    tokens = tokenize(default) if default else []
    if len(tokens) == 1 and tokens[0].kind in (Kind.STRING, Kind.NUMBER):
        return literal(masked_text(tokens[0].value, kind, key))
    return None


def _taken(name: str, offset: int, table: TargetTable, added: dict[str, str]) -> StreamFailed:
    by = "columns.add fills" if name in added else "columns.rename fills"
    return StreamFailed(
        f"the change event at offset {offset} has a column {name!r}, and {by} the column {name!r} of "
        f"{table.qualified} with something else",
        hint=f"name {name!r} in columns.exclude, or give it another name in columns.rename",
    )
