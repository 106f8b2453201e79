"""Version words: how epoch, commit position, Kafka offset and half become one comparable number.

Wide layout (``UInt128``, ``UInt256`` and their signed forms), most significant bits first::

    epoch 16 | commit position 80 | Kafka offset, low 31 bits | half 1

Narrow layout (``UInt64``)::      epoch 8 | Kafka offset 55 | half 1        (``Int64``: offset 54)

Time layout (``DateTime64``)::    source time at the column's precision, or that of an earlier event if it is higher;
                                  it has neither epoch nor half

*half* is 1 for the row of an event, and 0 for the delete row that leaves the row's old place, so that a move
inside one event is ordered too. Versions are kept as ``(n, 2)`` arrays of UInt64: high word, low word.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.errors import PositionError, StreamFailed, TableError

Words = npt.NDArray[np.uint64]
"""Shape (n, 2): high word, low word."""

OFFSET_BITS = 31
POSITION_SHIFT = OFFSET_BITS + 1
"""Bits of a wide version below its epoch and commit position."""
_OFFSET_MASK = np.uint64((1 << OFFSET_BITS) - 1)
_BELOW_EPOCH = {"wide": 112, "narrow": 56}
"""Bits of a version below its epoch."""
_MAX_EPOCH = 0x7FFF


def to_int(words: Words, index: int) -> int:
    """One version as a Python integer."""
    return (int(words[index, 0]) << 64) | int(words[index, 1])


def to_ints(words: Words) -> list[int]:
    """All versions as Python integers."""
    return [(high << 64) | low for high, low in zip(words[:, 0].tolist(), words[:, 1].tolist(), strict=True)]


def to_words(numbers: Sequence[int]) -> Words:
    """Versions from Python integers; the inverse of `to_int`."""
    low = (1 << 64) - 1
    return np.array([[n >> 64, n & low] for n in numbers], dtype=np.uint64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of versions in a column of one type."""

    kind: Literal["wide", "narrow", "time"]
    clickhouse_type: str
    arrow: pa.DataType
    signed: bool = False
    per_second: int = 1
    """Ticks of a second in a time column."""

    @property
    def epochs(self) -> int:
        """The highest epoch that fits the column."""
        if self.kind == "time":
            return 1 << 62
        bits = {"Int64": 63, "UInt64": 64, "Int128": 127}.get(self.clickhouse_type, 128)  # words have 128 bits
        return min(_MAX_EPOCH, (1 << bits - _BELOW_EPOCH[self.kind]) - 1)

    def epoch_of(self, version: int) -> int | None:
        """The epoch of a version, whoever wrote it; None if it is a time."""
        return None if self.kind == "time" else version >> _BELOW_EPOCH[self.kind]

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.epochs:
            raise StreamFailed(
                f"epoch {epoch} does not fit the version column ({self.clickhouse_type}, at most {self.epochs})",
                hint="Recreate the table with `ch_sink init`, with a UInt128 version, and take a new snapshot.",
            )

    def pack(
        self,
        epoch: npt.NDArray[np.int64],
        commit: Words,
        offset: npt.NDArray[np.int64],
        source_ts: npt.NDArray[np.int64],
        half: int = 1,
    ) -> Words:
        """Version words of n events; ``commit`` is (n, 2) with 16 bits used in the high word.

        Raises:
            StreamFailed: the epoch's bits are used up.
            PositionError: a commit position needs more than 80 bits.
        """
        self._check_epoch(int(epoch.max(initial=0)))
        out = np.zeros((len(offset), 2), dtype=np.uint64)
        unsigned = offset.astype(np.uint64)
        if self.kind == "wide":
            if len(commit) and int(commit[:, 0].max()) > 0xFFFF:
                raise PositionError("the commit position needs more than 80 bits")
            out[:, 0] = (
                (epoch.astype(np.uint64) << np.uint64(48))
                | (commit[:, 0] << np.uint64(32))
                | (commit[:, 1] >> np.uint64(32))
            )
            out[:, 1] = (
                ((commit[:, 1] & np.uint64(0xFFFFFFFF)) << np.uint64(32))
                | ((unsigned & _OFFSET_MASK) << np.uint64(1))
                | np.uint64(half)
            )
        elif self.kind == "narrow":
            bits = np.uint64(55)
            out[:, 1] = (
                (epoch.astype(np.uint64) << (bits + np.uint64(1))) | (unsigned << np.uint64(1)) | np.uint64(half)
            )
        else:
            out[:, 1] = np.maximum(source_ts, 0).astype(np.uint64) * np.uint64(self.per_second) // np.uint64(1000)
        return out

    def to_arrow(self, words: Words) -> pa.Array:
        """The words as the column is inserted (little-endian fixed binary for the wide types)."""
        n = len(words)
        if self.kind == "wide":
            width = self.arrow.byte_width
            raw = np.zeros((n, width // 8), dtype="<u8")
            raw[:, 0] = words[:, 1]
            raw[:, 1] = words[:, 0]
            return pa.FixedSizeBinaryArray.from_buffers(self.arrow, n, [None, pa.py_buffer(raw.tobytes())])
        flat = np.ascontiguousarray(words[:, 1]).astype(np.int64) if self.signed or self.kind == "time" else words[:, 1]
        return pa.array(np.ascontiguousarray(flat)).cast(self.arrow)

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Words:
        """Stored versions as words; the inverse of `to_arrow`."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # combine_chunks of zero chunks
            array = pa.array([], type=array.type)
        out = np.zeros((len(array), 2), dtype=np.uint64)
        if not len(array):
            return out
        if self.kind == "wide":
            width = self.arrow.byte_width // 8
            raw = np.frombuffer(array.buffers()[1], dtype="<u8").reshape(-1, width)
            raw = raw[array.offset : array.offset + len(array)]
            out[:, 0], out[:, 1] = raw[:, 1], raw[:, 0]
        elif self.kind == "narrow":
            out[:, 1] = np.asarray(array.cast(pa.int64() if self.signed else pa.uint64())).astype(np.uint64)
        else:
            out[:, 1] = np.maximum(np.asarray(array.cast(pa.int64())), 0).astype(np.uint64)
        return out


def layout_for(clickhouse_type: str) -> Layout:
    """The layout of a version column of this type.

    Raises:
        TableError: the type cannot hold an order of changes.
    """
    if clickhouse_type in ("UInt128", "Int128", "UInt256", "Int256"):
        width = 32 if clickhouse_type.endswith("256") else 16
        return Layout("wide", clickhouse_type, pa.binary(width))
    if clickhouse_type in ("UInt64", "Int64"):
        signed = clickhouse_type == "Int64"
        return Layout("narrow", clickhouse_type, pa.int64() if signed else pa.uint64(), signed=signed)
    match = re.fullmatch(r"DateTime64\((\d)(?:,\s*'([^']*)')?\)", clickhouse_type)
    if match and int(match[1]) in (3, 6, 9):
        unit = {3: "ms", 6: "us", 9: "ns"}[int(match[1])]
        return Layout("time", clickhouse_type, pa.timestamp(unit, tz=match[2] or "UTC"), per_second=10 ** int(match[1]))
    if re.fullmatch(r"DateTime(\('[^']*'\))?", clickhouse_type):
        return Layout("time", clickhouse_type, pa.uint32(), per_second=1)
    raise TableError(
        f"a version column of type {clickhouse_type} cannot hold the order of changes",
        hint="Use UInt128 (as `ch_sink init` does), UInt64 or Int64; DateTime64 orders by source time only.",
    )
