"""Vectors to the columns of a batch; every value that cannot be converted is reported with its record."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.avro.definition import NotText, Struct, Unreadable, Vector
from ch_sink.decode.avro.layout import AvroColumn
from ch_sink.decode.avro.scanned import read_group, whole
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import UNCONVERTED, Fault
from ch_sink.errors import DecodeError, PositionError
from ch_sink.model.change import BadRecord
from ch_sink.types import Converted, Converter, OutOfRange
from ch_sink.types.converter import takes_arrow

__all__ = ["Block", "convert", "culprits", "holds_documents", "listed", "read_keys"]

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
    repeated = vector.repeated()
    return repeated if repeated is not None else _objects(_block_column(vector, places))


def _objects(column: Any) -> list[Any]:
    """A column of the source block as Python objects."""
    if not isinstance(column, pa.Array):
        return list(column)
    if pa.types.is_string(column.type):
        return _as_texts(column)
    return list(column.to_pylist())


def _block_column(vector: Vector, places: Sequence[int]) -> Any:
    """A field of the source block as its vector gives it. Raises Fault."""
    try:
        return vector.column()
    except NotText as error:
        raise Fault(
            str(error), certain=[BadRecord(places[i], f"source block: {error}") for i in error.places]
        ) from error


def _as_texts(column: Any) -> list[Any]:
    """Python texts of an Arrow column, one object for each distinct text."""
    coded = column.dictionary_encode()
    if len(coded.dictionary) * 2 > len(column):
        return list(column.to_pylist())
    distinct = [*coded.dictionary.to_pylist(), None]
    codes = coded.indices.fill_null(len(distinct) - 1).to_pylist()
    return [distinct[code] for code in codes]


def _kind(error: Exception) -> str:
    return "range" if isinstance(error, OutOfRange) else "decode"


class Block:
    """Source blocks as what reads positions takes them (see `sources.base.Columns`)."""

    def __init__(
        self, source: Struct, wire: type[msgspec.Struct], absent: Mapping[str, Any], places: Sequence[int]
    ) -> None:
        """``absent``: the fields of ``wire``, each with the value used if the schema lacks it. Raises Fault."""
        self._source, self._wire, self._absent, self._places = source, wire, absent, places
        self._known: dict[str, list[Any]] = {}
        self._texts: dict[str, pa.Array] = {}
        # Text that is not UTF-8 is reported before a position of which it makes no sense.
        for name in absent:
            vector = source.fields.get(name)
            if vector is None or vector.numbers() is not None:
                continue
            if (repeated := vector.repeated()) is not None:
                self._known[name] = repeated
            else:
                column = _block_column(vector, places)
                if isinstance(column, pa.Array) and pa.types.is_string(column.type):
                    self._texts[name] = column
                else:
                    self._known[name] = _objects(column)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        if not self._absent:
            return iter([self._wire() for _ in self._places])
        return (self._wire(*row) for row in zip(*map(self.values, self._absent), strict=True))

    def values(self, name: str) -> list[Any]:
        found = self._known.get(name)
        if found is None:
            column = self._texts.get(name)
            vector, absent = self._source.fields.get(name), self._absent.get(name)
            found = listed(vector, len(self), absent, self._places) if column is None else _objects(column)
            self._known[name] = found
        return found

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        vector = self._source.fields.get(name)
        return None if vector is None else vector.numbers()

    def texts(self, name: str) -> pa.Array | None:
        return self._texts.get(name)


def read_keys(framed: Framed, columns: Sequence[AvroColumn], values: list[bytes], *, primitive: bool) -> list[Any]:
    """Arrow arrays of the key's columns; a primitive key is one column. Raises DecodeError."""
    assert framed.avro is not None
    try:
        found = read_group(framed.avro, values, whole(framed.avro))
    except Unreadable as error:
        raise DecodeError("key: its bytes do not follow the schema that they name") from error
    arrays: list[Any] = []
    for column in columns:
        vector = found if primitive else found.fields[column.field] if isinstance(found, Struct) else None
        if vector is None:
            raise DecodeError("key: it is not a record")
        if not primitive and isinstance(found, Struct):
            vector.only(found.present())
        try:
            arrays.append(convert(column.name, column.converter, vector, range(len(values))).array)
        except Fault as fault:
            raise DecodeError(f"key {fault.reason}", column=fault.column) from fault
    return arrays


def holds_documents(framed: Framed) -> bool:
    """Whether this schema's after image is text, as a document's is."""
    after = framed.avro.present.member("after") if framed.avro is not None else None
    return after is not None and after.type.present.kind == "string"
