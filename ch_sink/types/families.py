"""The converter of each form of literal for a target type; converters of number columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ch_sink.errors import DecodeError, TableError
from ch_sink.types import nested, scalars, temporal
from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS, arrow_of, integer_bounds
from ch_sink.types.chtype import ChType
from ch_sink.types.column import ValuePolicy, Years, held_as_null
from ch_sink.types.connect import SourceType, propagated_type
from ch_sink.types.converter import Converter, Encoding, OutOfRange, PerValue, Placeholder, Reaction, shown
from ch_sink.types.decimals import (
    DecimalColumn,
    Unscaled,
    read_decimal,
    read_text,
    read_variable,
    rescale,
)
from ch_sink.types.literals import Reading, Shape, infer, reading
from ch_sink.types.nested import AnyBranch, takes_branches
from ch_sink.types.scalars import Either, SchemalessFlags, SchemalessIntegers
from ch_sink.types.temporal import Linear, fit, wide_integer
from ch_sink.types.text_columns import into_json, into_string

_TEMPORAL = ("Date", "Date32", "DateTime", "DateTime64", "Time", "Time64")


@dataclass(frozen=True, slots=True)
class Context:
    """The context that every part of a column shares."""

    encoding: Encoding
    policy: ValuePolicy
    years: Years
    known: Placeholder | None

    @property
    def reaction(self) -> Reaction:
        return self.policy.out_of_range


def of_part(part: ChType, context: Context) -> Context:
    """The context of a part of a column."""
    return replace(context, policy=held_as_null(context.policy, part))


def reading_of(source: SourceType | None, target: ChType, context: Context) -> Reading:
    """The form of a declared type's literals, else what the target suggests."""
    return infer(target, context.policy) if source is None else reading(source)


def convert(read: Reading, target: ChType, context: Context) -> Converter:
    """The converter. Raises TableError if the form does not go into the type, or nothing does."""
    if not read.only or target.name in read.only or target.name == "SimpleAggregateFunction":
        made = _families(read, target, context)
        if made is not None:
            return made
    arrow_of(target)  # raises for a type that nothing fills
    described = read.source.name or read.source.kind if read.source is not None else str(read.form)
    raise TableError(
        f"a source value of type {described} does not go into {target.name}",
        hint=_hint(read, target),
    )


def _hint(read: Reading, target: ChType) -> str:
    if read.form is Shape.INTEGER and target.name in _TEMPORAL:
        return (
            "the unit of the integer is unknown; state it in the column's comment, "
            "such as: debezium: int64 io.debezium.time.Timestamp (milliseconds)"
        )
    return "see docs/types.md for the column types that take it; String takes anything"


def _families(read: Reading, target: ChType, context: Context) -> Converter | None:
    name = target.name
    if read.source is not None and takes_branches(read.source, name):
        return AnyBranch(
            read.source, name, lambda branch: convert(reading_of(branch, target, context), target, context)
        )
    if name == "SimpleAggregateFunction":
        return convert(read, target.items[0].bare, context)
    if name == "String":
        return into_string(read, context.encoding, context.known)
    if name == "JSON":
        return into_json(read, context.encoding, context.reaction, context.known)
    if name in INTEGERS or name in WIDE_INTEGERS:
        return integer_column(read, target, context.reaction)
    if name in ("Float32", "Float64"):
        return float_column(read, target, context.reaction)
    if name == "Bool":
        return bool_column(read, context.reaction)
    if name == "Decimal":
        return decimal_column(read, target, context.reaction)
    if name in _TEMPORAL:
        return _temporal(read, target, context)
    if name in ("Array", "Map", "Tuple", "Nested", "Point"):
        return _nested(read, target, context)
    return _texts(read, target, context)


def _texts(read: Reading, target: ChType, context: Context) -> Converter | None:
    """Targets that are written from text."""
    name = target.name
    if name == "FixedString" and read.form in (
        Shape.TEXT,
        Shape.LABELS,
        Shape.BYTES,
        Shape.BITS,
    ):
        return scalars.fixed_string(target, context.reaction, read.wire)
    if name == "UUID" and read.form is Shape.TEXT:
        return scalars.Uuids(context.reaction)
    if name == "UUID" and read.form is Shape.BYTES:
        return PerValue(bytes, arrow_of(target), scalars.uuid_of, reaction=context.reaction)
    if name in ("Enum8", "Enum16") and read.form is Shape.INTEGER:
        return scalars.enum(target, context.reaction, int)
    if (name == "IPv4" and read.form in (Shape.INTEGER, Shape.BYTES)) or (name == "IPv6" and read.form is Shape.BYTES):
        return scalars.address(target, context.reaction, read.wire)
    if read.form is not Shape.TEXT and read.form is not Shape.LABELS:
        return None
    if name in ("Enum8", "Enum16"):
        return scalars.enum(target, context.reaction, str)
    if name in ("IPv4", "IPv6") and read.form is Shape.TEXT:
        return scalars.address(target, context.reaction, str)
    return None


