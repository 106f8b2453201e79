"""Whether the columns of an existing table take the source's types: what ``check`` says of each."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ch_sink.errors import REFILL_STORED, TableError
from ch_sink.table.checks import Finding
from ch_sink.table.evolve import alter, refilled
from ch_sink.table.model import TargetTable
from ch_sink.types import clickhouse_type, converter, expect_key, ignores_comment
from ch_sink.types.arrow import INTEGERS, integer_bounds
from ch_sink.types.chtype import WHOLE_RANGE, ChType, parse_type
from ch_sink.types.column import Column, TypeChoices, ValuePolicy, held, natural, unit
from ch_sink.types.connect import SourceType
from ch_sink.types.sql import literal, quote

_ZONELESS = ("Timestamp", "MicroTimestamp", "NanoTimestamp")
"""Types of numbers that are times in no zone, sent as if in UTC: DATETIME, timestamp, datetime2."""
_UTC = ("", "UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Universal", "Etc/Universal", "Etc/Zulu", "GMT", "Etc/GMT")
_NEVER_NULL = ("Array", "Map", "Nested")
_RANGES = {
    "Date": "1970-01-01 to 2149-06-06",
    "DateTime": "1970-01-01 to 2106-02-07, in whole seconds",
}


def type_findings(
    table: TargetTable,
    source: Mapping[str, SourceType | None] | None,
    key: Collection[str],
    policy: ValuePolicy,
    choices: TypeChoices | None = None,
    zone: str = "",
) -> Iterator[Finding]:
    """One finding for each column that cannot hold its source type, or not every value of it, or shows another time.

    ``source``: the source's columns with their types; None if the columns are unknown. A type is None if the events
    do not declare it: the column's comment and type decide then. ``choices``: those of ``init``. ``zone``: the
    server's, empty if unknown. Never raises.
    """
    choices = choices or TypeChoices()
    faults = 0
    for column in table.source_columns:
        if source is not None and column.name not in source:
            continue  # a column that only the table has
        declared = source[column.name] if source is not None else None
        if declared is None and ignores_comment(column, policy):
            yield _wrong_comment(table, column)
        elif declared is None:
            declared = column.stated
        for finding in _column(table, column, declared, key, policy, choices):
            faults += finding.level == "fail"
            yield finding
        if declared is not None and unit(declared) in _ZONELESS and (other := _other_zone(column, zone)):
            yield Finding(
                "warn",
                "types",
                f"{column.name} {column.type} shows times of {other}, and the source's have no zone: 12:00 there is "
                f"shown as the time in {other} when it is 12:00 in UTC",
                _change(table, column, declared, key, choices),
            )
    if not faults:
        yield Finding("ok", "types", "every column takes what its source sends")


def _column(
    table: TargetTable,
    column: Column,
    declared: SourceType | None,
    key: Collection[str],
    policy: ValuePolicy,
    choices: TypeChoices,
) -> Iterator[Finding]:
    in_key = column.name in key
    try:
        converter(declared, column, encoding="json", policy=policy, years=table.years)
    except TableError as error:
        yield Finding("fail", "types", error.message, _change(table, column, declared, key, choices) or error.hint)
        return
    if declared is None:
        return
    if in_key:
        try:
            expect_key(declared, column)
        except TableError as error:
            yield Finding("fail", "types", error.message, error.hint)
            return
    remedy = _change(table, column, declared, key, choices)
    if remedy is not None and remedy.startswith("ALTER") and not table.finds_by_all(key):
        remedy = f"{remedy}\n{REFILL_STORED}"
    less = _less(natural(declared), parse_type(column.type).bare)
    if less:
        yield Finding("warn", "types", f"{column.name} {column.type} holds less than the source: {less}", remedy)
    if declared.optional and in_key and not _holds_null(column):
        detail = (
            f"{column.name} {column.type} cannot be null, but the source's can: a null in the key becomes a dead letter"
        )
        yield Finding("warn", "types", detail, "Declare it NOT NULL at the source, or recreate the table.")
    if not declared.optional or in_key or _holds_null(column):
        return
    detail = f"{column.name} {column.type} cannot be null, but the source's can: a null is stored as"
    if parse_type(column.type).bare.name not in _NEVER_NULL:
        if remedy is not None:
            yield Finding("warn", "types", f"{detail} the column's default", remedy)
    elif choices.arrays == "nullable":
        meant = "Recreate the table with `ch_sink init`, or say that this is meant:\ninit:\n  arrays: empty_for_null"
        yield Finding("warn", "types", f"{detail} an empty one", meant)


def _other_zone(column: Column, zone: str) -> str:
    """The time zone of the column or, if it states none, that of the server, unless it is UTC; else empty."""
    kind = parse_type(column.type).bare
    shown = (kind.timezone or zone) if kind.name in ("DateTime", "DateTime64") else ""
    return "" if shown in _UTC else shown


def _wrong_comment(table: TargetTable, column: Column) -> Finding:
    own_text = column.comment[: column.comment.rfind("debezium: ")].rstrip()
    action = f"COMMENT COLUMN {quote(column.name)} {literal(own_text)}"
    return Finding(
        "warn",
        "types",
        f"{column.name} {column.type}: the comment {column.comment!r} names a type that does not fit this column "
        "and is ignored; the column's own type decides",
        "\n".join(f"{text};" for text in alter(table, [action])),
    )


def _holds_null(column: Column) -> bool:
    tree = parse_type(column.type)
    return tree.nullable or tree.name in ("Dynamic", "Variant")


def _change(
    table: TargetTable, column: Column, declared: SourceType | None, key: Collection[str], choices: TypeChoices
) -> str | None:
    """SQL that gives the column the type that ``init`` chooses, or why there is none."""
    if declared is None:
        return None
    present = parse_type(column.type).bare
    if present.name in _NEVER_NULL:
        declared = replace(declared, optional=False)  # the server makes no tuple of a list
    chosen = clickhouse_type(declared, choices, key=column.name in key, column=column.name)
    if chosen == column.type:
        return None
    if column.name in key or column.name in table.place_columns:
        by = "recreate the table with it" if column.stated is None else "`ch_sink resync CONFIG --apply`"
        return f"It is part of the table's order or partition: to get {column.name} {chosen}, {by}."
    wanted = parse_type(chosen).bare
    if wanted.name == present.name == "DateTime64" and wanted.precision > max(WHOLE_RANGE, present.precision):
        return f"`ch_sink resync CONFIG --apply` makes it {chosen}: no ALTER is safe, as that holds 1677 to 2262 only."
    altered = [f"{text};" for text in alter(table, [f"MODIFY COLUMN {quote(column.name)} {chosen}"])]
    return "\n".join((*altered, *refilled(table, key)))


def _less(source: ChType, target: ChType) -> str:
    """The source's values that the column cannot hold; empty if it holds all of them, or no number, day or time."""
    if held(source, target):
        return ""
    if source.name in ("Array", "Map"):
        return _less_in_parts(source, target)
    if source.name == target.name == "Decimal":
        whole, scale = target.precision - target.scale, target.scale
        return f"{whole} digits before the point and {scale} after it, others are handled by out_of_range"
    if source.name in INTEGERS and (bounds := integer_bounds(target)) is not None:
        return f"{bounds[0]} to {bounds[1]}, others are handled by out_of_range"
    if source.name in ("Date32", "DateTime64") and target.name in _RANGES:
        return f"{_RANGES[target.name]}; other days are handled by out_of_range"
    if source.name == "DateTime64" and target.name == "Date32":
        return "the day only"
    if source.name == target.name == "DateTime64":
        return f"more than {target.precision} fractional digits are cut off"
    return "a Float32 has seven digits" if (source.name, target.name) == ("Float64", "Float32") else ""


def _less_in_parts(source: ChType, target: ChType) -> str:
    if target.name in ("SimpleAggregateFunction", "Tuple") and len(target.items) == 1:
        return _less_in_parts(source, target.items[0].bare)
    if source.name != target.name:
        return ""
    for one, other in zip(source.items, target.items, strict=True):
        if one.nullable and not other.nullable and other.bare.name not in ("Dynamic", "Variant"):
            return f"a null in it is stored as the default of {other}"
        if less := _less(one.bare, other.bare):
            return f"in it, {less}"
    return ""
