"""Values of one schema's datums as vectors: one vector for each field."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.avro.datums import Datums, Ints, Rows
from ch_sink.decode.avro.schema import Node
from ch_sink.decode.avro.values import UNREADABLE, value_reader

__all__ = ["Mask", "NotText", "Plain", "Struct", "Symbols", "Vector", "Want", "not_texts", "read", "skip"]

Mask = npt.NDArray[np.bool_]
Want = Mapping[str, "Want | None"]
"""Fields of a record to build, each with the fields to build of it (None: all)."""
_WIDE = 1 << 31


class NotText(ValueError):
    """The bytes of a text are not UTF-8; ``places``: the datums with such texts."""

    def __init__(self, places: list[int]) -> None:
        super().__init__("a text is not UTF-8")
        self.places = places


class Vector(ABC):
    """One value for each datum. ``valid``: which datums have one; None for all."""

    def __init__(self, count: int, valid: Mask | None) -> None:
        self.count, self.valid = count, valid

    def present(self) -> Mask:
        """Which datums have a value."""
        return np.ones(self.count, dtype=np.bool_) if self.valid is None else self.valid

    def only(self, where: Mask) -> None:
        """Drop the values of all other datums."""
        self.valid = where & self.present()

    @abstractmethod
    def column(self) -> Any:
        """The values as an Arrow array, or a list if they have no Arrow type of their own. Raises NotText."""

    def tolist(self) -> list[Any]:
        """The values as Python objects. Raises NotText."""
        found = self.column()
        return found if isinstance(found, list) else list(found.to_pylist())

    def _absent(self) -> Mask | None:
        return None if self.valid is None else ~self.valid


class Plain(Vector):
    """Integers, floats or booleans."""

    def __init__(self, count: int, valid: Mask | None, values: npt.NDArray[Any]) -> None:
        super().__init__(count, valid)
        self.values = values

    def column(self) -> Any:
        return pa.array(self.values, mask=self._absent())


class Segments(Vector):
    """Text or bytes, as offsets into the datums."""

    def __init__(self, datums: Datums, rows: Rows, found: tuple[Ints, Ints], *, text: bool) -> None:
        super().__init__(len(datums), _valid(len(datums), rows))
        self._datums, self._text = datums, text
        if isinstance(rows, slice):
            self.starts, self.ends = found
        else:
            # Empty segments for the others, at the datum's cursor: offsets must ascend.
            self.starts, self.ends = datums.cursor.copy(), datums.cursor.copy()
            self.starts[rows], self.ends[rows] = found

    def column(self) -> Any:
        raw, count = self._datums.raw, self.count
        if not count:
            return pa.array([], pa.string() if self._text else pa.binary())
        # The segments and what lies between them make one array over the datums' own bytes.
        offsets = np.empty(2 * count, dtype=np.int32 if len(raw) < _WIDE else np.int64)
        offsets[0::2], offsets[1::2] = self.starts, self.ends
        kind = pa.binary() if len(raw) < _WIDE else pa.large_binary()
        every = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
        array = every.take(pa.array(np.arange(0, 2 * count, 2), mask=self._absent())).cast(pa.binary())
        if not self._text:
            return array
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise NotText(not_texts(array)) from None


class Symbols(Vector):
    """Texts of an enum, as their numbers."""

    def __init__(self, count: int, valid: Mask | None, codes: Ints, symbols: tuple[str, ...]) -> None:
        super().__init__(count, valid)
        self._codes = Plain(count, valid, codes)
        self._symbols = symbols

    def column(self) -> Any:
        self._codes.valid = self.valid
        return pa.array(self._symbols, pa.string()).take(self._codes.column())


class Struct(Vector):
    """Records, as a vector for each field."""

    def __init__(self, count: int, valid: Mask | None, fields: dict[str, Vector]) -> None:
        super().__init__(count, valid)
        self.fields = fields

    def only(self, where: Mask) -> None:
        super().only(where)
        for vector in self.fields.values():
            vector.only(where)

    def column(self) -> Any:
        names = list(self.fields)
        if not names:
            return [{} if there else None for there in self.present().tolist()]
        rows = zip(*[vector.tolist() for vector in self.fields.values()], strict=True)
        return [
            dict(zip(names, row, strict=True)) if there else None
            for row, there in zip(rows, self.present().tolist(), strict=True)
        ]


class Objects(Vector):
    """Values of types without a vector: arrays, maps, unions of several types, records within themselves."""

    def __init__(self, count: int, valid: Mask | None, values: list[Any]) -> None:
        super().__init__(count, valid)
        self._values = values

    def column(self) -> Any:
        if self.valid is None:
            return self._values
        return [value if there else None for value, there in zip(self._values, self.valid.tolist(), strict=True)]


def read(node: Node, datums: Datums, rows: Rows = slice(None), want: "Want | None" = None) -> Vector:
    """Reads a value of this type from each datum of ``rows``; ``want``: the fields of a record to build.

    Datums without such a value are marked bad; the vector's values for them mean nothing.
    """
    count, kind = len(datums), node.kind
    if kind in ("int", "long"):
        return _plain(count, rows, datums.longs(rows))
    if kind in ("string", "bytes"):
        return Segments(datums, rows, datums.segments(rows), text=kind == "string")
    if kind == "record":
        fields: dict[str, Vector] = {}
        for member in node.members:
            if want is None or member.name in want:
                fields[member.name] = read(member.type, datums, rows, want[member.name] if want else None)
            else:
                skip(member.type, datums, rows)
        return Struct(count, _valid(count, rows), fields)
    if node.null_branch >= 0:
        return read(node.present, datums, _where(datums, rows, node), want)
    if kind == "boolean":
        return _plain(count, rows, datums.booleans(rows))
    if kind in ("float", "double"):
        return _plain(count, rows, datums.numbers(rows, "<f4" if kind == "float" else "<f8"))
    if kind == "fixed":
        return Segments(datums, rows, datums.fixed(rows, node.size), text=False)
    if kind == "enum":
        codes = _spread(count, rows, datums.branches(rows, len(node.symbols)))
        return Symbols(count, _valid(count, rows), codes, node.symbols)
    return Objects(count, _valid(count, rows), _objects(node, datums, rows))


def skip(node: Node, datums: Datums, rows: Rows) -> None:
    """Steps over a value of this type."""
    kind = node.kind
    if kind in ("int", "long"):
        datums.skip_longs(rows)
    elif kind in ("string", "bytes"):
        datums.segments(rows)
    elif kind == "record":
        for member in node.members:
            skip(member.type, datums, rows)
    elif node.null_branch >= 0:
        skip(node.present, datums, _where(datums, rows, node))
    elif kind != "null":
        read(node, datums, rows)


def _valid(count: int, rows: Rows) -> Mask | None:
    """Which datums are those of ``rows``; None for all."""
    if isinstance(rows, slice):
        return None
    valid = np.zeros(count, dtype=np.bool_)
    valid[rows] = True
    return valid


def _spread(count: int, rows: Rows, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in their places, 0 in those of other datums."""
    if isinstance(rows, slice):
        return values
    out = np.zeros(count, dtype=values.dtype)
    out[rows] = values
    return out


