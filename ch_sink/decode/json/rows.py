"""How the fields of a row image are read: a typed member of a Struct for each, and the column's converter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from ch_sink.decode.json.aliases import alias
from ch_sink.decode.unknown_columns import declared_unknown, never_null
from ch_sink.model.change import UnknownColumn
from ch_sink.sources import Source
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter, converter
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import nullable
from ch_sink.types.value_policy import ValuePolicy

__all__ = ["ColumnReader", "RowReading", "read_row"]


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """One column of the target: its attribute in the row's Struct, and its converter."""

    name: str
    get: Callable[[Any], Any]
    converter: Converter
    never_null: UnknownColumn | None = None
    """The report for a null in a schemaless column whose comment states NOT NULL."""
    take: Callable[[list[Any]], list[Any]] | None = None
    """The attribute of each of these rows, faster than by ``get``."""

    def values(self, rows: list[Any]) -> list[Any]:
        """The column's literals in these rows."""
        return list(map(self.get, rows)) if self.take is None else self.take(rows)


Member = tuple[str, Any]
"""Attribute of a row's Struct, and its type."""


@dataclass(frozen=True, slots=True)
class RowReading:
    """How the fields of a row image are read, whether before or after image or flattened row."""

    readers: tuple[ColumnReader, ...]
    """All columns that a row image may have …"""
    columns: tuple[ColumnReader, ...]
    """… and those that the after images of this shape have."""
    members: tuple[Member, ...]
    present: tuple[Member, ...]
    skipped: tuple[Member, ...]
    renamed: dict[str, str]
    """Attribute → field."""
    missing: tuple[str, ...]
    tolerant: bool
    unknown: tuple[UnknownColumn, ...]
    extras: tuple[tuple[str, Callable[[Any], Any]], ...]
    reserved: tuple[tuple[str, Callable[[Any], Any]], ...]
    """Columns that the sink fills itself, which a schemaless row may have too, with their attributes."""

    def struct(
        self, name: str, members: Sequence[Member], *, required: bool, forbid: bool, more: Sequence[Any] = ()
    ) -> type[msgspec.Struct]:
        """A Struct of the row image. Optional members default to UNSET (after) or None (before).

        ``more``: further members with their types, defaults and field names.
        """
        absent: Any = msgspec.UNSET if forbid else None
        columns: list[Any] = [
            (attribute, wire)
            if required
            else (attribute, wire if wire is Any else wire | msgspec.UnsetType if _unites(wire) else wire, absent)
            for attribute, wire in members
        ]
        skipped = [(attribute, wire, msgspec.UNSET) for attribute, wire in self.skipped]
        renamed = {attribute: self.renamed[attribute] for attribute, _ in [*members, *self.skipped]}
        renamed |= {attribute: field for attribute, _, _, field in more}
        return msgspec.defstruct(
            name,
            [*columns, *skipped, *[(attribute, wire, default) for attribute, wire, default, _ in more]],
            rename={attribute: alias(field) for attribute, field in renamed.items()},
            forbid_unknown_fields=forbid,
            gc=False,
        )


def read_row(
    table: TargetTable,
    policy: ValuePolicy,
    source: Source | None,
    declared: dict[str, SourceType] | None,
    expected: frozenset[str] | None,
    extras: Sequence[str],
    *,
    numbers: bool,
) -> RowReading:
    """How the rows of a shape are read: with the ``declared`` fields, or schemaless.

    ``expected`` and ``extras``: see ``build_layout``. ``numbers``: decimals are JSON numbers.

    Raises TableError if a column cannot hold its source type.
    """
    present = declared.keys() if declared is not None else expected
    readers: list[ColumnReader] = []
    members: list[Member] = []
    renamed: dict[str, str] = {}
    missing: list[str] = []
    for column in table.source_columns:
        # The before image of a schemaless row may have any column, whichever the last after images had.
        if present is not None and column.name not in present:
            missing.append(column.name)
            if declared is not None:
                continue
        made = converter(
            declared[column.name] if declared is not None else None,
            column,
            encoding="json",
            policy=policy,
            omits=source is None or source.omits_values,
            numbers=numbers,
            years=table.years,
        )
        attribute = f"f{len(readers)}"
        renamed[attribute] = column.name
        members.append((attribute, nullable(made.wire)))
        strict = never_null(table, column) if declared is None else None
        readers.append(ColumnReader(column.name, attrgetter(attribute), made, strict, _taker(len(readers))))
    own = {c.name for c in table.columns}
    ignored = [c.name for c in table.columns if c.name not in {s.name for s in table.source_columns}]
    unknown_names = [n for n in declared if n not in own] if declared is not None else list(extras)
    skipped: list[Member] = []
    for i, name in enumerate([*unknown_names, *ignored]):
        renamed[f"x{i}"] = name
        skipped.append((f"x{i}", msgspec.Raw))
    attributes = {} if declared is not None else {field: attribute for attribute, field in renamed.items()}
    return RowReading(
        readers=tuple(readers),
        columns=tuple(r for r in readers if r.name not in missing),
        members=tuple(members),
        present=tuple(m for m in members if renamed[m[0]] not in missing),
        skipped=tuple(skipped),
        renamed=renamed,
        missing=tuple(missing),
        tolerant=declared is None and expected is None,
        unknown=() if declared is None else declared_unknown(table, declared),
        extras=tuple((n, attrgetter(attributes[n])) for n in extras if n not in table.system_columns and attributes),
        reserved=tuple((n, attrgetter(attributes[n])) for n in table.system_columns if n in attributes),
    )


@lru_cache(1024)
def _taker(number: int) -> Callable[[list[Any]], list[Any]]:
    """Reads the attribute ``f0``, ``f1``, … of rows: as code of its own in half the time of an attrgetter."""
    found: Callable[[list[Any]], list[Any]] = eval(f"lambda rows: [row.f{number} for row in rows]")
    return found


def _unites(wire: Any) -> bool:
    return wire is not msgspec.Raw
