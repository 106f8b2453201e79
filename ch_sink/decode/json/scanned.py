"""Columns of payloads that the compiled scanner reads: those that all have the same fields in the same order.

It decides nothing by itself. Payloads that it does not read as a layout's Structs would be read, or that fail in any
way, are decoded by the layout.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import CDLL
from types import NoneType
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.json.columns import (
    IS_ROW,
    MOST_UNKNOWN,
    NEEDS_AFTER,
    UNCONVERTED,
    Reported,
    add_column,
    meta,
    unknown_columns,
)
from ch_sink.decode.json.layout import Field, Layout, lists
from ch_sink.decode.native.library import Keep, Member, Members, Program, Skip, joined, library, program
from ch_sink.decode.native.scan import (
    FEWEST,
    FLAGS,
    INTEGERS,
    MOST_BYTES,
    NULL,
    NUMBERS,
    OBJECT,
    TEXTS,
    Room,
    Scan,
    scan,
)
from ch_sink.decode.parts import Fault, Mask, Part, Read
from ch_sink.errors import DecodeError
from ch_sink.model.change import UnknownColumn
from ch_sink.types import Converted, Converter
from ch_sink.types.converter import nullable, takes_whole

_PATIENCE, _MOST_FAILURES = 3, 7
"""How many groups in a row may fail before some are not tried; later failures count no more."""
_EXAMPLES = 16
"""Payloads that are searched for each kind of image."""
FAILED = (Fault, DecodeError, msgspec.MsgspecError, RecursionError, *UNCONVERTED)

_ROOM = Room()
T = TypeVar("T")


class Refused(Exception):
    """The payloads have to be decoded by the layout."""


class Programs:
    """Scans payloads whose objects have these members, by the program that the last ones followed."""

    def __init__(self, native: CDLL, root: Members) -> None:
        self._native, self._root = native, root
        self._program: Program | None = None
        self._failures = self._pause = 0

    def read(self, payloads: Sequence[bytes], use: Callable[[Scan], T]) -> T | None:
        """The result of ``use`` for the scanned payloads; None if they do not all follow one program, or that fails.

        Payloads that fail again and again are tried ever less often.
        """
        if len(payloads) < FEWEST:
            return None
        if self._pause:
            self._pause -= 1
            return None
        found = self.scan(payloads)
        made: T | None = None
        with suppress(Refused, *FAILED):
            made = use(found) if found is not None else None
        self._failures = 0 if made is not None else min(self._failures + 1, _MOST_FAILURES)
        self._pause = (1 << self._failures) - 1 if self._failures > _PATIENCE else 0
        return made

    def scan(self, payloads: Sequence[bytes]) -> Scan | None:
        """The scanned payloads, until this thread scans others; None if they do not all follow one program."""
        together = joined(payloads)
        if int(together.lengths.sum()) >= MOST_BYTES:
            return None
        if self._program is not None:
            found = scan(self._native, self._program, together, _ROOM)
            if found is not None:
                return found
        made = program(payloads[:_EXAMPLES], self._root)
        if made is None or (self._program is not None and made.texts == self._program.texts):
            return None
        self._program = made
        return scan(self._native, made, together, _ROOM)


class Scanner(ABC):
    """Reads the payloads of one layout whose objects have these members."""

    def __init__(self, native: CDLL, layout: Layout, root: Members) -> None:
        self._layout = layout
        self._programs = Programs(native, root)

    def read(self, payloads: list[bytes], places: Sequence[int]) -> Read | None:
        """The payloads' columns; None if they have to be decoded by the layout."""
        return self._programs.read(payloads, lambda found: self._read(found, payloads, places))

    @abstractmethod
    def _read(self, found: Scan, payloads: list[bytes], places: Sequence[int]) -> Read:
        """The scanned payloads' columns. Raises Refused, or one of FAILED."""

    def _after(self, found: Scan, part: Part, image: tuple[str, ...], kept: Mask | None) -> Mask | None:
        """Fill in the after images; returns which events have one that counts, None for all.

        ``kept``: the events whose image is not null by this alone; None for all.
        """
        needed: Mask = NEEDS_AFTER[part.op]
        slots, row = found.program.slots, self._layout.row
        for column in row.columns:
            path = (*image, column.name)
            add_column(part, column.name, column_of(found, path, column.converter, kept))
            if path not in slots and needed.any():
                part.absent[column.name] = needed.copy()
        for name in row.missing:
            part.absent[name] = needed.copy()
        return None if needed.all() else needed

    def _befores(self, found: Scan, part: Part, image: tuple[str, ...], kept: Mask | None) -> None:
        """Fill in the before images, if they are decoded; ``kept`` as for after images."""
        if not self._layout.before:
            return
        slots, row = found.program.slots, self._layout.row
        part.before = {c.name: column_of(found, (*image, c.name), c.converter, kept).array for c in row.columns}
        lacking = [c.name for c in row.columns if (*image, c.name) not in slots]
        part.absent_before = {name: part.has_before.copy() for name in (*lacking, *row.missing)}

    def _unknown(
        self, found: Scan, part: Part, image: tuple[str, ...], is_row: Mask | None, payloads: list[bytes]
    ) -> list[tuple[int, UnknownColumn]]:
        reported: Reported = {}
        for path, slot in found.program.slots.items():
            if path[:-1] != image or not self._layout.reports(path[-1]) or self._layout.row.declared is not None:
                continue
            texts = found.literals(slot, lists(msgspec.Raw))
            first = 0 if is_row is None else int(np.argmax(is_row))
            if is_row is not None:
                texts = [text for text, row in zip(texts, is_row.tolist(), strict=True) if row]
            if texts:
                reported[path[-1]] = (first, texts)
        if len(reported) > MOST_UNKNOWN:
            raise Refused
        return unknown_columns(self._layout, is_row, part, reported, payloads)


