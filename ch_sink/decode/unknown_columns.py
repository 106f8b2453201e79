"""Finds source fields that the table lacks or has with an older type: they start schema evolution.

A field gets the column that ``init`` would create for it. If no schema declares it (plain JSON), its values decide:
boolean, integer, number, text, JSON for the rest, always nullable. A field that has only been null needs no column yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ch_sink.model.change import UnknownColumn
from ch_sink.table.evolve import filled
from ch_sink.table.model import Family, TargetTable
from ch_sink.types import clickhouse_type
from ch_sink.types.build import default_sql, default_text, wide_enough
from ch_sink.types.chtype import ChType, parse_type, widened
from ch_sink.types.column import Column, counts, held, natural, out_of_range, unit
from ch_sink.types.connect import SourceType

_MOST_VALUES = 1000
"""How many values are examined to find the type of a schemaless field."""


def declared_unknown(table: TargetTable, declared: Mapping[str, SourceType]) -> tuple[UnknownColumn, ...]:
    """The fields that a row image's schema declares and that the table lacks or has with another type."""
    out: list[UnknownColumn] = []
    previous = ""
    for name, source in declared.items():
        column = table.column(name)
        if name in table.system_columns:
            out.append(reserved(name))
        elif column is None:
            source = wide_enough(source, table.years)
            chosen = clickhouse_type(source)
            default = default_sql(source, chosen, declared.keys(), table.years)
            new = UnknownColumn(name, -1, chosen, default, source.to_comment(), previous)
            known, doubtful = filled(source, default), source.default_is == "doubtful"
            out.append(replace(new, filled=known, doubtful=doubtful, default_text=default_text(source, declared)))
        elif column.insertable:
            changed = outgrown(table, column, source)
            if table.engine.family is Family.MERGE_TREE and _narrowed(column, source):
                only = UnknownColumn(name, -1, None, None, source.to_comment(), change="narrow")
                changed = replace(changed or only, narrow=True)
            out.extend([changed] if changed is not None else [])
        previous = name
    return tuple(out)


def reserved(name: str) -> UnknownColumn:
    """The report for a field with the name of a column that the sink fills itself."""
    return UnknownColumn(name, -1, None, change="reserved")


def outgrown(table: TargetTable, column: Column, source: SourceType) -> UnknownColumn | None:
    """The change of a column whose comment states an older source type; columns without one are the user's."""
    noted = column.stated
    if noted is None:
        return None
    now = SourceType.from_comment(source.to_comment())  # the default is not part of the type
    if now is None or now == noted:
        return None
    placed = column.name in table.place_columns
    wide = widened(column.type, clickhouse_type(source), may_be_nullable=not placed)
    change = _retyped(column, noted, now, wide, placed)
    if change == "type":
        return UnknownColumn(column.name, -1, None, None, source.to_comment(), change=change)
    if change is None and _lets_null_in(column, noted, source.optional):
        possible = wide if wide is not None and not placed and parse_type(wide).nullable else None
        return UnknownColumn(column.name, -1, possible, None, source.to_comment(), change="null")
    if wide is None or placed:
        return None
    return UnknownColumn(column.name, -1, wide, None, source.to_comment(), change=change or "widen")


def _narrowed(column: Column, source: SourceType) -> bool:
    """Whether values of the type that the comment states may not be ones of the present type."""
    noted = column.stated
    if noted is None or noted.names(source):
        return False
    # Of another type the same value is another text.
    same = (noted.kind, noted.name) == (source.kind, source.name)
    return not held(natural(noted), _natural(source, noted) if same else natural(source))


def _retyped(
    column: Column, noted: SourceType, now: SourceType, wide: str | None, placed: bool
) -> Literal["type", "refine"] | None:
    """``type``: neither the column nor a wider one is for the present type. ``refine``: only the wider one is, and the
    column would round values. None: it holds them, or what it does not hold is out of its range.
    """
    if noted.names(now) and SourceType.from_comment(column.comment) is not None:
        return None  # the comment decides
    target, was, becomes = parse_type(column.type).bare, natural(noted), _natural(now, noted)
    if counts(target) and unit(noted) != unit(now):
        return "type"
    if held(becomes, was) or held(becomes, target):
        return None
    if wide is None or not held(becomes, parse_type(wide).bare):
        return "type"
    if out_of_range(becomes, target):
        return None
    return "type" if placed else "refine"


