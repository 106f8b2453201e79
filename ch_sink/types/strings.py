"""Columns of type String: text, bytes, and every other kind of value as its text."""

from typing import Any

import pyarrow as pa

from ch_sink.errors import DecodeError
from ch_sink.types.converter import Converted, PerValue, as_arrow, without
from ch_sink.types.placeholder import Placeholder

__all__ = ["AnyText", "Plain", "binary_text"]


class Plain:
    """Text or bytes as they are, into String."""

    columnar = True
    arrow = pa.binary()

    def __init__(self, wire: Any, forms: tuple[bytes, ...] = ()) -> None:
        """``forms``: the bytes that mean an unavailable value; empty if the source sends none."""
        self.wire = wire
        self.whole = ("texts",) if wire is str else ()
        self._forms = forms

    def convert(self, values: list[Any]) -> Converted:
        try:
            # Text goes in faster as what it is; the cast shares its buffers.
            array = as_arrow(values, pa.string() if self.wire is str else self.arrow).cast(self.arrow)
        except (pa.ArrowException, TypeError, ValueError) as fault:
            raise DecodeError(f"expected text or bytes: {fault}") from fault
        if not isinstance(array, pa.Array):
            raise DecodeError("more than 2 GiB of text in one chunk", hint="make chunks smaller (chunk_bytes)")
        if not self._forms:
            return Converted(array)
        array, unavailable = without(array, self._forms)
        return Converted(array, unavailable)


class AnyText(PerValue):
    """Any other value into String, by a function that gives its text or bytes."""

    def __init__(self, wire: Any, function: Any, known: Placeholder | None = None, is_placeholder: Any = None) -> None:
        super().__init__(
            wire,
            pa.binary(),
            function,
            reaction="fail",
            is_placeholder=is_placeholder if known is not None else None,
        )


_MOST_MISSING = 4096


def binary_text(value: bytes, length: int) -> str:
    """Binary digits of a little-endian bit string, as long as declared; from the first 1 on where that varies (0).

    Raises DecodeError for a length that is far beyond the bytes: connectors send all bytes of a bit string.
    """
    if length > 8 * len(value) + _MOST_MISSING:
        raise DecodeError(f"a bit string of {len(value)} bytes is declared to have {length} bits")
    return format(int.from_bytes(value, "little"), "b").rjust(length, "0")
