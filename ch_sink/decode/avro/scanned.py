"""Avro datums that the compiled reader steps through: all values of all of them by one call.

It decides nothing by itself. Groups with a datum that does not follow its schema, and schemas with values that it does
not know, are read by `vectors`.
"""

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.avro.datums import Datums
from ch_sink.decode.avro.program import Program, Record, Shape
from ch_sink.decode.avro.schema import Node
from ch_sink.decode.avro.vectors import Mask, NotText, Plain, Struct, Symbols, Vector, Want, not_texts, read
from ch_sink.decode.framing import AVRO_HEAD
from ch_sink.decode.native.joined import Joined, joined
from ch_sink.decode.native.library import address, library
from ch_sink.decode.native.scan import MOST_BYTES, MOST_KNOWN, optional

__all__ = ["Texts", "read_group", "scan"]


def read_group(
    node: Node, values: Sequence[bytes], made: Program | None, want: Want | None = None
) -> tuple[Vector, Mask | None]:
    """The framed values of a schema, and which are bad, None for none; the vector says nothing about those.

    ``made``: the program of the type and the fields to build, if it has one. Raises DecodeError.
    """
    native = library()
    if native is not None and made is not None:
        scanned = scan(native, made, joined(values), skip=AVRO_HEAD)
        if scanned is not None:
            return scanned, None
    datums = Datums(values, skip=AVRO_HEAD)
    found = read(node, datums, want=want)
    datums.finish()
    return found, datums.bad if datums.bad.any() else None


def scan(native: CDLL, made: Program, values: Joined, *, skip: int = 0) -> Vector | None:
    """The values without the first ``skip`` bytes of each; None if not all follow the program."""
    count, data = len(values), values.data
    if len(data) >= MOST_BYTES:
        return None
    cells = np.empty((made.slots, count), dtype=np.uint64)
    flags = np.empty((made.flags, count), dtype=np.bool_)
    nulls, sizes = np.zeros(made.flags, dtype=np.int64), np.zeros(made.slots, dtype=np.int64)
    outputs = map(address, (cells, flags, nulls, sizes))
    accepted = native.ch_avro(data, address(values.ends), count, skip, address(made.steps), len(made.steps), *outputs)
    if accepted != count or made.shape is None:
        return None
    masks = [mask if some else None for mask, some in zip(flags, nulls.tolist(), strict=True)]
    return _Made(native, data, cells, masks, sizes.tolist()).vector(made.shape)


class _Made:
    """What the compiled reader filled in."""

    def __init__(
        self, native: CDLL, data: bytes, cells: npt.NDArray[np.uint64], masks: list[Mask | None], sizes: list[int]
    ) -> None:
        self._native, self._data, self._cells, self._masks, self._sizes = native, data, cells, masks, sizes

    def vector(self, shape: Shape) -> Vector:
        count = self._cells.shape[1]
        valid = self._masks[shape.flag] if shape.flag >= 0 else None
        if isinstance(shape, Record):
            return Struct(count, valid, {name: self.vector(inner) for name, inner in shape.fields.items()})
        cells, kind = self._cells[shape.slot], shape.node.kind
        if kind in ("string", "bytes", "fixed"):
            return Texts(self._native, self._data, valid, cells, self._sizes[shape.slot], text=kind == "string")
        if kind == "enum":
            return Symbols(count, valid, cells.view(np.int64), shape.node.symbols)
        return Plain(count, valid, _numbers(kind, cells))


class Texts(Vector):
    """Text or bytes, as their places in all of the data."""

    def __init__(
        self, native: CDLL, data: bytes, valid: Mask | None, cells: npt.NDArray[np.uint64], size: int, *, text: bool
    ) -> None:
        super().__init__(len(cells), valid)
        self._native, self._data, self._cells, self._size, self._text = native, data, cells, size, text

    def column(self) -> Any:
        count = self.count
        offsets, valid = pa.allocate_buffer(4 * count + 4), pa.allocate_buffer((count + 7) // 8)
        out = pa.allocate_buffer(max(self._size, 1))
        ascii_only = self._native.ch_avro_texts(*self._given(), offsets.address, valid.address, out.address)
        buffers = [None if self.valid is None else valid, offsets, out]
        kind = pa.string() if self._text and ascii_only else pa.binary()
        array = pa.Array.from_buffers(kind, count, buffers, null_count=0 if self.valid is None else -1)
        if not self._text or ascii_only:
            return array
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise NotText(not_texts(array)) from None

    def letters(self) -> npt.NDArray[np.uint8] | None:
        """The texts if each is one letter; else None."""
        if not self._text or self.valid is not None or (self._cells >> np.uint64(32) != 1).any():
            return None
        return np.frombuffer(self._data, dtype=np.uint8)[self._cells.astype(np.uint32)]

    def repeated(self) -> list[Any] | None:
        """The texts, one object for each distinct one; None if there are many, or one is not UTF-8."""
        codes, first = np.empty(self.count, dtype=np.uint8), np.empty(MOST_KNOWN, dtype=np.int64)
        known = self._native.ch_avro_distinct(*self._given(), address(codes), address(first))
        try:
            distinct = [self._one(place) for place in first[:known].tolist()]
        except UnicodeDecodeError:
            return None
        if known == 1:
            return distinct * self.count
        return [distinct[code] for code in codes.tolist()] if known else None

    def _one(self, place: int) -> str | bytes | None:
        if self.valid is not None and not self.valid[place]:
            return None
        size, start = divmod(int(self._cells[place]), 1 << 32)
        raw = self._data[start : start + size]
        return raw.decode() if self._text else raw

    def _given(self) -> tuple[Any, ...]:
        return self._data, address(self._cells), self.count, optional(self.valid)


def _numbers(kind: str, cells: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """The cells as what they hold."""
    if kind == "double":
        return cells.view(np.float64)
    if kind == "float":
        return cells.view(np.float32)[::2].copy()
    return cells.astype(np.bool_) if kind == "boolean" else cells.view(np.int64)