def _temporal(read: Reading, target: ChType, context: Context) -> Converter | None:
    years = context.years.date if target.name == "Date32" else context.years.time
    reaction = context.reaction
    day_only = target.name in ("Date", "Date32")
    clock = target.name in ("Time", "Time64")
    iso: Converter
    if day_only:
        iso = temporal.iso_date(target, years, reaction)
    else:
        iso = temporal.iso_time(target, reaction) if clock else temporal.IsoColumn(target, years, reaction)
    if read.form is Shape.TEXT or (read.form is Shape.ISO_TIME if clock else read.form in (Shape.ISO, Shape.ISO_DATE)):
        return iso
    number: Converter | None = None
    if read.form is Shape.DAYS and not clock:
        number = temporal.from_days(target, years, reaction)
    elif day_only and read.form is Shape.TICKS:
        number = temporal.days_of_ticks(target, read.digits, years, reaction)
    elif not day_only and read.form is (Shape.TIME if clock else Shape.TICKS):
        number = temporal.from_ticks(target, read.digits, years, reaction)
    return Either(number, iso) if number is not None and read.guessed else number


def _nested(read: Reading, target: ChType, context: Context) -> Converter | None:
    name = target.name
    if read.form is Shape.TEXT:
        # What JSON texts hold shows itself, as in plain JSON.
        is_json = read.source is not None and read.source.name == "io.debezium.data.Json"
        inner = convert(reading_of(None, target, context), target, context) if is_json else None
        return nested.JsonTexts(inner, context.known) if inner is not None else None
    if name == "Nested":
        pairs = ChType("Tuple", target.arguments, target.names)
        return _nested(read, ChType("Array", (pairs,)), context) if read.form is Shape.ARRAY else None
    if name == "Tuple" and len(target.items) == 1 and read.form in (Shape.ARRAY, Shape.MAP):
        inner = convert(read, target.items[0].bare, context)
        return nested.Wrapped(inner, target.names[0] if target.names else "1")
    if name == "Array" and read.form is Shape.ARRAY:
        item = target.items[0].bare
        inner = convert(_part(read, item, context), item, of_part(target.items[0], context))
        return nested.Arrays(inner, context.known)
    if name == "Array" and read.form is Shape.LABELS:
        members = convert(Reading(Shape.TEXT, str), target.items[0].bare, of_part(target.items[0], context))
        return nested.Sets(nested.Arrays(members, None))
    if name == "Map" and read.form is Shape.MAP:
        return _map(read, target, context)
    if name in ("Point", "Tuple") and read.form is Shape.POINT:
        return _point(read, target)
    if name == "Tuple" and read.form in (Shape.STRUCT, Shape.GEOMETRY):
        return _struct(read, target, context)
    return None


def _part(read: Reading, target: ChType, context: Context) -> Reading:
    return reading_of(read.source.items if read.source is not None else None, target, context)


def _map(read: Reading, target: ChType, context: Context) -> Converter:
    key, item = target.items[0].bare, target.items[1].bare
    declared = read.source.keys if read.source is not None else None
    keys = convert(reading_of(declared, key, context), key, of_part(target.items[0], context))
    items = convert(_part(read, item, context), item, of_part(target.items[1], context))
    # JsonConverter writes an object for string keys and a list of pairs for all others.
    pairs = declared.kind != "string" if declared is not None else key.name not in ("String", "FixedString")
    wire = nested.pairs_wire(keys, items) if pairs else None
    return nested.Maps(keys, items, context.known, wire=wire)


def _point(read: Reading, target: ChType) -> Converter | None:
    arrow = arrow_of(target)
    if arrow.num_fields != 2 or any(f.type != pa.float64() for f in arrow):
        return None
    part = scalars.Floats(ChType("Float64"), "fail")
    return nested.Structs(arrow, ("x", "y"), ("x", "y"), (part, part), read.wire)


def _struct(read: Reading, target: ChType, context: Context) -> Converter | None:
    fields = read.source.fields if read.source is not None else ()
    if not target.names or len(fields) < len(target.names):
        return None
    by_name = {f.name: f.type for f in fields}
    parts: list[Converter] = []
    for name, item in zip(target.names, target.items, strict=True):
        if name not in by_name:
            raise TableError(
                f"the source has no field {name!r} for the tuple",
                hint=f"name the members of the tuple as the source's fields: {', '.join(by_name)}",
            )
        source = None if read.guessed else by_name[name]
        parts.append(convert(reading_of(source, item.bare, context), item.bare, of_part(item, context)))
    wire = nested.struct_wire(target.names, parts)
    attributes = tuple(f"f{i}" for i in range(len(parts)))
    return nested.Structs(arrow_of(target), target.names, attributes, tuple(parts), wire)