def image_members(layout: Layout, others: dict[str, Member]) -> Members:
    """A row image; ``others``: how fields are read that are neither columns nor reported."""
    row = layout.row
    columns: dict[str, Member] = {c.name: Keep() for c in row.columns}
    skip = Skip()
    if row.declared is not None:
        return Members(dict[str, Member].fromkeys(row.declared, skip) | others | columns, frozenset(columns), None)
    return Members(dict[str, Member].fromkeys(row.known, skip) | others | columns, frozenset(), Keep())


class Envelopes(Scanner):
    """Reads change events."""

    def __init__(self, native: CDLL, layout: Layout, block: type[msgspec.Struct]) -> None:
        before = {c.name: Keep() for c in layout.row.columns} if layout.before else {}
        self._fields, self._block = block_fields(block), block
        root = Members(
            {
                "op": Keep(),
                "after": image_members(layout, {}),
                "before": Members(before) if layout.before else Keep(),
                "source": block_members(self._fields, layout.connector),
            },
            frozenset(("op", "after", "source")),
        )
        super().__init__(native, layout, root)

    def _read(self, found: Scan, payloads: list[bytes], places: Sequence[int]) -> Read:
        layout, slots = self._layout, found.program.slots
        op = found.letters(slots["op",])
        if op is None or not IS_ROW[op].all() or not found.only(slots["source",], OBJECT):
            raise Refused
        if not np.array_equal(NEEDS_AFTER[op], found.are_objects(slots["after",])):
            raise Refused
        part = meta(layout.connector, layout.source, Block(found, self._fields, self._block), op, places)
        is_row = self._after(found, part, ("after",), None)
        self._before(found, part)
        return Read(part, {}, self._unknown(found, part, ("after",), is_row, payloads))

    def _before(self, found: Scan, part: Part) -> None:
        slot = found.program.slots.get(("before",))
        if slot is None or found.only(slot, NULL):
            return
        if not found.only(slot, NULL | OBJECT):
            raise Refused
        part.has_before = found.are_objects(slot)
        self._befores(found, part, ("before",), None)


