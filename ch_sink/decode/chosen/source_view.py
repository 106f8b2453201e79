"""The target table as the readers of records see it: with the source's names, and without what is chosen away."""

from dataclasses import replace

from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column

__all__ = ["source_view", "unmasked"]


def source_view(table: TargetTable, policy: ColumnPolicy) -> TargetTable:
    """The table under the source's names.

    A masked column is text, whatever its source type; an excluded one is there, so that the source's field is known,
    but is not read; an added one is not there.
    """
    source_of = {new: old for old, new in policy.rename}
    added = {name for name, _ in policy.add}
    masks = dict(policy.mask)
    named = {*source_of.values(), *policy.exclude}
    columns: list[Column] = []
    for column in table.columns:
        if column.name in added or (column.name in named and column.name not in source_of):
            continue
        name = source_of.get(column.name, column.name)
        found = replace(column, name=name)
        if name in masks:
            found = unmasked(found)
        columns.append(found)
    columns += [Column(name, "String", "ALIAS", "''") for name in policy.exclude]
    return replace(
        _without_own(table, frozenset(named)),
        columns=tuple(columns),
        sorting_key=tuple(source_of.get(name, name) for name in table.sorting_key if name not in added),
        place_columns=frozenset(source_of.get(name, name) for name in table.place_columns - added),
        left_out=frozenset(),
        added=(),
        defaults=(),
    )


def unmasked(column: Column) -> Column:
    """A masked column before it is masked: text, whatever was noted of the masks."""
    text = "Nullable(String)" if parse_type(column.type).nullable else "String"
    return replace(column, type=text, comment="", note="")


def _without_own(table: TargetTable, named: frozenset[str]) -> TargetTable:
    """The table without those of the sink's own columns whose names the source has for columns of its own."""
    if not table.system_columns & named:
        return table
    engine = table.engine

    def own(name: str | None) -> str | None:
        return None if name in named else name

    plain = replace(
        engine,
        family=Family.REPLACING,
        version_column=own(engine.version_column),
        sign_column=own(engine.sign_column),
        is_deleted_column=own(engine.is_deleted_column),
    )
    return replace(table, engine=plain)
