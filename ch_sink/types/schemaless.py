"""Converters for schemaless JSON, where a column's literals may be of more than one kind."""

from typing import Any

import pyarrow as pa

from ch_sink.types.converter import Converted, Converter, PerValue, Reaction, Whole, as_arrow, takes_whole
from ch_sink.types.scalars import flag

__all__ = ["Either", "SchemalessFlags", "SchemalessIntegers"]


class Either:
    """Integers by one converter, texts by another."""

    def __init__(self, number: Converter, text: Converter) -> None:
        self.wire: Any = number.wire | str
        self.arrow = number.arrow
        self._number, self._text = number, text
        texts: tuple[Whole, ...] = ("texts",) if takes_whole(text, "texts") else ()
        self.whole: tuple[Whole, ...] = ("integers", *texts)

    def convert(self, values: list[Any]) -> Converted:
        if isinstance(values, pa.Array):
            return (self._text if pa.types.is_string(values.type) else self._number).convert(values)
        kinds = set(map(type, values))
        if str not in kinds:
            return self._number.convert(values)
        if kinds <= {str, type(None)}:
            return self._text.convert(values)
        texts = [isinstance(v, str) for v in values]
        number = self._number.convert([None if is_text else v for is_text, v in zip(texts, values, strict=True)])
        text = self._text.convert([v if is_text else None for is_text, v in zip(texts, values, strict=True)])
        array = pa.array(
            [
                t if is_text else n
                for is_text, t, n in zip(texts, _plain(text.array), _plain(number.array), strict=True)
            ],
            pa.int32() if self.arrow.bit_width == 32 else pa.int64(),
        )
        return Converted(array.view(self.arrow), None, number.clamped + text.clamped)


class SchemalessIntegers:
    """Integers, booleans as 0 and 1, and bit strings (little-endian bytes)."""

    whole = ("integers",)

    def __init__(self, numbers: Converter, wire: Any) -> None:
        self.wire = wire
        self.arrow = numbers.arrow
        self._numbers = numbers

    def convert(self, values: list[Any]) -> Converted:
        if isinstance(values, pa.Array):
            return self._numbers.convert(values)
        if not {bool, bytes}.isdisjoint(map(type, values)):
            values = [_integer(value) for value in values]
        return self._numbers.convert(values)


def _integer(value: Any) -> Any:
    if isinstance(value, bytes):
        return int.from_bytes(value, "little")
    return int(value) if isinstance(value, bool) else value


class SchemalessFlags(PerValue):
    """Booleans or 0 and 1 into Bool."""

    whole = ("flags",)

    def __init__(self, reaction: Reaction) -> None:
        super().__init__(bool | int, pa.bool_(), flag, reaction=reaction)

    def convert(self, values: list[Any]) -> Converted:
        try:
            return Converted(as_arrow(values, pa.bool_()))
        except (pa.ArrowException, TypeError):
            return super().convert(values)


def _plain(array: pa.Array) -> list[Any]:
    """The bits of 32- or 64-bit values as integers."""
    integers: list[Any] = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    return integers