def column_of(found: Scan, path: tuple[str, ...], converter: Converter, kept: Mask | None = None) -> Converted:
    """A column; where ``kept`` does not hold, it is null. Raises what converters and msgspec raise."""
    slot = found.program.slots.get(path)
    if slot is None:
        return converter.convert([None] * found.count)
    try:
        whole = _whole(found, slot, converter, kept)
        if whole is not None:
            return converter.convert(whole)
    except DecodeError:
        pass  # value by value it may be clamped
    literals = found.literals(slot, lists(nullable(converter.wire)))
    if kept is not None:
        literals = [value if keep else None for value, keep in zip(literals, kept.tolist(), strict=True)]
    return converter.convert(literals)


def _whole(found: Scan, slot: int, converter: Converter, kept: Mask | None) -> Any:
    """A column's literals as one array, if they are of one kind that the converter takes so."""
    if found.only(slot, INTEGERS) and takes_whole(converter, "integers"):
        return found.integers(slot, kept)
    if found.only(slot, TEXTS):
        if takes_whole(converter, "texts"):
            return found.texts(slot, kept)
        return found.base64(slot, kept) if takes_whole(converter, "base64") else None
    if found.only(slot, FLAGS) and takes_whole(converter, "flags"):
        return found.flags(slot, kept)
    return found.floats(slot, kept) if found.only(slot, NUMBERS) and takes_whole(converter, "floats") else None


def check(found: Scan, fields: Iterable[Field]) -> None:
    """Raises msgspec's errors for a value that has not its field's type, whether or not anybody asks for it."""
    for field in fields:
        slot = found.program.slots.get(field.path)
        types = set(get_args(field.type))
        if slot is None or (found.only(slot, TEXTS) and types >= {str, NoneType}):
            continue
        if not (found.only(slot, INTEGERS) and types >= {int, NoneType}):
            found.repeated(slot, lists(field.type))


class Block:
    """The source blocks of scanned payloads."""

    def __init__(self, found: Scan, fields: Mapping[str, Field], kind: type[msgspec.Struct]) -> None:
        """Raises what `check` raises."""
        self._found, self._fields, self._kind = found, fields, kind
        check(found, fields.values())

    def __len__(self) -> int:
        return self._found.count

    def __iter__(self) -> Iterator[Any]:
        columns = [self.values(name) for name in self._fields]
        return (self._kind(**dict(zip(self._fields, row, strict=True))) for row in zip(*columns, strict=True))

    def values(self, name: str) -> list[Any]:
        field = self._fields[name]
        slot = self._found.program.slots.get(field.path)
        return [field.absent] * len(self) if slot is None else self._found.repeated(slot, lists(field.type))

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        slot = self._found.program.slots.get(self._fields[name].path)
        return None if slot is None else self._found.numbers(slot)

    def texts(self, name: str) -> pa.Array | None:
        slot = self._found.program.slots.get(self._fields[name].path)
        return self._found.texts(slot) if slot is not None and self._found.only(slot, TEXTS) else None


def block_fields(block: type[msgspec.Struct]) -> dict[str, Field]:
    """The fields of an envelope's source block."""
    return {f.name: Field(f.type, f.default, ("source", f.name)) for f in msgspec.structs.fields(block)}


def block_members(fields: Iterable[str], connector: str) -> Members:
    """A source block with these fields, of this connector."""
    name = msgspec.json.encode(connector)
    return Members({f: Keep(name if f == "connector" else b"") for f in fields}, frozenset(("connector",)))


def scanner(layout: Layout) -> Scanner | None:
    """The scanner of a layout's payloads; None if there is none."""
    native = library()
    if native is None or layout.block is None or not layout.connector:
        return None
    return Envelopes(native, layout, layout.block)
