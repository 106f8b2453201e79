"""Columns of payloads that the compiled scanner reads: those that all have the same fields in the same order.

It decides nothing by itself. Payloads that it does not read as a layout's Structs would be read, or that fail in any
way, are decoded by the layout.
"""

from collections.abc import Iterator, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.decode.assemble import Part
from ch_sink.decode.json.columns import EXPECT_AFTER, UNCONVERTED, Fault, Read, add_column, meta, unknown_columns
from ch_sink.decode.json.layout import Layout
from ch_sink.decode.json.rows import ColumnReader
from ch_sink.decode.native.library import library
from ch_sink.decode.native.program import Keep, Members, Program, Skip, program
from ch_sink.decode.native.scan import FLAGS, INTEGERS, NULL, NUMBERS, OBJECT, TEXTS, Room, Scan, scan
from ch_sink.errors import DecodeError
from ch_sink.model.change import Op
from ch_sink.types import Converted, Converter
from ch_sink.types.converter import nullable, takes_whole

__all__ = ["FEWEST", "Scanner", "scanner"]

FEWEST = 64
"""Payloads that are worth scanning: of fewer, learning a program takes longer."""
_EXAMPLES = 16
"""Payloads that are searched for each kind of image."""
_FAILED = (Fault, DecodeError, msgspec.MsgspecError, RecursionError, *UNCONVERTED)
_NEEDS_AFTER = np.zeros(256, dtype=np.bool_)
_NEEDS_AFTER[list(EXPECT_AFTER)] = True
_IS_ROW = np.zeros(256, dtype=np.bool_)
_IS_ROW[list(Op)] = True


class _Refused(Exception):
    """The payloads have to be decoded by the layout."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """How a column or a field of the source block is read if its literals are not taken as a whole."""

    decoder: msgspec.json.Decoder[list[Any]]
    absent: Any = None


@lru_cache(1024)
def _lists(wire: Any) -> msgspec.json.Decoder[list[Any]]:
    """A decoder of lists of a literal. Numbers without a type keep their digits."""
    return msgspec.json.Decoder(list[wire], float_hook=Decimal)


class Scanner:
    """Reads the payloads of one layout."""

    def __init__(self, native: CDLL, layout: Layout) -> None:
        self._native, self._layout = native, layout
        self._room = Room()
        self._program: Program | None = None
        after = {c.name: Keep() for c in layout.columns} | {
            name: Keep() if name in layout.reported else Skip() for name in layout.ignored
        }
        before = {c.name: Keep() for c in layout.before_columns} if layout.before else {}
        connector = msgspec.json.encode(layout.connector)
        self._fields = {f.name: _Slot(_lists(f.type), f.default) for f in msgspec.structs.fields(layout.block)}
        block = {name: Keep(connector if name == "connector" else b"") for name in self._fields}
        self._root = Members(
            {
                "op": Keep(),
                "after": Members(after, frozenset(c.name for c in layout.columns), closed=True),
                "before": Members(before) if layout.before else Keep(),
                "source": Members(block, frozenset(("connector",))),
            },
            frozenset(("op", "after", "source")),
        )

    def read(self, payloads: list[bytes], places: Sequence[int]) -> Read | None:
        """The payloads' columns; None if they have to be decoded by the layout."""
        if len(payloads) < FEWEST:
            return None
        found = self._scan(payloads)
        if found is None:
            return None
        try:
            return self._read(found, payloads, places)
        except (_Refused, *_FAILED):
            return None

    def _scan(self, payloads: list[bytes]) -> Scan | None:
        if self._program is not None:
            found = scan(self._native, self._program, payloads, self._room)
            if found is not None:
                return found
        made = program(payloads[:_EXAMPLES], self._root)
        if made is None or (self._program is not None and made.texts == self._program.texts):
            return None
        self._program = made
        return scan(self._native, made, payloads, self._room)

    def _read(self, found: Scan, payloads: list[bytes], places: Sequence[int]) -> Read:
        layout, slots = self._layout, found.program.slots
        op = found.letters(slots["op",])
        after = slots["after",]
        if op is None or not _IS_ROW[op].all() or not found.only(slots["source",], OBJECT):
            raise _Refused
        needed: npt.NDArray[np.bool_] = _NEEDS_AFTER[op]
        if ("after",) in slots and not np.array_equal(needed, found.are_objects(after)):
            raise _Refused
        is_row = None if needed.all() else needed
        block = _Block(found, self._fields, layout.block)
        part = meta(layout, block, op, places)
        for column in layout.columns:
            add_column(part, column.name, self._column(found, ("after", column.name), column))
        for name in layout.missing:
            part.absent[name] = needed.copy()
        self._before(found, part)
        unknown = unknown_columns(layout, is_row, part, lambda name: self._reported(found, name, needed), payloads)
        return Read(part, {}, unknown)

    def _before(self, found: Scan, part: Part) -> None:
        layout, slot = self._layout, found.program.slots.get(("before",))
        if slot is None or found.only(slot, NULL):
            return
        if not found.only(slot, NULL | OBJECT):
            raise _Refused
        part.has_before = found.are_objects(slot)
        if layout.before:
            part.before = {
                c.name: self._column(found, ("before", c.name), c).array for c in layout.before_columns
            }
            present = {c.name for c in layout.before_columns}
            part.absent_before = {n: part.has_before.copy() for n in layout.missing if n not in present}

    def _column(self, found: Scan, path: tuple[str, ...], column: ColumnReader) -> Converted:
        slot = found.program.slots.get(path)
        converter = column.converter
        if slot is None:
            return converter.convert([None] * found.count)
        try:
            whole = _whole(found, slot, converter)
            if whole is not None:
                return converter.convert(whole)
        except DecodeError:
            pass  # value by value it may be clamped
        return converter.convert(found.literals(slot, _lists(nullable(converter.wire))))

    def _reported(self, found: Scan, name: str, is_row: npt.NDArray[np.bool_]) -> list[Any]:
        slot = found.program.slots.get(("after", name))
        if slot is None:
            return [msgspec.UNSET] * found.count
        values = found.literals(slot, _lists(msgspec.Raw))
        return [value if row else msgspec.UNSET for value, row in zip(values, is_row.tolist(), strict=True)]


