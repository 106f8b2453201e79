"""Number the distinct keys of key columns, so that the rest can work on integers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """``codes[i]`` numbers the key of row i, from 0; equal keys have equal numbers."""

    codes: npt.NDArray[np.int64]
    count: int

    def first(self) -> npt.NDArray[np.int64]:
        """The first row of each key, by key number."""
        out = np.full(self.count, -1, dtype=np.int64)
        out[self.codes[::-1]] = np.arange(len(self.codes) - 1, -1, -1)
        return out


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [_empty(column.type)])
    return column


def _empty(kind: pa.DataType) -> pa.Array:
    return pa.array([], type=kind)


def factorize(table: pa.Table) -> KeyCodes:
    """Codes of the rows of ``table`` (all its columns together make the key). Nulls equal nulls, NaN equals NaN.

    Equal means equal as stored: two texts or bytes, two numbers of the column's type.
    """
    n = table.num_rows
    codes = np.zeros(n, dtype=np.int64)
    count = 1 if n else 0
    for column in table.columns:
        part, size = _codes(flat(column))
        if count * size < (1 << 62):
            codes = codes * size + part
            count = count * size
        else:  # the product would not fit: renumber what there is first
            codes, count = _dense(codes)
            codes = codes * size + part
            count = count * size
    dense, total = _dense(codes)
    return KeyCodes(dense, total)


def _codes(column: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    if pa.types.is_integer(column.type) and column.null_count == 0:
        values = np.asarray(column)
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if high - low < (1 << 31):
            return (values.astype(np.int64) - low), high - low + 1
        return _dense(values)
    if pa.types.is_fixed_size_binary(column.type) or pa.types.is_nested(column.type):
        column = _as_binary(column)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), max(len(encoded.dictionary), 1)


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_binary(column.type):
        return column.cast(pa.binary())
    return pa.array([repr(v) for v in column.to_pylist()], type=pa.string())


def _dense(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    uniques, inverse = np.unique(values, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64), len(uniques)
