"""The datums of one schema, each with a cursor, read field by field for all of them at once.

Avro has no field names or lengths in its data: a record is read from its start to its end. Every step (an integer,
the length of a text) is done for all datums of a chunk by a few numpy operations, without a Python object per value. A
datum that ends early or holds an impossible number is marked bad and its cursor moves to its end; the others continue.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Datums", "Ints", "Rows"]

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp] | slice
"""Places of the datums that a step reads; ``slice(None)`` for all."""

_PADDING = bytes(16)
_HIGH = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)


class Datums:
    """Concatenated datums, without the first ``skip`` bytes of each."""

    def __init__(self, values: Sequence[bytes], *, skip: int = 0) -> None:
        self.raw = b"".join(values) + _PADDING
        """All bytes, padded so that a step may read beyond the last datum."""
        lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        self.end: Ints = np.cumsum(lengths)
        self.cursor: Ints = self.end - lengths + skip
        self.bad: npt.NDArray[np.bool_] = np.zeros(len(values), dtype=np.bool_)
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(self.raw, dtype=np.uint8)
        # Eight bytes from any place, as one little-endian integer.
        self._words: Any = np.ndarray((len(self.raw) - 7,), dtype="<u8", buffer=self.raw, strides=(1,))
        self._check(slice(None))

    def __len__(self) -> int:
        return len(self.end)

    def count(self, rows: Rows) -> int:
        """How many datums a step reads."""
        return len(self) if isinstance(rows, slice) else len(rows)

    def longs(self, rows: Rows) -> Ints:
        """Reads an int or long: zigzag, seven bits a byte, the lowest first."""
        start = self._at(rows)
        first = self.octets[start]
        if not (first & 128).any():
            self.cursor[rows] = start + 1
            self._check(rows)
            return _signed(first.astype(np.uint64))
        word = self._words[start]
        stop = ~word & _HIGH
        stop &= -stop  # the high bit of the last byte
        length = (np.bitwise_count(stop - _ONE).astype(np.int64) + 1) >> 3
        long = np.nonzero(stop == 0)[0]
        word &= (stop << _ONE) - _ONE  # for a stop in the last byte this is all bits, for none as well
        value = _squeeze(word)
        if len(long):
            length[long] = 8
            self._tail(start, long, value, length, rows)
        self.cursor[rows] = start + length
        self._check(rows)
        return _signed(value)

    def skip_longs(self, rows: Rows) -> None:
        """Steps over an int or long."""
        start = self._at(rows)
        stop = ~self._words[start] & _HIGH
        stop &= -stop
        length = (np.bitwise_count(stop - _ONE).astype(np.int64) + 1) >> 3
        if not stop.all():
            self.longs(rows)
            return
        self.cursor[rows] = start + length
        self._check(rows)

    def segments(self, rows: Rows) -> tuple[Ints, Ints]:
        """Reads a length and that many bytes: their first and end places."""
        length = self.longs(rows)
        start = self._at(rows)
        room = self.end[rows] - start
        wrong = (length < 0) | (length > room)
        if wrong.any():
            self.fail(rows, wrong)
            length = np.where(wrong, 0, length)
            start = self._at(rows)
        end = start + length
        self.cursor[rows] = end
        return start, end

    def fixed(self, rows: Rows, size: int) -> tuple[Ints, Ints]:
        """Reads ``size`` bytes: their first and end places."""
        start = self._at(rows)
        wrong = start + size > self.end[rows]
        if wrong.any():
            self.fail(rows, wrong)
            start = self._at(rows)
            end = np.where(wrong, start, start + size)
        else:
            end = start + size
        self.cursor[rows] = end
        return start, end

    def numbers(self, rows: Rows, dtype: str) -> npt.NDArray[Any]:
        """Reads little-endian floats (``<f4``, ``<f8``)."""
        size = np.dtype(dtype).itemsize
        start, _ = self.fixed(rows, size)
        # A bad datum reads the bytes after it; the padding is longer than a number.
        return np.ndarray((len(self.raw) - size + 1,), dtype=dtype, buffer=self.raw, strides=(1,))[start].astype(
            dtype[1:]
        )

    def booleans(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Reads a byte that is 0 or 1."""
        start, _ = self.fixed(rows, 1)
        found = self.octets[start]
        if found.max(initial=0) > 1:
            self.fail(rows, found > 1)
        one: npt.NDArray[np.bool_] = found == 1
        return one

    def branches(self, rows: Rows, count: int) -> Ints:
        """Reads which of a union's ``count`` branches follows; 0 for a bad datum."""
        found = self.longs(rows)
        wrong = (found < 0) | (found >= count)
        if wrong.any():
            self.fail(rows, wrong)
            found = np.where(wrong, 0, found)
        return found

    def fail(self, rows: Rows, wrong: npt.NDArray[np.bool_]) -> None:
        """Marks the datums of ``rows`` where ``wrong`` holds as bad."""
        places = np.nonzero(wrong)[0] if isinstance(rows, slice) else rows[wrong]
        self.bad[places] = True
        self.cursor[places] = self.end[places]

    def finish(self) -> None:
        """Marks the datums that have bytes left as bad."""
        self.bad |= self.cursor != self.end

    def _at(self, rows: Rows) -> Ints:
        return self.cursor.copy() if isinstance(rows, slice) else self.cursor[rows]

    def _check(self, rows: Rows) -> None:
        beyond = self.cursor[rows] > self.end[rows]
        if beyond.any():
            self.fail(rows, beyond)

    def _tail(self, start: Ints, long: npt.NDArray[np.intp], value: Any, length: Ints, rows: Rows) -> None:
        """The ninth and tenth byte of integers that have them."""
        ninth = self.octets[start[long] + 8].astype(np.uint64)
        tenth = self.octets[start[long] + 9].astype(np.uint64)
        more = ninth > 127
        value[long] |= (ninth & np.uint64(127)) << np.uint64(56)
        value[long] |= np.where(more, (tenth & _ONE) << np.uint64(63), np.uint64(0))
        length[long] += 1 + more
        wrong = np.zeros(len(start), dtype=np.bool_)
        wrong[long] = more & (tenth > 1)
        if wrong.any():
            # Kept beyond the end of the datum: the check that follows marks it.
            length[wrong] += (self.end[rows] - start)[wrong]


def _signed(zigzag: npt.NDArray[np.uint64]) -> Ints:
    unsigned: npt.NDArray[np.uint64] = (zigzag >> _ONE) ^ -(zigzag & _ONE)
    return unsigned.view(np.int64)


def _squeeze(word: Any) -> Any:
    """The lower seven bits of each of the eight bytes, side by side."""
    word &= np.uint64(0x7F7F7F7F7F7F7F7F)
    word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    word = (word & np.uint64(0x00003FFF00003FFF)) | ((word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (word & np.uint64(0x000000000FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
