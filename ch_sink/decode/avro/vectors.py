"""The values of many datums, one vector for each field, and the compiled reader that fills all of them by one call.

A program says which values the datums of a schema have, in which order, and where each goes. The compiled reader
decides nothing by itself: groups with a datum that does not follow its schema, and schemas with types that it does not
know (arrays, maps, unions of several types) are read by `definition`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from ctypes import CDLL
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.avro.schema import Node
from ch_sink.decode.native.library import Joined, address
from ch_sink.decode.native.scan import MOST_BYTES, MOST_KNOWN, optional

Mask = npt.NDArray[np.bool_]
Want = Mapping[str, "Want | None"]
"""Fields of a record to build, each with the fields to build of it (None: all)."""
_ARROW = {
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}


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

    def numbers(self) -> npt.NDArray[np.int64] | None:
        """The values as integers, 0 for a missing one; None if they are not integers."""
        return None

    def letters(self) -> npt.NDArray[np.uint8] | None:
        """The octets of texts of one letter each; None if they may be others."""
        return None

    def repeated(self) -> list[Any] | None:
        """Texts, one object for each distinct one; None if there are many, or one is not UTF-8."""
        return None


class Struct(Vector):
    """Records, as a vector for each field."""

    def __init__(self, count: int, valid: Mask | None, fields: dict[str, Vector]) -> None:
        super().__init__(count, valid)
        self.fields = fields

    def only(self, where: Mask) -> None:
        super().only(where)
        for vector in self.fields.values():
            vector.only(where)

    def column(self) -> list[Any]:
        names, there = list(self.fields), self.present().tolist()
        columns = [vector.tolist() for vector in self.fields.values()]
        rows = zip(*columns, strict=True) if columns else [()] * self.count
        return [dict(zip(names, row, strict=True)) if one else None for row, one in zip(rows, there, strict=True)]


class Values(Vector):
    """Python objects of one kind of type, None for a missing one; texts as their bytes."""

    def __init__(self, kind: str, values: list[Any]) -> None:
        super().__init__(len(values), where_present(values))
        self._kind, self._values = kind, values

    def only(self, where: Mask) -> None:
        super().only(where)
        self._values = [value if one else None for value, one in zip(self._values, where.tolist(), strict=True)]

    def column(self) -> Any:
        if self._kind == "string":
            return as_text(pa.array(self._values, pa.binary()))
        kind = _ARROW.get(self._kind)
        return self._values if kind is None else pa.array(self._values, kind)

    def numbers(self) -> npt.NDArray[np.int64] | None:
        if self._kind not in ("int", "long"):
            return None
        return np.array([value or 0 for value in self._values], dtype=np.int64)


def as_text(array: pa.Array) -> pa.Array:
    """An array of bytes as texts. Raises NotText."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        odd = [i for i, one in enumerate(array.to_pylist()) if one is not None and not _is_utf8(one)]
        raise NotText(odd) from None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def where_present(values: list[Any]) -> Mask | None:
    """Which values are not None; None for all."""
    there = [value is not None for value in values]
    return None if all(there) else np.array(there, dtype=np.bool_)