def integer_column(read: Reading, target: ChType, reaction: Reaction) -> Converter | None:
    """Into (U)Int8 to (U)Int256: integers, days and ticks as they are, bits, and whole numbers of any form."""
    wide = target.name in WIDE_INTEGERS
    # A signed integer is known as one where the connector propagates the column's own type.
    may_be_unsigned = read.source is None or (
        read.source.kind == "int64" and not propagated_type(read.source).is_signed
    )
    unsigned = target.name == "UInt64" and may_be_unsigned
    if not wide and read.form in (Shape.INTEGER, Shape.DAYS, Shape.TICKS, Shape.TIME):
        wire = int if read.guessed else read.wire
        limits = INTEGERS[target.name]
        made = Linear(arrow_of(target), limits, reaction=reaction, what=target.name, unsigned=unsigned, wire=wire)
        return SchemalessIntegers(made, read.wire) if read.guessed else made
    read_integer = _integer_reader(read)
    if read_integer is None:
        return None
    return whole_numbers(target, read.wire, read_integer, reaction)


def whole_numbers(target: ChType, wire: Any, read: Callable[[Any], int], reaction: Reaction) -> PerValue:
    """Into (U)Int8 to (U)Int256: what ``read`` makes of literals; it may raise OutOfRange itself."""
    low, high = integer_bounds(target) or (0, 0)
    size = WIDE_INTEGERS[target.name][0] if target.name in WIDE_INTEGERS else 0

    def one(value: Any) -> Any:
        try:
            found = fit(read(value), low, high, target.name)
        except OutOfRange as fault:
            if size and fault.nearest is not None:
                fault.nearest = wide_integer(fault.nearest, size)
            raise
        return wide_integer(found, size) if size else found

    return PerValue(wire, arrow_of(target), one, reaction=reaction)


def _integer_reader(read: Reading) -> Callable[[Any], int] | None:
    if read.form in (Shape.INTEGER, Shape.DAYS, Shape.TICKS, Shape.TIME, Shape.BOOLEAN):
        return int
    if read.form is Shape.BITS:
        return lambda value: int.from_bytes(value, "little")
    if read.form is Shape.BYTES and read.source is not None and propagated_type(read.source).is_rowversion:
        return lambda value: int.from_bytes(value, "big")
    unscaled = _unscaled_reader(read)
    return None if unscaled is None else lambda value: rescale(*unscaled(value), 77, 0)


def _unscaled_reader(read: Reading) -> Callable[[Any], Unscaled] | None:
    if read.form is Shape.DECIMAL:
        return read_decimal(read.digits)
    if read.form is Shape.VARIABLE_DECIMAL:
        return read_variable
    return read_text if read.form in (Shape.TEXT, Shape.FLOAT, Shape.INTEGER) else None


def float_column(read: Reading, target: ChType, reaction: Reaction) -> Converter | None:
    """Into Float32 or Float64: floats, and any other number or its text."""
    if read.form in (Shape.FLOAT, Shape.TEXT):
        made = scalars.Floats(target, reaction)
        return made if read.form is Shape.FLOAT else PerValue(str, made.arrow, _float_text, reaction=reaction)
    if read.form is Shape.INTEGER:
        return PerValue(read.wire, arrow_of(target), float, reaction=reaction)
    unscaled = _unscaled_reader(read)
    if unscaled is None:
        return None

    def one(value: Any) -> float:
        digits, scale = unscaled(value)
        return float(f"{digits}e{-scale}")

    return PerValue(read.wire, arrow_of(target), one, reaction=reaction)


def bool_column(read: Reading, reaction: Reaction) -> Converter | None:
    """Into Bool: booleans, 0 and 1, their texts."""
    if read.form is Shape.BOOLEAN:
        return SchemalessFlags(reaction) if read.guessed else scalars.Flags()
    if read.form is Shape.INTEGER:
        return PerValue(read.wire, pa.bool_(), scalars.flag, reaction=reaction)
    return PerValue(str, pa.bool_(), scalars.flag_text, reaction=reaction) if read.form is Shape.TEXT else None


def decimal_column(read: Reading, target: ChType, reaction: Reaction) -> Converter | None:
    """Into Decimal: decimals of any scale, and any other number or its text."""
    unscaled = _unscaled_reader(read)
    if unscaled is None:
        return None
    return DecimalColumn(
        read.wire,
        target.precision,
        target.scale,
        unscaled,
        reaction=reaction,
        source_scale=read.digits if read.form is Shape.DECIMAL else None,
    )


def _float_text(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise DecodeError(f"not a number: {shown(value)}") from None