def _plain(count: int, rows: Rows, values: npt.NDArray[Any]) -> Plain:
    return Plain(count, _valid(count, rows), _spread(count, rows, values))


def _where(datums: Datums, rows: Rows, node: Node) -> Rows:
    """The datums among ``rows`` whose value is not null."""
    there = datums.branches(rows, 2) != node.null_branch
    if there.all():
        return rows
    return np.nonzero(there)[0] if isinstance(rows, slice) else rows[there]


def _objects(node: Node, datums: Datums, rows: Rows) -> list[Any]:
    out: list[Any] = [None] * len(datums)
    one, raw = value_reader(node), datums.raw
    places = range(len(datums)) if isinstance(rows, slice) else rows.tolist()
    cursors, ends = datums.cursor.tolist(), datums.end.tolist()
    wrong: list[int] = []
    for place in places:
        start = cursors[place]
        try:
            out[place], length = one(raw[start : ends[place]])
        except UNREADABLE:
            wrong.append(place)
        else:
            cursors[place] = start + length
    datums.cursor[:] = cursors
    if wrong:
        mask = np.zeros(len(datums), dtype=np.bool_)
        mask[wrong] = True
        datums.fail(slice(None), mask)
    return out


def not_texts(array: pa.Array) -> list[int]:
    """Places of the bytes that are not UTF-8."""
    return [i for i, one in enumerate(array.to_pylist()) if one is not None and _not_utf8(one)]


def _not_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False