def _natural(now: SourceType, noted: SourceType) -> ChType:
    """The natural type of the present values, with what samples showed when the comment was written."""
    known = {name for name, _ in now.parameters}
    samples = tuple((n, v) for n, v in noted.parameters if n.startswith("ch_sink.") and n not in known)
    return natural(replace(now, parameters=(*now.parameters, *samples)))


def _lets_null_in(column: Column, noted: SourceType, optional: bool) -> bool:
    return optional and not noted.optional and not parse_type(column.type).nullable


def never_null(table: TargetTable, column: Column) -> UnknownColumn | None:
    """The report for a null in a schemaless column whose comment states that the source's column is NOT NULL."""
    noted = column.stated
    if noted is None or not _lets_null_in(column, noted, True):
        return None
    placed = column.name in table.place_columns
    now = replace(noted, optional=True)
    wide = None if placed else widened(column.type, clickhouse_type(now))
    possible = wide if wide is not None and parse_type(wide).nullable else None
    return UnknownColumn(column.name, -1, possible, None, now.to_comment(), change="null")


def observed(name: str, literals: Iterable[Any], after: str | None) -> UnknownColumn:
    """A schemaless field, typed by its JSON literals (``msgspec.Raw``); without a type if all of them are null."""
    found: SourceType | None = None
    seen = 0
    for raw in literals:
        if bytes(raw) == b"null":
            continue
        found = join_types(found, _shown_by(raw))
        seen += 1
        if seen == _MOST_VALUES:
            break
    if found is None:
        return UnknownColumn(name, -1, None, after=after)
    return UnknownColumn(name, -1, clickhouse_type(found), None, found.to_comment(), after, inferred=True)


def _shown_by(raw: Any) -> SourceType | None:
    """The type that a literal shows. One that cannot be read is a fault of its record once the column exists."""
    try:
        return literal_type(msgspec.json.decode(raw))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return SourceType("string" if bytes(raw)[:1] == b'"' else "struct")


def literal_type(value: Any) -> SourceType | None:
    """The type that one schemaless literal shows; None for null."""
    if value is None:
        return None
    kinds = {bool: "boolean", int: "int64", float: "float64", str: "string"}
    return SourceType(kinds.get(type(value), "struct"))


def join_types(one: SourceType | None, other: SourceType | None) -> SourceType | None:
    """The type of a schemaless field with values of both types."""
    if one is None or other is None or one == other:
        return one or other
    if {one.kind, other.kind} == {"int64", "float64"}:
        return SourceType("float64")
    return SourceType("struct")


class _AnyRow(msgspec.Struct, gc=False):
    after: msgspec.Raw = msgspec.Raw(b"null")


_rows = msgspec.json.Decoder(_AnyRow)
_images = msgspec.json.Decoder(dict[str, msgspec.Raw])


def field_before(name: str, payload: bytes) -> str | None:
    """The field before this one in a payload's row image, empty for the first; None if the image lacks it."""
    after = _rows.decode(payload).after
    # A flattened row has no image; it may have a column of that name.
    names = list(_images.decode(after)) if bytes(after)[:1] == b"{" else []
    if name not in names:
        return None
    at = names.index(name)
    return names[at - 1] if at else ""


def joined(found: Sequence[UnknownColumn]) -> list[UnknownColumn]:
    """Each column once, by its first offset; a field with values of two types gets one that holds both."""
    out: dict[str, UnknownColumn] = {}
    for column in sorted(found, key=lambda c: c.first_offset):
        known = out.get(column.name)
        out[column.name] = column if known is None else _both(known, column)
    return list(out.values())


def _both(first: UnknownColumn, later: UnknownColumn) -> UnknownColumn:
    for change in ("type", "refine"):  # these stop a stream that may ignore the others
        if change in (first.change, later.change):
            return first if first.change == change else later
    if first.clickhouse_type is None or later.clickhouse_type is None:
        typed = later if first.clickhouse_type is None else first
        return replace(typed, first_offset=first.first_offset)
    if first.clickhouse_type == later.clickhouse_type:
        return first
    wide = widened(first.clickhouse_type, later.clickhouse_type)
    if wide is not None:
        return replace(first, clickhouse_type=wide, comment=later.comment, default=later.default or first.default)
    shown = [SourceType.from_comment(c.comment) for c in (first, later)]
    if all(s is not None and s.name is None and s.optional and not s.parameters for s in shown):
        both = join_types(*shown)  # plain literals: a number and an integer, a text and an object
        if both is not None and both not in shown:
            return replace(first, clickhouse_type=clickhouse_type(both), comment=both.to_comment())
        if both is not None and both == shown[1]:
            return replace(later, first_offset=first.first_offset)
    return first
