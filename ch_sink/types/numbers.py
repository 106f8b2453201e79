"""Number columns: which form of literal goes into integers, floats, decimals and booleans, and how."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ch_sink.errors import DecodeError
from ch_sink.types import scalars
from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS, arrow_of
from ch_sink.types.chtype import ChType
from ch_sink.types.converter import Converter, OutOfRange, PerValue, Reaction, shown
from ch_sink.types.decimals import (
    DecimalColumn,
    Unscaled,
    read_any_decimal,
    read_bytes,
    read_text,
    read_variable,
    rescale,
)
from ch_sink.types.integers import Linear, fit, wide_integer
from ch_sink.types.literals import Reading, Shape
from ch_sink.types.propagated_type import propagated_type
from ch_sink.types.schemaless import SchemalessFlags, SchemalessIntegers

__all__ = ["bool_column", "decimal_column", "float_column", "integer_column"]


def integer_column(read: Reading, target: ChType, reaction: Reaction) -> Converter | None:
    """Into (U)Int8 to (U)Int256: integers, days and ticks as they are, bits, and whole numbers of any form."""
    wide = target.name in WIDE_INTEGERS
    low, high = WIDE_INTEGERS[target.name][1:] if wide else INTEGERS[target.name]
    # A signed integer is known as one where the connector propagates the column's own type.
    may_be_unsigned = read.source is None or (
        read.source.kind == "int64" and not propagated_type(read.source).is_signed
    )
    unsigned = target.name == "UInt64" and may_be_unsigned
    if not wide and read.form in (Shape.INTEGER, Shape.DAYS, Shape.TICKS, Shape.TIME):
        wire = int if read.guessed else read.wire
        made = Linear(arrow_of(target), low, high, reaction=reaction, what=target.name, unsigned=unsigned, wire=wire)
        return SchemalessIntegers(made, read.wire) if read.guessed else made
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

    return PerValue(read.wire, arrow_of(target), one, reaction=reaction)


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
    if read.guessed and read.form is Shape.DECIMAL:
        return read_any_decimal(read.digits)
    if read.form is Shape.DECIMAL:
        return read_bytes(read.digits)
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
        raise DecodeError(f"no number: {shown(value)}") from None