_LONG, _SIZED, _FIXED, _FLOAT, _DOUBLE, _FLAG, _SYMBOL, _OPTIONAL = range(8)
_ACTIONS = {
    "int": _LONG,
    "long": _LONG,
    "string": _SIZED,
    "bytes": _SIZED,
    "fixed": _FIXED,
    "float": _FLOAT,
    "double": _DOUBLE,
    "boolean": _FLAG,
    "enum": _SYMBOL,
}
_MOST_STEPS = 4096
"""Named types within each other may make more steps than a schema has letters."""
_MOST_BYTES = 1 << 62
"""Of one value: what a step can tell."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a slot. ``flag``: says which datums have it; -1 for all."""

    node: Node
    slot: int
    flag: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record in the slots of its fields."""

    fields: dict[str, "Shape"]
    flag: int


Shape = Value | Record


@dataclass(slots=True)
class Program:
    """Instructions of the compiled reader, and the arrays that it fills."""

    rows: list[list[int]] = field(default_factory=list)
    slots: int = 0
    flags: int = 0
    shape: Shape | None = None
    steps: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 7), dtype=np.int64))

    def step(self, action: int, slot: int, argument: int) -> list[int]:
        """A step that is added."""
        if len(self.rows) >= _MOST_STEPS or argument >= _MOST_BYTES:
            raise _Unknown
        row = [action, slot, argument, 0, -1, 0, 0]
        self.rows.append(row)
        return row


class _Unknown(Exception):
    """The schema has a value that the compiled reader does not know."""


def program(node: Node, want: Want | None = None) -> Program | None:
    """The program of a type; None if there is none. ``want``: the fields of a record to build."""
    made = Program()
    try:
        made.shape = _kept(made, node, want, -1)
    except (_Unknown, RecursionError):
        return None
    made.steps = np.array(made.rows, dtype=np.int64).reshape(-1, 7)
    return made


@lru_cache(maxsize=1024)
def whole(node: Node) -> Program | None:
    """The program that builds all fields."""
    return program(node)


def _kept(made: Program, node: Node, want: Want | None, flag: int) -> Shape:
    """Adds the steps of a value that is built, which is there where a flag says so."""
    if node.kind == "record":
        fields: dict[str, Shape] = {}
        for member in node.members:
            if want is None or member.name in want:
                fields[member.name] = _kept(made, member.type, want[member.name] if want else None, flag)
            else:
                _skipped(made, member.type)
        return Record(fields, flag)
    if node.null_branch < 0:
        slot = made.slots
        made.slots += 1
        _one(made, node, slot)
        return Value(node, slot, flag)
    own, first = made.flags, made.slots
    made.flags += 1
    step = made.step(_OPTIONAL, first, node.null_branch)
    shape = _kept(made, node.present, want, own)
    step[3:] = made.slots - first, own, made.flags - own, len(made.rows)
    return shape


def _skipped(made: Program, node: Node) -> None:
    """Adds the steps over a value."""
    if node.kind == "record":
        for member in node.members:
            _skipped(made, member.type)
    elif node.null_branch >= 0:
        step = made.step(_OPTIONAL, 0, node.null_branch)
        _skipped(made, node.present)
        step[6] = len(made.rows)
    elif node.kind != "null":
        _one(made, node, -1)


def _one(made: Program, node: Node, slot: int) -> None:
    if node.kind not in _ACTIONS:
        raise _Unknown
    made.step(_ACTIONS[node.kind], slot, len(node.symbols) if node.kind == "enum" else node.size)


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
    """Arrays that the compiled reader has filled."""

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


class Plain(Vector):
    """Integers, floats or booleans."""

    def __init__(self, count: int, valid: Mask | None, values: npt.NDArray[Any]) -> None:
        super().__init__(count, valid)
        self.values = values

    def column(self) -> Any:
        return pa.array(self.values, mask=None if self.valid is None else ~self.valid)

    def numbers(self) -> npt.NDArray[np.int64] | None:
        if self.values.dtype != np.int64:
            return None
        return self.values if self.valid is None else np.where(self.valid, self.values, 0)


class Symbols(Plain):
    """Texts of an enum, as their numbers."""

    def __init__(self, count: int, valid: Mask | None, codes: npt.NDArray[Any], symbols: tuple[str, ...]) -> None:
        super().__init__(count, valid, codes)
        self._symbols = symbols

    def column(self) -> Any:
        return pa.array(self._symbols, pa.string()).take(super().column())

    def numbers(self) -> None:
        return None


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
        return as_text(array)

    def letters(self) -> npt.NDArray[np.uint8] | None:
        if not self._text or self.valid is not None or (self._cells >> np.uint64(32) != 1).any():
            return None
        return np.frombuffer(self._data, dtype=np.uint8)[self._cells.astype(np.uint32)]

    def repeated(self) -> list[Any] | None:
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
