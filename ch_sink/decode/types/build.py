"""The converter of a column: source form by target type."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ch_sink.decode.schema import SourceType
from ch_sink.decode.types import nested, scalars, temporal
from ch_sink.decode.types.base import Converter, Encoding, OutOfRange, PerValue, Reaction, shown
from ch_sink.decode.types.choose import WIDE
from ch_sink.decode.types.decimals import (
    DecimalColumn,
    Unscaled,
    read_bytes,
    read_loose,
    read_text,
    read_variable,
    rescale,
)
from ch_sink.decode.types.integers import Linear, fit, wide_integer
from ch_sink.decode.types.loose import Either, LooseFlags, LooseIntegers
from ch_sink.decode.types.placeholder import Placeholder, placeholder
from ch_sink.decode.types.reading import Form, Reading, infer, reading
from ch_sink.decode.types.target import INTEGERS, WIDE_INTEGERS, arrow_of
from ch_sink.decode.types.texts import into_json, into_string
from ch_sink.errors import DecodeError, TableError
from ch_sink.policy import Policy
from ch_sink.table.chtype import ChType, parse_type
from ch_sink.table.model import WIDE_YEARS, Column, Years

__all__ = ["converter"]


@dataclass(frozen=True, slots=True)
class _Context:
    """What holds for every part of a column."""

    encoding: Encoding
    reaction: Reaction
    years: Years
    known: Placeholder | None
    numbers: bool
    """JSON has decimals as numbers."""


def converter(
    source: SourceType | None,
    column: Column,
    *,
    encoding: Encoding,
    policy: Policy,
    omits: bool = True,
    numbers: bool = False,
    years: Years = WIDE_YEARS,
) -> Converter:
    """The converter of a column's values.

    The source's type comes from ``source`` (schema envelope, registry), else the column's comment, else it is
    inferred from the column type. ``omits``: whether the source sends the unavailable-value placeholder.
    ``numbers``: whether JSON has decimals as numbers (JsonConverter's ``decimal.format=NUMERIC``). ``years``: what
    the server's Date32 and DateTime64 hold.
    Raises TableError, naming the column, where the two types do not go together.
    """
    try:
        target = parse_type(column.type).bare
        noted = SourceType.from_comment(column.comment)
        found = source or noted
        if found is not None and noted is not None and WIDE in noted.parameters and WIDE not in found.parameters:
            # Only the table knows that its column was made wide.
            found = replace(found, parameters=(*found.parameters, WIDE))
        context = _Context(
            encoding,
            policy.out_of_range,
            years,
            placeholder(policy.placeholder) if omits else None,
            numbers,
        )
        return _convert(_reading(found, target, context), target, context)
    except TableError as error:
        raise TableError(f"column {column.name!r}: {error.message}", hint=error.hint) from error


def _reading(source: SourceType | None, target: ChType, context: _Context) -> Reading:
    return infer(target) if source is None else reading(source, numbers=context.numbers)


def _convert(read: Reading, target: ChType, context: _Context) -> Converter:
    made = _families(read, target, context)
    if made is not None:
        return made
    described = read.source.name or read.source.kind if read.source is not None else str(read.form)
    raise TableError(
        f"a source value of type {described} does not go into {target.name}",
        hint="see docs/types.md for the column types that take it; String takes anything",
    )


def _families(read: Reading, target: ChType, context: _Context) -> Converter | None:
    name = target.name
    if name == "SimpleAggregateFunction":
        return _convert(read, target.items[0].bare, context)
    if name == "String":
        return into_string(read, context.encoding, context.known)
    if name == "JSON":
        return into_json(read, context.encoding, context.known)
    if name in INTEGERS or name in WIDE_INTEGERS:
        return _integer(read, target, context)
    if name in ("Float32", "Float64"):
        return _float(read, target, context)
    if name == "Bool":
        return _bool(read, context)
    if name == "Decimal":
        return _decimal(read, target, context)
    if name in ("Date", "Date32", "DateTime", "DateTime64", "Time", "Time64"):
        return _temporal(read, target, context)
    if name in ("Array", "Map", "Tuple", "Point"):
        return _nested(read, target, context)
    return _texts(read, target, context)


def _texts(read: Reading, target: ChType, context: _Context) -> Converter | None:
    """Targets that are written from text."""
    name = target.name
    if name == "FixedString" and read.form in (Form.TEXT, Form.LABELS, Form.BYTES, Form.BITS):
        return scalars.fixed_string(target, context.reaction, read.wire)
    if name == "UUID" and read.form is Form.TEXT:
        return scalars.Uuids()
    if name == "UUID" and read.form is Form.BYTES:
        return PerValue(bytes, pa.binary(16), _sixteen, reaction=context.reaction)
    if read.form is not Form.TEXT and read.form is not Form.LABELS:
        return None
    if name in ("Enum8", "Enum16"):
        return scalars.enum(target, context.reaction)
    if name in ("IPv4", "IPv6"):
        return scalars.address(target, context.reaction)
    return None


def _integer(read: Reading, target: ChType, context: _Context) -> Converter | None:
    wide = target.name in WIDE_INTEGERS
    low, high = WIDE_INTEGERS[target.name][1:] if wide else INTEGERS[target.name]
    unsigned = target.name == "UInt64" and (read.source is None or read.source.kind == "int64")
    if not wide and read.form in (Form.INTEGER, Form.DAYS, Form.TICKS, Form.TIME):
        wire = int if read.loose else read.wire
        made = Linear(
            arrow_of(target), low, high, reaction=context.reaction, what=target.name, unsigned=unsigned, wire=wire
        )
        return LooseIntegers(made, read.wire) if read.loose else made
    read_integer = _integer_reader(read)
    if read_integer is None:
        return None
    size = WIDE_INTEGERS[target.name][0] if wide else 0

    def one(value: Any) -> Any:
        try:
            found = fit(read_integer(value), low, high, target.name)
        except OutOfRange as fault:
            if wide and fault.nearest is not None:
                fault.nearest = wide_integer(fault.nearest, size)
            raise
        return wide_integer(found, size) if wide else found

    return PerValue(read.wire, arrow_of(target), one, reaction=context.reaction)


def _integer_reader(read: Reading) -> Callable[[Any], int] | None:
    if read.form in (Form.INTEGER, Form.DAYS, Form.TICKS, Form.TIME, Form.BOOLEAN):
        return int
    if read.form is Form.BITS:
        return lambda value: int.from_bytes(value, "little")
    unscaled = _unscaled_reader(read)
    return None if unscaled is None else lambda value: rescale(*unscaled(value), 77, 0)


def _unscaled_reader(read: Reading) -> Callable[[Any], Unscaled] | None:
    if read.loose and read.form is Form.DECIMAL:
        return read_loose(read.digits)
    if read.form is Form.DECIMAL:
        return read_bytes(read.digits)
    if read.form is Form.VARIABLE_DECIMAL:
        return read_variable
    return read_text if read.form in (Form.TEXT, Form.FLOAT, Form.INTEGER) else None


def _float(read: Reading, target: ChType, context: _Context) -> Converter | None:
    if read.form in (Form.FLOAT, Form.TEXT):
        made = scalars.Floats(target, context.reaction)
        return made if read.form is Form.FLOAT else PerValue(str, made.arrow, _float_text, reaction=context.reaction)
    if read.form is Form.INTEGER:
        return PerValue(read.wire, arrow_of(target), float, reaction=context.reaction)
    unscaled = _unscaled_reader(read)
    if unscaled is None:
        return None

    def one(value: Any) -> float:
        digits, scale = unscaled(value)
        return float(f"{digits}e{-scale}")

    return PerValue(read.wire, arrow_of(target), one, reaction=context.reaction)


def _bool(read: Reading, context: _Context) -> Converter | None:
    if read.form is Form.BOOLEAN:
        return LooseFlags(context.reaction) if read.loose else scalars.Flags()
    if read.form is Form.INTEGER:
        return PerValue(read.wire, pa.bool_(), scalars.flag, reaction=context.reaction)
    return None


def _decimal(read: Reading, target: ChType, context: _Context) -> Converter | None:
    unscaled = _unscaled_reader(read)
    if unscaled is None:
        return None
    return DecimalColumn(
        read.wire,
        target.precision,
        target.scale,
        unscaled,
        reaction=context.reaction,
        source_scale=read.digits if read.form is Form.DECIMAL else None,
    )


def _temporal(read: Reading, target: ChType, context: _Context) -> Converter | None:
    years = context.years.date if target.name == "Date32" else context.years.time
    reaction = context.reaction
    day_only = target.name in ("Date", "Date32")
    clock = target.name in ("Time", "Time64")
    iso: Converter = (
        temporal.iso_date(target, years, reaction) if day_only else temporal.IsoColumn(target, years, reaction)
    )
    if read.form in (Form.ISO, Form.ISO_DATE, Form.ISO_TIME, Form.TEXT):
        return iso
    number: Converter | None = None
    if read.form is Form.DAYS and not clock:
        number = temporal.from_days(target, years, reaction)
    elif day_only and read.form is Form.TICKS:
        number = temporal.days_of_ticks(target, read.digits, years, reaction)
    elif not day_only and read.form is (Form.TIME if clock else Form.TICKS):
        number = temporal.from_ticks(target, read.digits, years, reaction)
    elif read.form is Form.INTEGER:
        # An integer without a semantic name: what the column's own precision suggests.
        return _temporal(infer(target), target, context)
    return Either(number, iso) if number is not None and read.loose else number


def _nested(read: Reading, target: ChType, context: _Context) -> Converter | None:
    name = target.name
    if name == "Tuple" and len(target.items) == 1 and read.form in (Form.ARRAY, Form.MAP):
        inner = _convert(read, target.items[0].bare, context)
        return nested.Wrapped(inner, target.names[0] if target.names else "1")
    if name == "Array" and read.form is Form.ARRAY:
        item = target.items[0].bare
        return nested.Arrays(_convert(_part(read, item, context), item, context), context.known)
    if name == "Array" and read.form is Form.LABELS:
        return PerValue(str, arrow_of(target), _split, reaction=context.reaction)
    if name == "Map" and read.form is Form.MAP:
        return _map(read, target, context)
    if name in ("Point", "Tuple") and read.form is Form.POINT:
        return _point(read, target)
    if name == "Tuple" and read.form is Form.STRUCT:
        return _struct(read, target, context)
    return None


def _part(read: Reading, target: ChType, context: _Context) -> Reading:
    return _reading(read.source.items if read.source is not None else None, target, context)


def _map(read: Reading, target: ChType, context: _Context) -> Converter:
    key, item = target.items[0].bare, target.items[1].bare
    declared = read.source.keys if read.source is not None else None
    keys = _convert(_reading(declared, key, context), key, context)
    items = _convert(_part(read, item, context), item, context)
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


def _struct(read: Reading, target: ChType, context: _Context) -> Converter | None:
    fields = read.source.fields if read.source is not None else ()
    if not target.names or len(fields) < len(target.names):
        return None
    by_name = {f.name: f.type for f in fields}
    parts: list[Converter] = []
    for name, item in zip(target.names, target.items, strict=True):
        if name not in by_name:
            raise TableError(f"the source has no field {name!r} for the tuple")
        parts.append(_convert(_reading(None if read.loose else by_name[name], item.bare, context), item.bare, context))
    wire = nested.struct_wire(target.names, parts)
    attributes = tuple(f"f{i}" for i in range(len(parts)))
    return nested.Structs(arrow_of(target), target.names, attributes, tuple(parts), wire)


def _sixteen(value: bytes) -> bytes:
    if len(value) != 16:
        raise DecodeError(f"a UUID has 16 bytes, found {len(value)}")
    return value


def _float_text(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise DecodeError(f"no number: {shown(value)}") from None


def _split(value: str) -> list[str]:
    return value.split(",") if value else []