def _whole(found: Scan, slot: int, converter: Converter) -> Any:
    """A column's literals as one array, if they are of one kind that the converter takes so."""
    if found.only(slot, NULL):
        return [None] * found.count
    if found.only(slot, INTEGERS) and takes_whole(converter, "integers"):
        return found.integers(slot)
    if found.only(slot, TEXTS):
        if takes_whole(converter, "texts"):
            return found.texts(slot)
        return found.base64(slot) if takes_whole(converter, "base64") else None
    if found.only(slot, FLAGS) and takes_whole(converter, "flags"):
        return found.flags(slot)
    return found.floats(slot) if found.only(slot, NUMBERS) and takes_whole(converter, "floats") else None


class _Block:
    """The source blocks of scanned payloads."""

    def __init__(self, found: Scan, fields: dict[str, _Slot], kind: type[msgspec.Struct]) -> None:
        self._found, self._fields, self._kind = found, fields, kind

    def __len__(self) -> int:
        return self._found.count

    def __iter__(self) -> Iterator[Any]:
        columns = [self.values(name) for name in self._fields]
        return (self._kind(**dict(zip(self._fields, row, strict=True))) for row in zip(*columns, strict=True))

    def values(self, name: str) -> list[Any]:
        slot = self._found.program.slots.get(("source", name))
        field = self._fields[name]
        return [field.absent] * len(self) if slot is None else self._found.repeated(slot, field.decoder)

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        slot = self._found.program.slots.get(("source", name))
        return None if slot is None else self._found.numbers(slot)


def scanner(layout: Layout) -> Scanner | None:
    """The scanner of a layout's payloads; None if there is none."""
    native = library()
    if native is None or layout.block is None or layout.tolerant or layout.images is not None:
        return None
    return Scanner(native, layout)
