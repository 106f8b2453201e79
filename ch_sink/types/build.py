"""The converter of a column, from what is known of its source type, and the column's default as SQL."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from ch_sink.errors import DecodeError, TableError
from ch_sink.types.arrow import sql_value
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.column import WIDE, WIDE_YEARS, Column, ValuePolicy, Years, clickhouse_type, one_to_one
from ch_sink.types.connect import MOMENTS, SourceType, is_epoch, propagated_type
from ch_sink.types.converter import Converter, Encoding, PlaceholderColumn, placeholder
from ch_sink.types.families import Context, convert, of_part, reading_of
from ch_sink.types.literals import Encoded, Reading, Shape, reading
from ch_sink.types.sql import Kind, columns_in, tokenize

_KNOW_IT = ("String", "JSON", "Array", "Map", "Tuple", "Nested", "SimpleAggregateFunction")
"""Targets whose converters know the placeholder themselves."""
_NEVER_OMITTED = ("io.debezium.data.Uuid", "io.debezium.time.ZonedTime")
"""Types whose values are never long enough to be left out."""
_GUESSES = frozenset(("boolean", "int64", "float64", "string", "struct"))


def converter(
    source: SourceType | None,
    column: Column,
    *,
    encoding: Encoding,
    policy: ValuePolicy,
    omits: bool = True,
    years: Years = WIDE_YEARS,
) -> Converter:
    """The converter of a column's values.

    The source's type comes from ``source`` (schema envelope, registry), else the column's comment, else it is
    inferred from the column type. A comment that the column's type contradicts (`ignores_comment`) does not count.
    ``omits``: whether the source sends the unavailable-value placeholder. ``years``: what the
    server's Date32 and DateTime64 hold. Raises TableError, naming the column, if the two types do not go together.
    """
    try:
        tree = parse_type(column.type)
        target = tree.bare
        context = Context(encoding, policy, years, placeholder(policy.placeholder) if omits else None)
        found, is_encoded = _resolved(source, column.stated, target, context)
        context = of_part(tree, context)
        if found is not None and is_encoded:
            return Encoded(_whole_column(reading(found), target, context), policy.binary_handling)
        return _whole_column(reading_of(found, target, context), target, context)
    except TableError as error:
        raise TableError(f"column {column.name!r}: {error.message}", hint=error.hint) from error


def read_as(source: SourceType | None, column: Column, policy: ValuePolicy) -> SourceType | None:
    """The type by which `converter` reads a column's values; None if it infers one from the column's type."""
    target = parse_type(column.type).bare
    return _resolved(source, column.stated, target, Context("json", policy, WIDE_YEARS, None))[0]


def _resolved(
    source: SourceType | None, noted: SourceType | None, target: ChType, context: Context
) -> tuple[SourceType | None, bool]:
    """The type by which values are read, None if that is inferred, and whether they are bytes in a text's form."""
    found = source or noted
    if source is not None and noted is not None and noted.names(source):
        found = noted
    if found is not None and noted is not None and WIDE in noted.parameters and WIDE not in found.parameters:
        # Only the table knows that its column was made wide.
        found = replace(found, parameters=(*found.parameters, WIDE))
    if source is None and found is not None and _contradicts(found, target, context):
        found = None
    if found is not None and _is_encoded(found, context.policy.binary_handling, declared=source is not None):
        return SourceType("bytes", parameters=found.parameters), True
    return found, False


def expect_key(source: SourceType | None, column: Column) -> None:
    """Raises TableError if two keys of the source can be one value of the column. None: the source states no type."""
    if source is None or one_to_one(source, column):
        return
    raise TableError(
        f"column {column.name!r}: keys of type {source.name or source.kind} that differ can be one value of "
        f"{column.type}",
        hint=f"recreate the table with {column.name} {clickhouse_type(source, key=True)}, with ch_sink resync",
    )


def ignores_comment(column: Column, policy: ValuePolicy) -> bool:
    """Whether the column's comment names a bare type that does not go into the column, so that the column decides.

    Early versions of ``init`` wrote such comments from the values of plain JSON: int64 on a DateTime64 column.
    """
    noted = column.stated
    if noted is None:
        return False
    try:
        target = parse_type(column.type).bare
    except TableError:
        return False
    context = Context("json", policy, WIDE_YEARS, None)
    return _contradicts(noted, target, context)


def may_be_guess(noted: SourceType) -> bool:
    """Whether a type says no more than values of plain JSON show."""
    return noted.kind in _GUESSES and noted == SourceType(noted.kind)


