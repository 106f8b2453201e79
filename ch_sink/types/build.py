"""The converter of a column, from what is known of its source type."""

from dataclasses import replace

from ch_sink.errors import TableError
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.column import WIDE_YEARS, Column, Years
from ch_sink.types.column_type import WIDE
from ch_sink.types.connect import SourceType
from ch_sink.types.connector_modes import Encoded, Modes
from ch_sink.types.converter import Converter, Encoding
from ch_sink.types.families import Context, convert, reading_of
from ch_sink.types.literals import Reading, Shape, reading
from ch_sink.types.placeholder import placeholder
from ch_sink.types.placeholder_column import PlaceholderColumn
from ch_sink.types.propagated_type import propagated_type
from ch_sink.types.value_policy import ValuePolicy

__all__ = ["converter", "ignores_comment", "may_be_guess"]

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
    numbers: bool = False,
    years: Years = WIDE_YEARS,
) -> Converter:
    """The converter of a column's values.

    The source's type comes from ``source`` (schema envelope, registry), else the column's comment, else it is
    inferred from the column type. A comment that the column's type contradicts (`ignores_comment`) does not count.
    ``omits``: whether the source sends the unavailable-value placeholder. ``numbers``: whether JSON has decimals as
    numbers (JsonConverter's ``decimal.format=NUMERIC``). ``years``: what the server's Date32 and DateTime64 hold.
    Raises TableError, naming the column, if the two types do not go together.
    """
    try:
        target = parse_type(column.type).bare
        noted = column.stated
        found = source or noted
        if source is not None and noted is not None and noted.name and not source.name and noted.kind == source.kind:
            found = noted  # the comment says more of a plain integer or text than the schema does
        if found is not None and noted is not None and WIDE in noted.parameters and WIDE not in found.parameters:
            # Only the table knows that its column was made wide.
            found = replace(found, parameters=(*found.parameters, WIDE))
        context = Context(
            encoding,
            policy.out_of_range,
            years,
            placeholder(policy.placeholder) if omits else None,
            numbers,
            Modes.of(policy),
        )
        if source is None and found is not None and _contradicts(found, target, context):
            found = None
        if found is not None and _is_encoded(found, context.modes, declared=source is not None):
            binary = SourceType("bytes", parameters=found.parameters)
            return Encoded(_whole_column(reading(binary), target, context), context.modes.binary)
        return _whole_column(reading_of(found, target, context), target, context)
    except TableError as error:
        raise TableError(f"column {column.name!r}: {error.message}", hint=error.hint) from error


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
    context = Context("json", policy.out_of_range, WIDE_YEARS, None, False, Modes.of(policy))
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


def _is_encoded(source: SourceType, modes: Modes, *, declared: bool) -> bool:
    """Whether a binary column arrives as text in one of the modes of ``binary.handling.mode``."""
    if modes.binary == "bytes" or source.name is not None:
        return False
    if source.kind == "bytes":
        # With a schema bytes are bytes, whatever the mode: the connector would have declared a text.
        return not declared and modes.binary != "base64"
    return source.kind == "string" and propagated_type(source).is_binary
