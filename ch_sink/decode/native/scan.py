"""Records that were scanned: their values slot by slot, and the documents in them as plain JSON."""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.native.library import Program, address, joined

_NULL, _FALSE, _TRUE, _INTEGER, _NUMBER, _TEXT, _ESCAPED, _OBJECT, _ARRAY = (1 << kind for kind in range(9))
NULL, OBJECT = _NULL, _OBJECT
"""Kinds of values, as bits …"""
INTEGERS = _NULL | _INTEGER
NUMBERS = _NULL | _INTEGER | _NUMBER
TEXTS = _NULL | _TEXT | _ESCAPED
FLAGS = _NULL | _FALSE | _TRUE
"""… and those of a column."""
_CELL = np.dtype([("number", "<i8"), ("start", "<u4"), ("sized", "<u4")])
Mask = npt.NDArray[np.bool_]
FEWEST = 64
"""Payloads that are worth scanning: of fewer, learning a program takes longer."""
MOST_BYTES = 1 << 28
"""Payloads of more bytes together are not scanned."""
MOST_KNOWN = 8
"""Distinct values of a slot; if there are more, each is read by itself."""


class Scan:
    """Values of records that follow a program. All slots' cells are those of the first record, then of the second …"""

    def __init__(self, library: ctypes.CDLL, program: Program, data: bytes, count: int, cells: Any) -> None:
        self.library, self.program, self.data, self.count = library, program, data, count
        self._cells = cells
        self._width = max(len(program.slots), 1)
        self._at = address(cells)
        self.seen = np.zeros(self._width, dtype=np.uint32)
        self.sizes = np.zeros(self._width, dtype=np.int64)

    def of(self, slot: int) -> tuple[int, int, int]:
        """The arguments with which every function finds a slot's cells."""
        return self._at + slot * _CELL.itemsize, self._width, self.count

    def kinds(self, slot: int) -> int:
        """The kinds of a slot's values, as bits."""
        return int(self.seen[slot])

    def only(self, slot: int, kinds: int) -> bool:
        """Whether all of a slot's values are of these kinds."""
        return not int(self.seen[slot]) & ~kinds

    def are_objects(self, slot: int) -> npt.NDArray[np.bool_]:
        """Which of the slot's values are objects."""
        return self._are(slot, 7)

    def are_null(self, slot: int) -> npt.NDArray[np.bool_]:
        """Which of the slot's values are null."""
        return self._are(slot, 0)

    def letters(self, slot: int) -> npt.NDArray[np.uint8] | None:
        """The texts of a slot if each is one letter; else None."""
        cells = self._cells[slot :: self._width][: self.count]
        if self.kinds(slot) != _TEXT or (cells["sized"] != (3 << 4 | 5)).any():
            return None
        found: npt.NDArray[np.uint8] = np.frombuffer(self.data, dtype=np.uint8)[cells["start"] + 1]
        return found

    def numbers(self, slot: int) -> npt.NDArray[np.int64] | None:
        """The integers of a slot, 0 for null; None if there are other values."""
        if not self.only(slot, INTEGERS):
            return None
        return np.frombuffer(self._integers(slot, None)[0], dtype=np.int64)

    def integers(self, slot: int, kept: Mask | None = None) -> pa.Array:
        """The integers of a slot."""
        return self._array(pa.int64(), slot, *self._integers(slot, kept), kept)

    def flags(self, slot: int, kept: Mask | None = None) -> pa.Array:
        """The booleans of a slot."""
        out, valid = self._bits(), self._bits()
        self.library.ch_flags(*self.of(slot), optional(kept), out.address, valid.address)
        return self._array(pa.bool_(), slot, out, valid, kept)

    def floats(self, slot: int, kept: Mask | None = None) -> pa.Array | None:
        """The numbers of a slot; None if one has to be read otherwise."""
        out, valid = pa.allocate_buffer(8 * self.count), self._bits()
        if not self.library.ch_floats(self.data, *self.of(slot), optional(kept), out.address, valid.address):
            return None
        return self._array(pa.float64(), slot, out, valid, kept)

    def base64(self, slot: int, kept: Mask | None = None) -> pa.Array | None:
        """The big-endian integers of base64 texts; None if one has more than eight bytes, or is none."""
        out, valid = pa.allocate_buffer(8 * self.count), self._bits()
        if not self.library.ch_base64(self.data, *self.of(slot), optional(kept), out.address, valid.address):
            return None
        return self._array(pa.int64(), slot, out, valid, kept)

    def texts(self, slot: int, kept: Mask | None = None) -> pa.Array:
        """The texts of a slot."""
        out, valid = pa.allocate_buffer(int(self.sizes[slot])), self._bits()
        offsets = pa.allocate_buffer(4 * self.count + 4)
        self.library.ch_texts(self.data, *self.of(slot), optional(kept), offsets.address, valid.address, out.address)
        nulls = self.kinds(slot) & NULL or kept is not None
        buffers = [valid if nulls else None, offsets, out]
        return pa.Array.from_buffers(pa.string(), self.count, buffers, null_count=-1 if nulls else 0)

    def literals(self, slot: int, decoder: msgspec.json.Decoder[list[Any]]) -> list[Any]:
        """The values of a slot by a decoder of lists. Raises msgspec's errors."""
        out = np.empty(int(self.sizes[slot]) + 5 * self.count + 2, dtype=np.uint8)
        size = self.library.ch_listed(self.data, *self.of(slot), address(out))
        return decoder.decode(out.data[:size])

    def repeated(self, slot: int, decoder: msgspec.json.Decoder[list[Any]]) -> list[Any]:
        """The same, faster if few of the values differ."""
        known = self.distinct(slot, decoder)
        if known is None:
            return self.literals(slot, decoder)
        values, codes = known
        return values * self.count if len(values) == 1 else [values[code] for code in codes.tolist()]

    def distinct(
        self, slot: int, decoder: msgspec.json.Decoder[list[Any]]
    ) -> tuple[list[Any], npt.NDArray[np.uint8]] | None:
        """The different values of a slot, and which each is; None if there are many."""
        codes, first = np.empty(self.count, dtype=np.uint8), np.empty(MOST_KNOWN, dtype=np.int64)
        known = self.library.ch_distinct(self.data, *self.of(slot), address(codes), address(first))
        if not known:
            return None
        values = decoder.decode(b"[" + b",".join([self.raw(slot, place) for place in first[:known].tolist()]) + b"]")
        return values, codes

    def raw(self, slot: int, place: int) -> bytes:
        """The text of one value."""
        cell = self._cells[place * self._width + slot]
        start, size = int(cell["start"]), int(cell["sized"]) >> 4
        return self.data[start : start + size] if size else b"null"

    def _are(self, slot: int, kind: int) -> npt.NDArray[np.bool_]:
        out = np.empty(self.count, dtype=np.bool_)
        self.library.ch_are(*self.of(slot), kind, address(out))
        return out

    def _integers(self, slot: int, kept: Mask | None) -> tuple[pa.Buffer, pa.Buffer]:
        out, valid = pa.allocate_buffer(8 * self.count), self._bits()
        self.library.ch_integers(*self.of(slot), optional(kept), out.address, valid.address)
        return out, valid

    def _bits(self) -> pa.Buffer:
        return pa.allocate_buffer((self.count + 7) // 8)

    def _array(self, arrow: pa.DataType, slot: int, out: Any, valid: Any, kept: Mask | None) -> pa.Array:
        nulls = self.kinds(slot) & NULL or kept is not None
        buffers = [valid if nulls else None, out]
        return pa.Array.from_buffers(arrow, self.count, buffers, null_count=-1 if nulls else 0)


class Room(threading.local):
    """Memory for cells, used again by each thread: new memory costs as much as scanning it."""

    def __init__(self) -> None:
        self._cells: Any = np.empty(0, dtype=_CELL)

    def of(self, size: int) -> Any:
        """Room for so many cells, whose former content is lost."""
        if len(self._cells) < size:
            self._cells = np.empty(size, dtype=_CELL)
        return self._cells


def scan(library: ctypes.CDLL, program: Program, payloads: Sequence[bytes], room: Room) -> Scan | None:
    """The scanned payloads; None if not all follow the program."""
    together, count = joined(payloads), len(payloads)
    data = together.data
    made = Scan(library, program, data, count, room.of(count * max(len(program.slots), 1)))
    texts = np.frombuffer(program.texts, dtype=np.uint8)
    accepted = library.ch_scan(
        data,
        address(together.ends),
        count,
        address(program.steps),
        len(program.steps),
        address(texts),
        made.of(0)[0],
        made.of(0)[1],
        address(made.seen),
        address(made.sizes),
    )
    return made if accepted == count else None


def optional(mask: Mask | None) -> int | None:
    """A mask as compiled code takes it."""
    return None if mask is None else address(mask)


NOTHING, NIL, _WORD, _WHOLE, _DOUBLE, STRING, _SLASHED, SPECIAL, _DECIMAL, _NESTED = (1 << kind for kind in range(10))
"""Kinds of values, as bits. ``SPECIAL``: ObjectIds, and dates and UUIDs, which alone have a hyphen in their texts."""
WRITABLE = NOTHING | NIL | _WORD | _WHOLE | _DOUBLE | STRING | SPECIAL | _DECIMAL | _NESTED
"""Those whose plain JSON without quotes is what a text column holds."""
_REFUSED, _WRITTEN = 1, 2
_DOTLESS, _VALUES = 1, 2
_PART = np.dtype([("from", "<u4"), ("size", "<u4"), ("at", "<u4"), ("length", "<u4"), ("kind", "<u4")])


class Written:
    """The texts of a slot; those that were refused have to be read by other means."""

    def __init__(self, scan: Scan, slot: int, wanted: int) -> None:
        room, count = int(scan.sizes[slot]), scan.count
        self._library, self.count = scan.library, count
        self.texts = np.empty(room, dtype=np.uint8)
        # A date of one digit becomes that much longer.
        self.out = pa.allocate_buffer(3 * room, resizable=True)
        self.starts = np.empty(count + 1, dtype=np.int64)
        self.offsets = np.empty(count + 1, dtype=np.int32)
        self.states = np.empty(count, dtype=np.uint8)
        self.parts = np.empty((count, max(wanted, 1)), dtype=_PART)
        self.seen = np.zeros(max(wanted, 1), dtype=np.uint32)
        """Kinds of each field's values, as bits."""

    @property
    def refused(self) -> Mask:
        """The texts that were not written."""
        found: Mask = self.states == _REFUSED
        return found

    def given(self, place: int) -> str:
        """A text as it was given."""
        return self.texts[self.starts[place] : self.starts[place + 1]].tobytes().decode()

    def whole(self, arrow: pa.DataType) -> pa.Array:
        """The written texts; null for all others."""
        return self._array(arrow, self.states == _WRITTEN, pa.py_buffer(self.offsets), self.out)

    def field(self, number: int, arrow: pa.DataType) -> pa.Array:
        """A field's values as plain JSON without quotes; null where there is none."""
        parts = self.parts[:, number]
        valid = parts["kind"] > 1
        parts["length"][~valid] = 0
        offsets = np.empty(self.count + 1, dtype=np.int32)
        texts = pa.allocate_buffer(int(parts["length"].sum()))
        self._library.ch_parts(
            self.out.address, address(parts), self.parts.shape[1], self.count, address(offsets), texts.address
        )
        return self._array(arrow, valid, pa.py_buffer(offsets), texts)

    def literals(self, number: int) -> bytes:
        """A JSON array of a field's values as they were given; null where there is none."""
        parts, data = self.parts[:, number], self.texts.tobytes()
        starts, sizes = parts["from"].tolist(), parts["size"].tolist()
        found = [data[at : at + size] or b"null" for at, size in zip(starts, sizes, strict=True)]
        return b"[" + b",".join(found) + b"]"

    def _array(self, arrow: pa.DataType, valid: Mask, offsets: pa.Buffer, texts: pa.Buffer) -> pa.Array:
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(arrow, self.count, [bits, offsets, texts], null_count=-1 if bits else 0)


def written(
    scan: Scan,
    slot: int,
    names: Sequence[str] = (),
    kept: Mask | None = None,
    *,
    dotless: bool = False,
    values: bool = False,
) -> Written:
    """The texts of a slot, where ``kept`` holds, as plain JSON.

    ``names``: fields of the documents that are asked for. ``dotless``: refuse documents of which a key has a dot.
    ``values``: each text is any value, and field 0 is that.
    """
    encoded = [name.encode() for name in names]
    joined, ends = b"".join(encoded), np.cumsum([len(name) for name in encoded], dtype=np.uint32)
    made = Written(scan, slot, 1 if values else len(names))
    scan.library.ch_documents(
        scan.data,
        *scan.of(slot),
        optional(kept),
        dotless * _DOTLESS | values * _VALUES,
        joined,
        address(ends),
        1 if values else len(names),
        address(made.texts),
        address(made.starts),
        made.out.address,
        address(made.offsets),
        address(made.states),
        address(made.parts),
        address(made.seen),
    )
    made.out.resize(int(made.offsets[-1]), shrink_to_fit=True)
    return made