def _contradicts(noted: SourceType, target: ChType, context: Context) -> bool:
    if not may_be_guess(noted):
        return False
    try:
        convert(reading_of(noted, target, context), target, context)
    except TableError:
        return True
    return False


def _whole_column(read: Reading, target: ChType, context: Context) -> Converter:
    """The converter of a whole column, which knows the placeholder whatever the column's type is."""
    made = convert(read, target, context)
    known, form = context.known, read.form
    if known is None or target.name in _KNOW_IT or (read.source is not None and read.source.name in _NEVER_OMITTED):
        return made
    if form is Shape.TEXT or form is Shape.LABELS:
        return PlaceholderColumn(made, known.is_text)
    return PlaceholderColumn(made, known.is_bytes) if form is Shape.BYTES else made


def _is_encoded(source: SourceType, mode: str, *, declared: bool) -> bool:
    """Whether a binary column arrives as text in one of the modes of ``binary.handling.mode``."""
    if mode == "bytes" or source.name is not None:
        return False
    if source.kind == "bytes":
        # With a schema bytes are bytes, whatever the mode: the connector would have declared a text.
        return not declared and mode != "base64"
    return source.kind == "string" and propagated_type(source).is_binary


_EXPRESSION = re.compile(r"::|^\(.*\)$|^[\w.]+\(.*\)$", re.DOTALL)
_CONSTANT = re.compile(r"CAST|_CAST|AS|true|false|NULL|tuple|array|map|unhex|to[A-Z]\w*|fromUnixTimestamp\w*|[A-Z]\w+")


def default_sql(
    source: SourceType, column_type: str, columns: Collection[str] = (), years: Years = WIDE_YEARS
) -> str | None:
    """The expression for DEFAULT; None if there is no default, it is null, or the column cannot hold it.

    ``source.default`` is a literal as events with a schema have it (decimals in base64, times as numbers), and it is
    converted as theirs are. ``columns``: the row's columns. A text is a value, whatever it looks like, unless it is an
    expression over these: PostgreSQL's connector states the expression of a generated column as its default.
    """
    value = source.default
    if not source.has_default or value is None or (source.name in MOMENTS and is_epoch(value)):
        return None
    if source.kind == "string" and (_is_generated(str(value), columns) or propagated_type(source).is_binary):
        return None  # a binary column that comes as text: in which encoding, the schema does not say
    try:
        column = Column("default", column_type)
        made = converter(source, column, encoding="json", policy=ValuePolicy(), omits=False, years=years)
        found = made.convert([_literal(value, made)]).array[0]
    except (DecodeError, TableError):
        return None
    return sql_value(found, parse_type(column_type)) if found.is_valid else None


def default_text(source: SourceType, columns: Collection[str] = ()) -> str | None:
    """The default as a column of text holds it, which is what a mask is made of; None as for `default_sql`."""
    sql = default_sql(source, "String", columns)
    tokens = tokenize(sql) if sql else []
    return tokens[0].value if len(tokens) == 1 and tokens[0].kind is Kind.STRING else None


def wide_enough(source: SourceType, years: Years) -> SourceType:
    """The type; marked wide if its default is beyond the server's dates, so that its column is text."""
    kind = clickhouse_type(source)
    if default_sql(source, kind, years=years) is not None or default_sql(source, kind) is None:
        return source
    return replace(source, parameters=(*source.parameters, WIDE))


def without_expression(source: SourceType, columns: Collection[str]) -> SourceType:
    """The type without a default that is an expression over the row's columns: it holds under their names only."""
    stated = source.default if source.has_default and source.kind == "string" else None
    if stated is None or not _is_generated(str(stated), columns):
        return source
    return replace(source, default=None, has_default=False)


def _literal(value: object, made: Converter) -> Any:
    """The literal as the decoder of events hands it to the converter."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=made.wire)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise DecodeError(f"the schema's default is not a literal of its type: {error}") from error


def _is_generated(text: str, columns: Collection[str]) -> bool:
    if not columns or _EXPRESSION.search(text) is None:
        return False
    try:
        return bool(columns_in(text, columns))
    except TableError:  # no SQL
        return False


def is_constant(expression: str, columns: Collection[str]) -> bool:
    """Whether a DEFAULT is a literal, perhaps converted: no column in it, and nothing that varies as now() does."""
    if columns_in(expression, columns):
        return False
    return all(_CONSTANT.fullmatch(t.value) for t in tokenize(expression) if t.kind in (Kind.NAME, Kind.QUOTED))
