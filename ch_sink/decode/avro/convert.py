"""Vectors to the columns of a batch; every value that cannot be converted is reported with its record."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from ch_sink.decode.avro.scanned import Texts
from ch_sink.decode.avro.vectors import NotText, Vector
from ch_sink.decode.json.columns import UNCONVERTED, Fault
from ch_sink.errors import DecodeError, PositionError
from ch_sink.model.change import BadRecord
from ch_sink.types import Converted, Converter, OutOfRange
from ch_sink.types.converter import takes_arrow

__all__ = ["block_column", "convert", "culprits", "listed", "objects", "texts"]

_REFUSED = (DecodeError, PositionError, *UNCONVERTED)


def convert(name: str, converter: Converter, vector: Vector, places: Sequence[int]) -> Converted:
    """A column's values; ``places``: the datums' places in the chunk. Raises Fault."""
    try:
        values = vector.column()
    except NotText as error:
        raise Fault(
            str(error), certain=[BadRecord(places[i], f"column {name!r}: {error}", column=name) for i in error.places]
        ) from error
    if isinstance(values, pa.Array) and not takes_arrow(converter):
        values = values.to_pylist()
    try:
        return converter.convert(values)
    except _REFUSED as error:
        literals = values.to_pylist() if isinstance(values, pa.Array) else values
        found = culprits(converter.convert, literals)
        raise Fault(
            f"column {name!r}: {error}",
            column=name,
            certain=[BadRecord(places[i], f"column {name!r}: {why}", _kind(why), name) for i, why in found],
        ) from error


def culprits(function: Callable[[Any], Any], values: Sequence[Any]) -> list[tuple[int, Exception]]:
    """Places and reasons of the values that a bulk function refuses, found by halving."""
    found: list[tuple[int, Exception]] = []
    ranges = [(0, len(values))]
    while ranges:
        start, end = ranges.pop()
        try:
            function(values[start:end])
        except _REFUSED as error:
            if end - start == 1:
                found.append((start, error))
            else:
                middle = (start + end) // 2
                ranges += [(start, middle), (middle, end)]
    return found


def listed(vector: Vector | None, count: int, absent: Any, places: Sequence[int]) -> list[Any]:
    """Values of a field of the source block, ``absent`` if the schema lacks it. Raises Fault."""
    if vector is None:
        return [absent] * count
    if isinstance(vector, Texts) and (repeated := vector.repeated()) is not None:
        return repeated
    return objects(block_column(vector, places))


def objects(column: Any) -> list[Any]:
    """A column of the source block as Python objects."""
    if not isinstance(column, pa.Array):
        return list(column)
    if pa.types.is_string(column.type):
        return texts(column)
    return list(column.to_pylist())


def block_column(vector: Vector, places: Sequence[int]) -> Any:
    """A field of the source block as its vector gives it. Raises Fault."""
    try:
        return vector.column()
    except NotText as error:
        raise Fault(
            str(error), certain=[BadRecord(places[i], f"source block: {error}") for i in error.places]
        ) from error


def texts(column: Any) -> list[Any]:
    """Python texts of an Arrow column, one object for each distinct text."""
    coded = column.dictionary_encode()
    if len(coded.dictionary) * 2 > len(column):
        return list(column.to_pylist())
    distinct = [*coded.dictionary.to_pylist(), None]
    codes = coded.indices.fill_null(len(distinct) - 1).to_pylist()
    return [distinct[code] for code in codes]


def _kind(error: Exception) -> str:
    return "range" if isinstance(error, OutOfRange) else "decode"
